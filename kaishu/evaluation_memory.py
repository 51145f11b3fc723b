"""What `kaishu eval` takes: a model in float32, then the same in each of its forms, and the logits of both.

Owns that sum and the words where it is more than a bound. What a form takes is planning.py. Reads no weights.

    peak  =  process + torch  +  the larger of
        the truth:  4 bytes a weight  +  the largest tensor while it is read  +  logits
        a form:     what of the truth isn't given back  +  the form's own peak  +  logits of both  +  comparing them

Logits are 4·V bytes a token: the truth's of all texts stay, and those of the text at hand are there twice while its
parts are put together. Of the truth, tensors of less than 32 MB may not be given back to the system: the C library
keeps what lies between others.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from kaishu.byte_sizes import parse_size, size
from kaishu.checkpoint import Checkpoint
from kaishu.checkpoint.safetensors import StoredTensor
from kaishu.engine.scheduler import Budget
from kaishu.errors import OutOfMemoryError
from kaishu.evaluation import ROWS_AT_ONCE
from kaishu.planning import Plan

TORCH_BYTES = 235_000_000  # measured: importing it, and computing with it
GIVEN_BACK_BYTES = 32 << 20  # from here on, an allocation is a mapping of its own
DECODING_BYTES_PER_WEIGHT = 6  # of a quantised tensor, beside its values in float32


@dataclass(frozen=True)
class EvaluationPlan:
    """What one evaluation takes, each part at most.

    process_bytes: Python, libraries and torch
    truth_bytes:   the weights in float32
    reading_bytes: the largest of them, while it is read
    kept_bytes:    of the truth, what may stay when it is gone
    form_bytes:    the largest form: packed, and loading or buffers, keys and values
    logits_bytes:  the truth's of all texts, and those of the longest text
    step_bytes:    activations and logits of one step
    compare_bytes: of a few rows in float64
    """

    process_bytes: int
    truth_bytes: int
    reading_bytes: int
    kept_bytes: int
    form_bytes: int
    logits_bytes: int
    step_bytes: int
    compare_bytes: int

    @property
    def peak_bytes(self) -> int:
        """The most that is ever in use."""
        truth = self.truth_bytes + max(self.reading_bytes, self.logits_bytes + self.step_bytes)
        form = self.kept_bytes + self.form_bytes + self.logits_bytes + max(self.step_bytes, self.compare_bytes)
        return self.process_bytes + max(truth, form)


def plan_evaluation(truth: Checkpoint, forms: Sequence[Plan], text_tokens: Sequence[int]) -> EvaluationPlan:
    """Find out what an evaluation takes.

    truth:       the model that is computed in float32
    forms:       each form of the model that is compared, planned for a context as long as the longest text
    text_tokens: how long each text is
    """
    config, tensors = truth.config, truth.tensors.values()
    rows = max(config.vocab_size, *(plan.layout.config.vocab_size for plan in forms))
    step = Budget().every_row_tokens
    inner = max(config.intermediate_size, config.experts.moe_intermediate_size if config.experts else 0)
    widths = 8 * config.hidden_size + 4 * inner + 3 * config.query_size + 2 * rows
    scores = 3 * config.num_attention_heads * max(text_tokens)
    kept = sum(4 * tensor.num_values for tensor in tensors if 4 * tensor.num_values < GIVEN_BACK_BYTES)
    keys = 4 * 2 * config.num_hidden_layers * config.key_value_size * max(text_tokens)
    return EvaluationPlan(
        process_bytes=max(plan.process_bytes for plan in forms) + TORCH_BYTES,
        truth_bytes=sum(4 * tensor.num_values for tensor in tensors),
        reading_bytes=max(map(_reading_bytes, tensors)),
        kept_bytes=kept,
        form_bytes=max(plan.peak_bytes - plan.process_bytes for plan in forms),
        logits_bytes=4 * rows * (sum(text_tokens) + max(text_tokens)),
        step_bytes=4 * step * (widths + scores) + 2 * keys,
        compare_bytes=8 * 7 * rows * ROWS_AT_ONCE,
    )


def _reading_bytes(tensor: object) -> int:
    """Of a tensor that is being read, what there is beside it in float32."""
    if isinstance(tensor, StoredTensor):
        return 2 * tensor.nbytes  # the file's pages, and a copy of them
    nbytes, values = (getattr(tensor, name) for name in ("nbytes", "num_values"))
    return int(nbytes + (4 + DECODING_BYTES_PER_WEIGHT) * values)


def check_evaluation(max_memory: object, plan: EvaluationPlan, *, tokens: int, bytes_per_token: int) -> None:
    """Refuse an evaluation that takes more than a bound.

    max_memory:      for the whole process, see parse_size
    tokens:          how many are predicted
    bytes_per_token: what the logits of one take at least
    raises:          OutOfMemoryError; InvalidParameterError
    """
    bound = parse_size("max_memory", max_memory)
    if plan.peak_bytes <= bound:
        return
    fewer = tokens - math.ceil((plan.peak_bytes - bound) / bytes_per_token)
    ways = [f"--tokens {fewer}"] if fewer >= 1 else []
    raise OutOfMemoryError(
        f"The comparison takes {size(plan.peak_bytes)} (Python, libraries and torch {size(plan.process_bytes)}, the "
        f"truth in float32 {size(plan.truth_bytes)}, a form of the weights {size(plan.form_bytes)}, logits "
        f"{size(plan.logits_bytes)}), but max_memory is {size(bound)}.",
        hint=f"Take {', or '.join([*ways, 'a smaller model'])}: the truth is computed in float32.",
    )
