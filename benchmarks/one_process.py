"""One engine at one width in a process of its own: loads it, does the work, prints one line of JSON.

    python -m benchmarks.one_process '{"peer": "llama.cpp", ...}'

The fields are Job's. Its memory is then its own, and nothing that another engine left behind (threads, allocators,
warm caches inside libraries) is in its way. Started by rounds.py.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import Any

from benchmarks import kaishu_peer, llama_cpp_peer, openvino_peer, transformers_peer
from benchmarks.work import Work, measure

OURS = kaishu_peer.NAME
PEERS: Mapping[str, ModuleType] = MappingProxyType(
    {peer.NAME: peer for peer in (kaishu_peer, llama_cpp_peer, openvino_peer, transformers_peer)}
)


@dataclass(frozen=True)
class Job:
    """What one process does.

    peer:     a key of PEERS
    width:    "int4", "int8" or "bf16"
    path:     the model in the format that the peer reads at that width
    executor: which of ours; the others don't look at it
    round:    from 1; also the seed of the prompts
    """

    peer: str
    width: str
    path: str
    threads: int
    executor: str
    round: int
    work: Work

    @classmethod
    def from_json(cls, text: str) -> Job:
        """Read what to_json wrote."""
        fields = json.loads(text)
        work = fields.pop("work")
        return cls(**fields, work=Work(**{**work, "streams": tuple(work["streams"])}))

    def to_json(self) -> str:
        """One line."""
        return json.dumps(asdict(self))


def run(job: Job) -> dict[str, Any]:
    """Do the job. return: peer, width, round, and the values of all measures"""
    peer = PEERS[job.peer]
    work = job.work if peer.DOES_LONG_CONTEXT else replace(job.work, long_prompt=None)
    start = time.perf_counter()
    engine = peer.load(Path(job.path), job.width, job.threads, work, job.executor)
    loaded = time.perf_counter() - start
    values = dict(measure(engine, work, seed=job.round))
    return {"peer": job.peer, "width": job.width, "round": job.round, "load_seconds": loaded, "values": values}


if __name__ == "__main__":
    print(json.dumps(run(Job.from_json(sys.argv[1]))), flush=True)
