"""Kaishu serving many requests: the core of its engine, `add` and `step`, without the thread that usually drives it.

The engine schedules, packs batches and picks tokens; all of that is inside the steps that are timed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal

from benchmarks import kaishu_peer
from benchmarks.serving_load import Load, Request

if TYPE_CHECKING:
    from kaishu.engine.core import EngineCore

NAME = kaishu_peer.NAME
missing = kaishu_peer.missing
SETTINGS: Mapping[str, int] = MappingProxyType({"running": 32, "beside_tokens": 64, "speculation": 0, "kv_bits": 16})
_MOST_CONTEXT = 32_768  # of Qwen3's shapes


def load(path: Path, width: str, threads: int, load: Load, executor: str, settings: Mapping[str, int]) -> KaishuServer:
    """Load a checkpoint under an engine of its own, as `kaishu` would with `--weights` and `--head`.

    settings: SETTINGS, or others under the same names: fields of the engine's Budget, 1 or 0 for speculation, and 16
              or 8 bits for keys and values (OpenVINO keeps them in 8, llama.cpp in 16)
    """
    from kaishu.engine.core import EngineSettings
    from kaishu.engine.scheduler import Budget
    from kaishu.loading import load_model

    assert executor == "cpu", "the engine is measured with our kernels"
    context = min(settings["running"] * (load.most_tokens + 64), _MOST_CONTEXT)
    form: Literal["int4", "int8", "bf16"] = width  # type: ignore[assignment]
    kv: Literal["int8", "bf16"] = "int8" if settings["kv_bits"] == 8 else "bf16"
    loaded = load_model(path, weights=form, head=form, kv=kv, threads=threads, context_tokens=context)
    budget = Budget(running=settings["running"], beside_tokens=settings["beside_tokens"])
    core = loaded.start_engine(EngineSettings(budget, speculation=bool(settings["speculation"])))
    return KaishuServer(core, loaded.executor.vocab_size)


class KaishuServer:
    """A core, and the benchmark's numbers of its requests."""

    def __init__(self, core: EngineCore, vocab_size: int) -> None:
        self.vocab_size = vocab_size
        self._core = core
        self._numbers: dict[int, int] = {}

    def add(self, request: Request) -> None:
        """Add a request, greedy and without an end before its last token; the core queues it."""
        from kaishu.config import GenerationDefaults
        from kaishu.engine.jobs import Generate
        from kaishu.sampling import SamplingParams

        params = SamplingParams(temperature=0.0, max_tokens=request.output_tokens, ignore_eos=True)
        stream = self._core.add(Generate(request.prompt, params.with_defaults(GenerationDefaults())))
        self._numbers[stream.number] = request.number

    def step(self) -> Iterator[tuple[int, int]]:
        """Step the core. return: request numbers and how many tokens each made"""
        from kaishu.engine.stream import TextPiece

        for stream in self._core.step():
            tokens = sum(len(event.token_ids) for event in stream.take() if isinstance(event, TextPiece))
            if tokens:
                yield self._numbers[stream.number], tokens
