"""One engine serving one load in a process of its own: loads it, warms it up, serves, prints one line of JSON.

    python -m benchmarks.serving_process '{"peer": "llama.cpp", ...}'

The fields are ServingJob's. Started by serving.py through rounds.py.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import Any

from benchmarks import (
    serving_kaishu,
    serving_kaishu_http,
    serving_llama_cpp,
    serving_llama_cpp_http,
    serving_openvino,
)
from benchmarks.serving_load import Load, Server, serve, values
from kaishu.benchmark import peak_memory_bytes

SERVERS: Mapping[str, ModuleType] = MappingProxyType(
    {server.NAME: server for server in (serving_kaishu, serving_llama_cpp, serving_openvino)}
)
HTTP_SERVERS: Mapping[str, ModuleType] = MappingProxyType(
    {server.NAME: server for server in (serving_kaishu_http, serving_llama_cpp_http)}
)


@dataclass(frozen=True)
class ServingJob:
    """What one process does.

    peer:     a key of SERVERS, or of HTTP_SERVERS
    width:    "int4", "int8" or "bf16"
    path:     the model in the format that the peer reads at that width
    executor: which of ours; the others don't look at it
    round:    from 1; also the seed of the load
    settings: the engine's own, all of its SETTINGS
    over_http: as a server in a process of its own
    """

    peer: str
    width: str
    path: str
    threads: int
    executor: str
    round: int
    load: Load
    settings: Mapping[str, int]
    over_http: bool = False

    @classmethod
    def from_json(cls, text: str) -> ServingJob:
        """Read what to_json wrote."""
        fields = json.loads(text)
        return cls(**{**fields, "load": Load.from_fields(fields["load"])})

    def to_json(self) -> str:
        """One line."""
        return json.dumps(asdict(self))


def run(job: ServingJob) -> dict[str, Any]:
    """Do the job. return: peer, width, round, the values of all measures, and what else is worth knowing"""
    engine = (HTTP_SERVERS if job.over_http else SERVERS)[job.peer]
    start = time.perf_counter()
    server = engine.load(Path(job.path), job.width, job.threads, job.load, job.executor, job.settings)
    loaded = time.perf_counter() - start
    told = {"peer": job.peer, "width": job.width, "round": job.round, "load_seconds": loaded}
    told["over_http"] = job.over_http
    return {**told, "settings": dict(job.settings), **serve_load(server, job.load, seed=job.round)}


def serve_load(server: Server, load: Load, *, seed: int) -> dict[str, Any]:
    """Warm the engine up and serve the load once."""
    serve(server, load.draw_warm_up(server.vocab_size, seed))
    requests = load.draw(server.vocab_size, seed)
    record = serve(server, requests)
    return {
        "values": values(requests, record),
        "prompt_tokens": sum(len(request.prompt) for request in requests),
        "output_tokens": sum(request.output_tokens for request in requests),
        "steps": record.steps,
        "idle_seconds": record.idle_seconds,
        "peak_memory_mb": peak_memory_bytes() / 1e6,
    }


if __name__ == "__main__":
    print(json.dumps(run(ServingJob.from_json(sys.argv[1]))), flush=True)
