"""Which executor is chosen, in which form weights are kept, and which wishes don't go together."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import kaishu
from kaishu.checkpoint import open_checkpoint
from kaishu.config import ModelConfig
from kaishu.errors import InvalidParameterError, MissingDependencyError
from kaishu.executors import choose, make_executor

TINY = Path(kaishu.__file__).parent / "models" / "tiny"


@pytest.fixture(scope="module")
def config() -> ModelConfig:
    return open_checkpoint(TINY).config


@pytest.mark.parametrize(
    ("asked", "chosen"),
    [
        (("auto", "auto", "auto", "cpu"), ("cpu", "bf16", "bf16")),
        (("auto", "int8", "auto", "cpu"), ("cpu", "int8", "int8")),
        (("auto", "int4", "auto", "cpu"), ("cpu", "int4", "int8")),
        (("cpu", "int4", "bf16", "cpu"), ("cpu", "int4", "bf16")),
        (("cpu", "auto", "int4", "cpu"), ("cpu", "bf16", "int4")),
        (("auto", "float32", "auto", "cpu"), ("reference", "float32", None)),
        (("reference", "auto", "auto", "cpu"), ("reference", "float32", None)),
        (("reference", "bf16", "auto", "cpu"), ("reference", "bf16", None)),
        (("auto", "auto", "auto", "cuda"), ("reference", "bf16", None)),
    ],
)
def test_every_auto_is_settled(
    config: ModelConfig, asked: tuple[str, str, str, str], chosen: tuple[str, str, str | None]
) -> None:
    choice = choose(config, *asked)
    assert (choice.executor, choice.weights, choice.head) == chosen


@pytest.mark.parametrize(
    ("asked", "field", "hint"),
    [
        (("gpu", "auto", "auto", "cpu"), "executor", ""),
        (("auto", "int3", "auto", "cpu"), "weights", ""),
        (("auto", "auto", "int3", "cpu"), "head", ""),
        (("cpu", "float32", "auto", "cpu"), "weights", "executor='reference'"),
        (("reference", "int8", "auto", "cpu"), "weights", "executor='cpu'"),
        (("auto", "int4", "auto", "cuda"), "weights", "executor='cpu'"),
        (("reference", "auto", "int8", "cpu"), "head", "executor='cpu'"),
        (("cpu", "auto", "auto", "cuda"), "device", "executor='reference'"),
        (("auto", "auto", "auto", 0), "device", ""),
    ],
)
def test_what_does_not_go_together_is_refused(
    config: ModelConfig, asked: tuple[str, str, str, str], field: str, hint: str
) -> None:
    with pytest.raises(InvalidParameterError) as caught:
        choose(config, *asked)
    assert caught.value.field == field and hint in (caught.value.hint or "")


def test_keys_and_values_have_the_forms_of_the_kernels(config: ModelConfig) -> None:
    assert choose(config, "cpu", "auto", "auto", "cpu").kv == "bf16"
    assert choose(config, "cpu", "auto", "auto", "cpu", kv="int8").kv == "int8"
    for executor, kv, hint in (("auto", "int4", ""), ("reference", "int8", "executor='cpu'")):
        with pytest.raises(InvalidParameterError) as caught:
            choose(config, executor, "auto", "auto", "cpu", kv=kv)
        assert caught.value.field == "kv" and hint in (caught.value.hint or "")


def test_a_checkpoint_of_another_width_is_said_to_be_rounded(config: ModelConfig) -> None:
    choice = choose(replace(config, dtype="float32"), "auto", "auto", "auto", "cpu")
    assert (choice.weights, choice.reason) == ("bf16", "the checkpoint's float32, rounded")
    assert choose(config, "auto", "auto", "auto", "cpu").reason == "as in the checkpoint"


def test_the_start_line_says_what_was_chosen_and_why(config: ModelConfig) -> None:
    choice = choose(config, "cpu", "int4", "auto", "cpu")
    executor, line = make_executor(open_checkpoint(TINY), choice, threads=1, context_tokens=64, say=lambda _: None)
    assert line.startswith("CPU kernels (") and line.endswith("int4 weights (as asked), int8 head, 1 thread")
    _, line = make_executor(
        open_checkpoint(TINY),
        choose(config, "cpu", "int4", "auto", "cpu", kv="int8"),
        threads=1,
        context_tokens=64,
        say=lambda _: None,
    )
    assert line.endswith("int4 weights (as asked), int8 head, int8 keys and values, 1 thread")
    assert executor.vocab_size == config.vocab_size and executor.num_pages * executor.page_tokens >= 64


WITHOUT_TORCH = """
import sys
sys.modules["torch"] = None  # importing it fails as if it weren't installed
import kaishu
llm = kaishu.LLM("tiny", threads=1)
print(llm.chat([{"role": "user", "content": "12+30"}], thinking=False, temperature=0).content)
try:
    kaishu.LLM("tiny", executor="reference")
except kaishu.KaishuError as error:
    print(type(error).__name__, error)
"""


def test_a_model_answers_without_torch_and_the_reference_says_what_it_needs() -> None:
    done = subprocess.run([sys.executable, "-c", WITHOUT_TORCH], capture_output=True, text=True, check=True)
    answer, error = done.stdout.strip().split("\n", maxsplit=1)
    assert "42" in answer
    assert MissingDependencyError.__name__ in error and "pip install 'kaishu[torch]'" in error


def test_both_executors_say_the_same_greedy_tokens() -> None:
    answers = {
        name: kaishu.LLM("tiny", executor=name).generate("Once", max_tokens=24, temperature=0).token_ids
        for name in ("cpu", "reference")
    }
    assert np.array_equal(answers["cpu"], answers["reference"])
