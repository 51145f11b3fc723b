"""Many streams at once, some read slowly and half of them cut off at random: none is stuck, and nobody else waits.

The clients are tasks of this process; the server is a process of its own, on the bundled model, so that its memory and
tasks can be counted. The same number of well-behaved streams runs first, which is what the gaps are compared with.

The whole of it, 200 connections for 5 minutes:

    KAISHU_LONG_TESTS=1 python -m pytest -n 0 -s tests/server/test_load.py
"""

import asyncio
import contextlib
import json
import os
import random
import socket
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from tests.server.separate_server import SeparateServer, separate_server

WORDS = ("river", "stone", "light", "paper", "seven", "window", "garden", "table", "music", "winter", "silver")
SLOW_SHARE, CUT_SHARE = 0.2, 0.5
MAX_GROWTH_MIB = 64
STUCK_S = 240  # after which a stream that isn't over won't ever be


@dataclass
class Seen:
    """What came of the streams.

    gaps:      seconds between chunks that well-behaved clients got
    problems:  in words
    """

    gaps: list[float] = field(default_factory=list)
    whole: int = 0
    cut: int = 0
    slow: int = 0
    problems: list[str] = field(default_factory=list)

    @property
    def p99_s(self) -> float:
        return sorted(self.gaps)[int(len(self.gaps) * 0.99)]

    def __str__(self) -> str:
        middle = sorted(self.gaps)[len(self.gaps) // 2]
        return (
            f"{self.whole:,} whole, {self.cut:,} cut off, {self.slow:,} read slowly; "
            f"{len(self.gaps):,} gaps, median {middle * 1000:.0f} ms, 99th percentile {self.p99_s * 1000:.0f} ms, "
            f"longest {max(self.gaps) * 1000:.0f} ms"
        )


def request_of(chance: random.Random, *, is_large: bool) -> bytes:
    """The bytes of one streamed chat; prompts share beginnings now and then, so that pages are shared, too.

    is_large: its chunks have kilobytes, more than the system keeps for a reader that doesn't read
    """
    words = " ".join(chance.choices(WORDS, k=chance.randint(3, 40)))
    body = {
        "model": "tiny",
        "messages": [{"role": "user", "content": f"{chance.choice(WORDS[:4])} {words}"}],
        "max_tokens": chance.randint(8, 48),
        "ignore_eos": True,
        "stream": True,
        **({"logprobs": True, "top_logprobs": 20} if is_large else {}),
    }
    content = json.dumps(body).encode()
    head = ("POST /v1/chat/completions HTTP/1.1", "Host: localhost", "Content-Type: application/json")
    return "\r\n".join([*head, f"Content-Length: {len(content)}", "", ""]).encode() + content


async def connected(server: SeparateServer, *, is_slow: bool) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    host, port = server.url.removeprefix("http://").split(":")
    client = socket.socket()
    client.setblocking(False)
    if is_slow:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
    await asyncio.get_running_loop().sock_connect(client, (host, int(port)))
    return await asyncio.open_connection(sock=client, limit=4096 if is_slow else 1 << 20)


async def one_stream(server: SeparateServer, chance: random.Random, seen: Seen, *, misbehaves: bool) -> None:
    """One request on a connection of its own."""
    is_large = chance.random() < SLOW_SHARE
    is_slow, is_cut = misbehaves and is_large, misbehaves and chance.random() < CUT_SHARE
    reader, writer = await connected(server, is_slow=is_slow)
    try:
        writer.write(request_of(chance, is_large=is_large))
        status = await reader.readline()
        if b" 200 " not in status:
            seen.problems.append(f"{status!r} {await reader.read(500)!r}")
            return
        cut_after = chance.randint(0, 30) if is_cut else None
        seen.slow += is_slow
        num_chunks, before = 0, None
        async for data in events_of(reader):
            if data == b"[DONE]":
                seen.whole += 1
                return
            if data.startswith(b'{"error"'):
                seen.problems.append(data.decode())
            now = time.perf_counter()
            if before is not None and not is_slow and not is_cut:
                seen.gaps.append(now - before)
            before = now
            if cut_after is not None and num_chunks >= cut_after:
                seen.cut += 1
                writer.transport.abort()
                return
            num_chunks += 1
            if is_slow:
                await asyncio.sleep(chance.uniform(0.05, 0.3))
        seen.problems.append(f"a stream ended after {num_chunks} chunks without [DONE]")
    finally:
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


async def events_of(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    """The data of each event; lines may be longer than what the reader keeps."""
    line = b""
    while piece := await reader.read(4096):
        *lines, line = (line + piece).split(b"\n")
        for one in lines:
            if one.startswith(b"data: "):
                yield one.removeprefix(b"data: ").rstrip()


async def streams(server: SeparateServer, connections: int, seconds: float, *, misbehave: bool) -> Seen:
    """So many connections all the time, each a request after the other."""
    seen, end = Seen(), time.monotonic() + seconds

    async def connection(number: int) -> None:
        chance = random.Random(number)
        while time.monotonic() < end:
            async with asyncio.timeout(STUCK_S):
                await one_stream(server, chance, seen, misbehaves=misbehave)

    await asyncio.gather(*(connection(number) for number in range(connections)))
    return seen


def wait_until_idle(server: SeparateServer, num_tasks: int) -> None:
    end = time.monotonic() + 60
    names = ("kaishu_kv_pages_held", "vllm:num_requests_running", "vllm:num_requests_waiting")
    while any(server.gauge(name) for name in names) or server.num_tasks > num_tasks:
        left = {name: server.gauge(name) for name in names}
        assert time.monotonic() < end, f"{left}, {server.num_tasks} tasks, {num_tasks} before"
        time.sleep(0.1)


def load(connections: int, seconds: float, *, unloaded_seconds: float) -> tuple[Seen, Seen]:
    """return: what well-behaved streams saw, and what they saw among others"""
    with separate_server(max_waiting=2 * connections) as server:
        server.check_use()
        num_tasks = server.num_tasks
        behaved = asyncio.run(streams(server, connections, unloaded_seconds, misbehave=False))
        wait_until_idle(server, num_tasks)
        before_mib = server.mebibytes
        among = asyncio.run(streams(server, connections, seconds, misbehave=True))
        wait_until_idle(server, num_tasks)
        after_mib = server.mebibytes
        print(f"\n{connections} connections, well-behaved for {unloaded_seconds:g} s: {behaved}")
        print(f"{connections} connections, as they come for {seconds:g} s: {among}")
        print(f"99th percentile: {among.p99_s / behaved.p99_s:.2f} times as long")
        print(f"memory {before_mib:.0f} MiB, then {after_mib:.0f} MiB; tasks {num_tasks}, then {server.num_tasks}")
        server.check_use()
    for seen in (behaved, among):
        assert not seen.problems, seen.problems[:5]
        assert seen.whole
    assert among.cut and among.slow
    assert after_mib - before_mib < MAX_GROWTH_MIB
    return behaved, among


def test_streams_that_are_cut_off_or_read_slowly_leave_nothing_behind() -> None:
    load(30, 4, unloaded_seconds=2)


if os.environ.get("KAISHU_LONG_TESTS"):

    def test_two_hundred_connections_for_five_minutes_leave_nothing_behind_and_hold_nobody_up() -> None:
        behaved, among = load(200, 300, unloaded_seconds=60)
        assert among.p99_s <= 3 * behaved.p99_s
