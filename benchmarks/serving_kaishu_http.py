"""Kaishu's server: `kaishu serve`, measured over HTTP (http_server.py)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from benchmarks import serving_kaishu
from benchmarks.http_server import HttpServer, free_port, python
from benchmarks.serving_load import Load

NAME = serving_kaishu.NAME
SETTINGS = serving_kaishu.SETTINGS
missing = serving_kaishu.missing


def load(path: Path, width: str, threads: int, load: Load, executor: str, settings: Mapping[str, int]) -> HttpServer:
    """Start it. settings: as for serving_kaishu; beside_tokens stays the server's own"""
    assert executor == "cpu", "the server is measured with our kernels"
    port = free_port()
    context = settings["running"] * (load.most_tokens + 96)
    command = [python(), "-m", "kaishu", "serve", str(path), "--port", str(port), "--threads", str(threads)]
    command += ["--weights", width, "--head", width, "--kv", "int8" if settings["kv_bits"] == 8 else "bf16"]
    command += ["--context", str(min(context, 32_768)), "--max-running", str(settings["running"]), "--names", "it"]
    if not settings["speculation"]:
        command += ["--no-speculation"]
    return HttpServer(command, port, "/ready", {"model": "it", "temperature": 0, "ignore_eos": True})
