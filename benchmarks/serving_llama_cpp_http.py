"""llama.cpp behind llama-cpp-python's server, which answers one request after the other (http_server.py)."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from benchmarks import llama_cpp_peer
from benchmarks.http_server import HttpServer, free_port, python
from benchmarks.serving_load import Load

NAME = llama_cpp_peer.NAME
SETTINGS: Mapping[str, int] = MappingProxyType({"n_batch": 512})


def missing(executor: str) -> str | None:
    """What isn't there to run it, in words; None if nothing."""
    if why := llama_cpp_peer.missing(executor):
        return why
    lacking = [name for name in ("fastapi", "sse_starlette", "starlette_context") if not importlib.util.find_spec(name)]
    return f"llama-cpp-python[server] isn't installed: {lacking[0]} is missing" if lacking else None


def load(path: Path, width: str, threads: int, load: Load, executor: str, settings: Mapping[str, int]) -> HttpServer:
    """Start it."""
    port = free_port()
    command = [python(), "-m", "llama_cpp.server", "--model", str(path), "--port", str(port), "--host", "127.0.0.1"]
    command += ["--n_threads", str(threads), "--n_threads_batch", str(threads), "--n_batch", str(settings["n_batch"])]
    # Without this a new request breaks off the one that is being answered.
    command += ["--n_ctx", str(load.most_tokens + 96), "--interrupt_requests", "False", "--chat_format", "chatml"]
    ends = {"151643": -100, "151645": -100}
    return HttpServer(command, port, "/v1/models", {"temperature": 0, "logit_bias": ends})
