"""Which executor computes a model, and in which form its weights are kept: the choice, its reason, and making it.

Owns the rules behind `executor=`, `weights=`, `head=`, `kv=` and `device=`. Knows the two executors by their
constructors alone. Used by loading.py and by the commands that measure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, get_args

from kaishu.batch import Executor
from kaishu.checkpoint import Checkpoint, StoredTensor
from kaishu.config import ModelConfig
from kaishu.errors import InvalidParameterError, MissingDependencyError

ExecutorName = Literal["auto", "cpu", "reference"]
WeightsName = Literal["auto", "float32", "bf16", "int8", "int4"]
HeadName = Literal["auto", "bf16", "int8", "int4"]
KeyValueName = Literal["auto", "bf16", "int8"]
REFERENCE_WEIGHTS = ("float32", "bf16")
CPU_WEIGHTS = ("bf16", "int8", "int4")
REFERENCE_PAGE_TOKENS = 16
Say = Callable[[str], None]


@dataclass(frozen=True)
class Choice:
    """What was chosen.

    weights: how the layers' weights are kept; "stored" is as the checkpoint has each of them
    head:    how the output head is kept; the reference model has no such choice
    reason:  why the weights are kept so, for the start line
    kv:      how the kernels keep keys and values; the reference model has no such choice
    """

    executor: Literal["cpu", "reference"]
    weights: Literal["float32", "bf16", "int8", "int4", "stored"]
    head: Literal["bf16", "int8", "int4", "stored"] | None
    device: str
    reason: str
    kv: Literal["bf16", "int8"] = "bf16"


def choose(
    config: ModelConfig, executor: str, weights: str, head: str, device: str, *, kv: str = "auto", formats: str = ""
) -> Choice:
    """Settle every "auto", and refuse what doesn't go together.

    config:  the model; its dtype is what the checkpoint stores
    formats: see quantised_formats
    raises:  InvalidParameterError
    """
    _check("executor", executor, get_args(ExecutorName))
    _check("weights", weights, get_args(WeightsName))
    _check("head", head, get_args(HeadName))
    _check("kv", kv, get_args(KeyValueName))
    if not isinstance(device, str):
        raise InvalidParameterError("device", device, "a string: cpu, or the name of a torch device")
    wants_reference = device != "cpu" or weights == "float32"
    if executor == "reference" or (executor == "auto" and wants_reference):
        _check("kv", kv, ("auto",), hint="Only executor='cpu' keeps keys and values in a form that can be chosen.")
        return _reference(config, weights, head, device)
    if device != "cpu":
        raise InvalidParameterError("device", device, "cpu with the CPU executor", hint="Or take executor='reference'.")
    _check("weights", weights, ("auto", *CPU_WEIGHTS), hint="float32 is computed by executor='reference'.")
    return _cpu(config, weights, head, kv, formats)


def quantised_formats(checkpoint: Checkpoint) -> str:
    """The formats of a checkpoint's quantised tensors, the most frequent first; "" if there are none."""
    counts = Counter(tensor.dtype for tensor in checkpoint.tensors.values() if not isinstance(tensor, StoredTensor))
    return ", ".join(f"{count:,} {dtype}" for dtype, count in counts.most_common())


def _cpu(config: ModelConfig, weights: str, head: str, kv: str, formats: str) -> Choice:
    kept, reason = weights, "as asked"
    if weights == "auto" and formats:
        kept, reason = "stored", formats
    elif weights == "auto":
        kept = "bf16"
        reason = "as in the checkpoint" if config.dtype == "bfloat16" else f"the checkpoint's {config.dtype}, rounded"
    # The head decides between tokens that are close: int8 costs it next to nothing, int4 does
    # (`kaishu eval`, docs/cli.md).
    own_head = head if head != "auto" else kept if kept in ("bf16", "stored") else "int8"
    return Choice("cpu", kept, own_head, "cpu", reason, "bf16" if kv == "auto" else kv)  # type: ignore[arg-type]


def _reference(config: ModelConfig, weights: str, head: str, device: str) -> Choice:
    _check("weights", weights, ("auto", *REFERENCE_WEIGHTS), hint="int8 and int4 are computed by executor='cpu'.")
    _check("head", head, ("auto",), hint="Only executor='cpu' keeps the head in a form of its own.")
    if weights == "auto":
        # On a CPU torch computes in float32 at least as fast as in bfloat16, and exactly.
        is_exact = device == "cpu" or config.dtype == "float32"
        return Choice("reference", "float32" if is_exact else "bf16", None, device, "the default of the reference")
    return Choice("reference", "bf16" if weights == "bf16" else "float32", None, device, "as asked")


def _check(field: str, value: object, allowed: tuple[str, ...], *, hint: str | None = None) -> None:
    if value not in allowed:
        raise InvalidParameterError(field, value, " or ".join(repr(choice) for choice in allowed), hint=hint)


def make_executor(
    checkpoint: Checkpoint, choice: Choice, *, threads: int | None, context_tokens: int, say: Say, sequences: int = 1
) -> tuple[Executor, str]:
    """Build what was chosen.

    threads:        how many CPU threads compute; None leaves it to the executor
    context_tokens: how many positions a sequence may have
    sequences:      how many of that length have pages at the same time
    say:            told what takes long, in a sentence
    return:         the executor, and one line that describes it
    raises:         CheckpointError, OutOfMemoryError; MissingDependencyError for the reference model without torch
    """
    if choice.executor == "reference":
        return _make_reference(checkpoint, choice, threads, context_tokens * sequences)
    from kaishu.cpu.executor import CpuExecutor
    from kaishu.cpu.target import current_target

    assert choice.weights != "float32" and choice.head is not None, "the CPU executor has no float32"
    made = CpuExecutor.from_checkpoint(
        checkpoint,
        weights=choice.weights,
        head=choice.head,
        kv=choice.kv,
        threads=threads,
        context_tokens=context_tokens * sequences,
        say=say,
    )
    head = "" if choice.head == choice.weights else f", {choice.head} head"
    kv = "" if choice.kv == "bf16" else f", {choice.kv} keys and values"
    count = f"{made.threads} thread{'' if made.threads == 1 else 's'}"
    weights = "weights as stored" if choice.weights == "stored" else f"{choice.weights} weights"
    return made, f"CPU kernels ({current_target().name}), {weights} ({choice.reason}){head}{kv}, {count}"


def _make_reference(
    checkpoint: Checkpoint, choice: Choice, threads: int | None, context_tokens: int
) -> tuple[Executor, str]:
    try:  # torch takes most of a second to import, and only this executor needs it
        from kaishu.reference.executor import ReferenceExecutor
        from kaishu.reference.model import Model
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise MissingDependencyError("The reference model", package="torch", extra="torch") from None

    dtype: Literal["float32", "bfloat16"] = "bfloat16" if choice.weights == "bf16" else "float32"
    model = Model.from_checkpoint(checkpoint, device=choice.device, dtype=dtype)
    num_pages = -(-context_tokens // REFERENCE_PAGE_TOKENS)
    made = ReferenceExecutor(model, num_pages, REFERENCE_PAGE_TOKENS, threads=threads)
    return made, f"reference executor (PyTorch), {dtype} on {choice.device}"
