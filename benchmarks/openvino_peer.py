"""OpenVINO GenAI as an engine to measure: its continuous batching pipeline, one `step()` a token, reading GGUF.

That pipeline is also what `LLMPipeline` runs on a CPU. Settings are OpenVINO's own, but for the threads, prompts of up
to 512 tokens in one step, and no prefix cache. It picks the most likely token itself, as part of each step. Its file
for bf16 is f16, as it doesn't read bf16; its keys and values are 8 bits wide, so it has no part in long contexts.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.work import Work

NAME = "OpenVINO"
FORMATS: Mapping[str, str] = MappingProxyType({"int4": "q4_0", "int8": "q8_0", "bf16": "f16"})
DOES_LONG_CONTEXT = False
_TOKENS_AT_ONCE = 512
BLOCK = 32  # tokens of one block of its cache, on CPUs


def missing(executor: str) -> str | None:
    """What isn't there to run it, in words; None if nothing."""
    return None if importlib.util.find_spec("openvino_genai") else "the package openvino-genai isn't installed"


def load(path: Path, width: str, threads: int, work: Work, executor: str) -> OpenVinoEngine:
    """Load a GGUF file."""
    return OpenVinoEngine(path, threads, work)


def open_pipeline(path: Path, threads: int, scheduler: Any) -> tuple[Any, int]:
    """A continuous batching pipeline over a GGUF file, and V, the size of its vocabulary."""
    import gguf
    import openvino_genai

    properties = {"INFERENCE_NUM_THREADS": threads}
    pipeline = openvino_genai.ContinuousBatchingPipeline(str(path), scheduler, "CPU", properties, {}, {})
    (vocab_size,) = (int(t.shape[1]) for t in gguf.GGUFReader(path).tensors if t.name == "token_embd.weight")
    return pipeline, vocab_size


class OpenVinoEngine:
    """A pipeline; its cache has room for the largest measure."""

    def __init__(self, path: Path, threads: int, work: Work) -> None:
        import openvino_genai

        scheduler = openvino_genai.SchedulerConfig()
        scheduler.max_num_batched_tokens = _TOKENS_AT_ONCE
        scheduler.max_num_seqs = max((1, *work.streams))
        scheduler.num_kv_blocks = -(-work.most_tokens // BLOCK) + 2 * scheduler.max_num_seqs
        scheduler.enable_prefix_caching = False
        self._pipeline, self.vocab_size = open_pipeline(path, threads, scheduler)
        self._requests = 0

    def open(self, sequences: int, tokens: int) -> OpenVinoSequences:
        """Requests are added by `prefill`."""
        first = self._requests
        self._requests += sequences
        return OpenVinoSequences(self._pipeline, range(first, first + sequences), tokens)


class OpenVinoSequences:
    """Requests that run in step."""

    def __init__(self, pipeline: Any, requests: range, tokens: int) -> None:
        self._pipeline = pipeline
        self._requests = requests
        self._tokens = tokens
        self._handles: list[Any] = []

    def prefill(self, prompts: NDArray[np.int32]) -> None:
        """Add the requests, and run until each has its first token."""
        import openvino
        import openvino_genai

        settings = openvino_genai.GenerationConfig()
        settings.do_sample = False
        settings.ignore_eos = True
        settings.max_new_tokens = self._tokens  # more than will be asked for
        self._handles = [
            self._pipeline.add_request(request, openvino.Tensor(prompt[None].astype(np.int64)), settings)
            for request, prompt in zip(self._requests, prompts, strict=True)
        ]
        while not all(handle.can_read() for handle in self._handles):
            self._pipeline.step()

    def step(self) -> None:
        """Run the pipeline for one token of every request."""
        self._pipeline.step()

    def close(self) -> None:
        """End the requests, and check that every step made a token of each."""
        made = {tokens_made(handle) for handle in self._handles}
        assert len(made) == 1, f"the requests fell out of step: {made} tokens"
        for handle in self._handles:
            handle.cancel()
        while self._pipeline.has_non_finished_requests():
            self._pipeline.step()


def tokens_made(handle: Any) -> int:
    """Take what a request has made and nobody has read; `read` alone would wait for more."""
    made = 0
    while handle.can_read():
        made += sum(len(output.generated_ids) for output in handle.read().values())
    return made
