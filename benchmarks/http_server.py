"""A server behind HTTP as an engine to measure: a process of its own, and a client that speaks OpenAI's chat to it.

Owns the process's life and the client, which does as little as it can, because it runs on the cores that are measured:
plain sockets, and no JSON but for each answer's usage. Satisfies serving_load.Server. serving_kaishu_http.py and
serving_llama_cpp_http.py say how each server is started.

Prompts are English words, one token each in Qwen's vocabulary, so that text, template and tokenising are part of what
is measured. A chunk counts as one token when it comes, and with the last one comes what the usage says beyond that.
"""

from __future__ import annotations

import asyncio
import atexit
import json
import queue
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from benchmarks.serving_load import Request

WORDS = """
time people way day man thing woman life child world school state family student group country problem hand
part place case week company system program question work government number night point home water room mother
area money story fact month lot right study book eye job word business issue side kind head house service
friend father power hour game line end member law car city community name president team minute idea body
information
""".split()  # noqa: SIM905  # a list of as many strings would be a page long
_LONGEST_START_SECONDS = 600


def free_port() -> int:
    """A port of loopback that nobody listens at now."""
    import socket

    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port


def text_of(prompt: Sequence[int]) -> str:
    """A prompt as words: one for each of its tokens."""
    return " ".join(WORDS[token % len(WORDS)] for token in prompt)


class HttpServer:
    """A server's process, and the requests that are on their way.

    command: starts it; `ready` is a path that answers 200 once it can serve
    fields:  of each body, beside messages, max_tokens and stream
    """

    def __init__(self, command: Sequence[str], port: int, ready: str, fields: Mapping[str, Any]) -> None:
        self.vocab_size = len(WORDS)
        self._port, self._fields = port, dict(fields)
        self._found: queue.SimpleQueue[tuple[int, int] | BaseException] = queue.SimpleQueue()
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        atexit.register(self._process.kill)
        self._said: list[str] = []
        self._asked: set[Future[None]] = set()
        threading.Thread(target=self._listen, daemon=True).start()
        self._wait(f"http://127.0.0.1:{port}{ready}")
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, daemon=True).start()

    def add(self, request: Request) -> None:
        """Send a request."""
        asked = asyncio.run_coroutine_threadsafe(self._ask(request), self._loop)
        self._asked.add(asked)  # nobody else keeps it
        asked.add_done_callback(self._asked.discard)

    def step(self) -> Iterator[tuple[int, int]]:
        """Wait for tokens. return: the numbers of the requests that got some, and how many"""
        found = [self._found.get(timeout=_LONGEST_START_SECONDS)]
        while not self._found.empty():
            found.append(self._found.get())
        for one in found:
            if isinstance(one, BaseException):
                raise one
            yield one

    def close(self) -> None:
        """End the server."""
        self._process.terminate()
        self._process.wait(60)

    def peak_memory_bytes(self) -> int:
        """Of the server's process."""
        with Path(f"/proc/{self._process.pid}/status").open() as lines:
            return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))

    async def _ask(self, request: Request) -> None:
        try:
            await self._ask_and_read(request)
        except Exception as problem:
            self._found.put(problem)

    async def _ask_and_read(self, request: Request) -> None:
        messages = [{"role": "user", "content": text_of(request.prompt)}]
        fields = {"messages": messages, "max_tokens": request.output_tokens, "stream": True, **self._fields}
        body = json.dumps(fields).encode()
        head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1:{self._port}\r\nConnection: close\r\n"
        head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port, limit=1 << 22)
        writer.write(head.encode() + body)
        status = await reader.readline()
        if b" 200 " not in status:
            raise RuntimeError(f"{status!r} {(await reader.read())[-500:]!r}")
        made = 0
        while line := await reader.readline():
            if line.startswith(b'data: {"error"'):
                raise RuntimeError(line.decode())
            # The first chunk of an answer may carry its role alone, and the last one its end.
            if line.startswith(b"data: {") and made < request.output_tokens and _has_text(line):
                made += 1
                if made < request.output_tokens:  # the last one is counted below
                    self._found.put((request.number, 1))
        writer.close()
        self._found.put((request.number, request.output_tokens - min(made, request.output_tokens - 1)))

    def _listen(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self._said = [*self._said[-20:], line]

    def _wait(self, url: str) -> None:
        end = time.monotonic() + _LONGEST_START_SECONDS
        while time.monotonic() < end:
            if self._process.poll() is not None:
                raise RuntimeError(f"the server ended: {' | '.join(self._said)}")
            try:
                with urllib.request.urlopen(url, timeout=5) as answer:
                    if answer.status == 200:
                        return
            except (urllib.error.URLError, OSError):
                time.sleep(0.1)
        raise RuntimeError("the server doesn't become ready")


def _has_text(line: bytes) -> bool:
    return b'"content":"' in line.replace(b'"content":""', b"").replace(b'": "', b'":"') or b'"reasoning' in line


def python() -> str:
    """The interpreter that runs the benchmark, which has the servers' packages."""
    return sys.executable
