"""What `kaishu eval` is said to take is what a process that compared took, and a bound is kept or refused.

KAISHU_LONG_TESTS=1 pytest tests/test_evaluation_memory.py     also larger models (2 GB, a minute or two)
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

import kaishu
from kaishu.checkpoint import Checkpoint, open_checkpoint
from kaishu.checkpoint.hub import resolve
from kaishu.checkpoint.random_weights import write_random_checkpoint
from kaishu.errors import InvalidParameterError, OutOfMemoryError
from kaishu.evaluation_memory import EvaluationPlan, check_evaluation, plan_evaluation
from kaishu.executors import choose, quantised_formats
from kaishu.planning import plan_model
from tests.memory import run_measured

TEXT = "Once upon a time there was a robot called Lucy. " * 4  # 49 tokens of the bundled model's


def planned(checkpoint: Checkpoint, forms: tuple[str, ...], text_tokens: list[int]) -> EvaluationPlan:
    formats = quantised_formats(checkpoint)
    plans = [
        plan_model(
            checkpoint,
            choose(checkpoint.config, "cpu", form, "auto", "cpu", formats=formats),
            context_tokens=max(text_tokens),
            threads=1,
        )
        for form in forms
    ]
    return plan_evaluation(checkpoint, plans, text_tokens)


PROGRAM = """
import sys
from pathlib import Path
from kaishu.checkpoint import open_checkpoint
from kaishu.cli.eval_forms import Model, run
model = Model("m", open_checkpoint(Path({path!r})))
found = run(model, None, {forms!r}, ["auto"], written={text!r}, tokens=1000, threads=1, advance=lambda *_: None)
print(found.forms[0].comparison.tokens, round(peak_mb() * 2**20))
"""


def measured(path: Path, forms: tuple[str, ...]) -> tuple[int, int]:
    """return: tokens of the text, and bytes at most"""
    predicted, peak = map(int, run_measured(PROGRAM.format(path=str(path), forms=forms, text=TEXT)))
    return predicted + 1, peak


def test_the_peak_of_the_bundled_model_is_what_was_planned():
    path = resolve("tiny")
    measured(path, ("bf16", "int4"))  # compiles what isn't compiled, which takes more than this model
    tokens, peak = measured(path, ("bf16", "int4"))
    plan = planned(open_checkpoint(path), ("bf16", "int4"), [tokens])
    assert 0.75 * plan.peak_bytes < peak <= plan.peak_bytes


if os.environ.get("KAISHU_LONG_TESTS"):

    def test_the_peak_of_a_real_quantised_file_is_what_was_planned(smollm2_file):
        """Most of its tensors are so small that the C library keeps them."""
        tokens, peak = measured(smollm2_file, ("auto",))
        plan = planned(open_checkpoint(smollm2_file), ("auto",), [tokens])
        assert 0.65 * plan.peak_bytes < peak <= plan.peak_bytes

    def test_the_peak_of_a_large_vocabulary_is_what_was_planned(tmp_path):
        """Qwen3-0.6B's shape with one layer: 650 MB in float32, most of it embedding, and 600 kB of logits a token."""
        folder = write_random_checkpoint(tmp_path / "model", "0.6b", layers=1)
        for name in ("tokenizer.json", "tokenizer_config.json"):
            shutil.copy(Path(kaishu.__file__).parent / "models" / "tiny" / name, folder / name)
        tokens, peak = measured(folder, ("int8",))
        plan = planned(open_checkpoint(folder), ("int8",), [tokens])
        assert 0.65 * plan.peak_bytes < peak <= plan.peak_bytes


def test_a_bound_is_kept_or_refused_with_what_takes_how_much():
    plan = planned(open_checkpoint(resolve("tiny")), ("bf16",), [400, 200])
    check_evaluation(plan.peak_bytes, plan, tokens=598, bytes_per_token=4 * 2144)
    over = plan.peak_bytes - 8576 * 100
    with pytest.raises(
        OutOfMemoryError, match=r"libraries and torch .* truth in float32 10\.2 MB.*\n  Take --tokens 498, or"
    ):
        check_evaluation(over, plan, tokens=598, bytes_per_token=4 * 2144)
    fewer = planned(open_checkpoint(resolve("tiny")), ("bf16",), [400, 100])
    check_evaluation(over, fewer, tokens=498, bytes_per_token=4 * 2144)  # what was offered fits
    with pytest.raises(OutOfMemoryError, match=r"max_memory is 100\.0 MB\.\n  Take a smaller model"):
        check_evaluation("100MB", plan, tokens=598, bytes_per_token=4 * 2144)
    with pytest.raises(InvalidParameterError, match="max_memory is 0"):
        check_evaluation(0, plan, tokens=598, bytes_per_token=4 * 2144)
