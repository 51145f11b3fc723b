"""A server on the bundled model in a process of its own, whose memory and tasks can be counted from outside.

Owns that process. Started by `separate_server(**settings)`; run as a program it is the process itself. Beside the
server's own routes it has GET /tasks: how many tasks its event loop has.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil
import uvicorn

from kaishu.server.app import create_app
from kaishu.server.run import listening_sockets
from kaishu.server.settings import ServerSettings
from kaishu.server.waiting import EVENT_STREAM

ROOT = Path(__file__).parent.parent.parent
HI = [{"role": "user", "content": "Hi"}]


@dataclass(frozen=True)
class SeparateServer:
    """A server that is ready. client: of httpx, with the server's address as its base"""

    url: str
    process: psutil.Process
    client: httpx.Client

    @property
    def mebibytes(self) -> float:
        """Its memory that is in use."""
        return self.process.memory_info().rss / (1 << 20)

    @property
    def num_tasks(self) -> int:
        """Tasks of its event loop, those of this question not counted."""
        return int(self.client.get("/tasks").text)

    def gauge(self, name: str) -> float:
        """A number of /metrics."""
        lines = self.client.get("/metrics").text.splitlines()
        return next(float(line.rpartition(" ")[2]) for line in lines if line.startswith((f"{name}{{", f"{name} ")))

    def check_use(self) -> None:
        """A usual request works."""
        body = {"model": "tiny", "messages": HI, "max_tokens": 2}
        answer = self.client.post("/v1/chat/completions", json=body)
        assert answer.status_code == 200, answer.text
        with self.client.stream("POST", "/v1/chat/completions", json={**body, "stream": True}) as streamed:
            assert streamed.headers["content-type"] == EVENT_STREAM
            assert streamed.read().endswith(b"data: [DONE]\n\n")


@contextmanager
def separate_server(**settings: Any) -> Iterator[SeparateServer]:
    """Start one, and end it."""
    command = [sys.executable, "-m", "tests.server.separate_server", json.dumps(settings)]
    # glibc keeps what threads have freed apart for each of them, some tens of MiB that come and go: with one arena the
    # process has what is really kept.
    environment = {**os.environ, "MALLOC_ARENA_MAX": "1"}
    with subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            url = process.stdout.readline().strip()
            with httpx.Client(base_url=url, timeout=30) as client:
                yield SeparateServer(url, psutil.Process(process.pid), client)
        finally:
            process.terminate()
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
                raise


def main() -> None:
    from kaishu.loading import load_model
    from tests.server.conftest import service_on

    logging.disable(logging.WARNING)  # asyncio warns of each connection that broke off while something was sent
    settings = ServerSettings(port=0, **json.loads(sys.argv[1]))
    loaded = load_model("tiny", threads=1, context_tokens=1024, say=lambda _: None)
    app = create_app(settings, service_on(loaded), environment={})
    app.add_api_route("/tasks", _tasks)
    sockets = listening_sockets(settings.host, 0)
    server = uvicorn.Server(uvicorn.Config(app, log_config=None, ws="none", timeout_graceful_shutdown=1))

    async def serve() -> None:
        serving = asyncio.create_task(server.serve(sockets))
        while app.state.life.state == "loading":
            await asyncio.sleep(0.01)
        print(f"http://127.0.0.1:{sockets[0].getsockname()[1]}", flush=True)
        await serving

    asyncio.run(serve())


async def _tasks() -> int:
    return len(asyncio.all_tasks())


if __name__ == "__main__":
    main()
