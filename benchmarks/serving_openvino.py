"""OpenVINO GenAI serving many requests: its ContinuousBatchingPipeline, requests added between its steps.

The pipeline schedules, batches and picks the most likely tokens; after each step every unfinished request's handle is
asked for what it has. The settings are those of its scheduler that were found best for this load. Its prefix cache is
on only where prompts share their beginning; its blocks are enough for all sequences that may run at once, so that
nothing is ever pre-empted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from benchmarks import openvino_peer
from benchmarks.openvino_peer import BLOCK, open_pipeline, tokens_made
from benchmarks.serving_load import Load, Request

NAME = openvino_peer.NAME
missing = openvino_peer.missing
SETTINGS: Mapping[str, int] = MappingProxyType(
    {"max_num_batched_tokens": 512, "max_num_seqs": 32, "dynamic_split_fuse": 1}
)


def load(
    path: Path, width: str, threads: int, load: Load, executor: str, settings: Mapping[str, int]
) -> OpenVinoServer:
    """Load a GGUF file.

    settings: SETTINGS, or others under the same names: fields of OpenVINO's SchedulerConfig
    """
    import openvino_genai

    scheduler = openvino_genai.SchedulerConfig()
    scheduler.max_num_batched_tokens = settings["max_num_batched_tokens"]
    scheduler.max_num_seqs = settings["max_num_seqs"]
    scheduler.dynamic_split_fuse = bool(settings["dynamic_split_fuse"])
    scheduler.num_kv_blocks = settings["max_num_seqs"] * (-(-load.most_tokens // BLOCK) + 2)
    scheduler.enable_prefix_caching = load.shared_prompt > 0
    return OpenVinoServer(*open_pipeline(path, threads, scheduler))


class OpenVinoServer:
    """The pipeline, and the handles of its unfinished requests."""

    def __init__(self, pipeline: Any, vocab_size: int) -> None:
        self.vocab_size = vocab_size
        self._pipeline = pipeline
        self._handles: dict[int, Any] = {}
        self._lacking: dict[int, int] = {}

    def add(self, request: Request) -> None:
        """Add a request; the pipeline queues it."""
        import openvino
        import openvino_genai

        settings = openvino_genai.GenerationConfig()
        settings.do_sample = False
        settings.ignore_eos = True
        settings.max_new_tokens = request.output_tokens
        prompt = openvino.Tensor(np.asarray(request.prompt, np.int64)[None])  # [1, n]
        self._handles[request.number] = self._pipeline.add_request(request.number, prompt, settings)
        self._lacking[request.number] = request.output_tokens

    def step(self) -> Iterator[tuple[int, int]]:
        """Step the pipeline. return: request numbers and how many tokens each made"""
        self._pipeline.step()
        for number, handle in list(self._handles.items()):
            if made := tokens_made(handle):
                self._lacking[number] -= made
                if self._lacking[number] == 0:
                    del self._handles[number], self._lacking[number]
                yield number, made
