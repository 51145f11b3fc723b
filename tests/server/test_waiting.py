"""Waiting for an answer: the client leaves, a time is up, the client reads nothing; each ends the work, and only it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import pytest
from starlette.requests import Request

from kaishu.errors import InvalidRequestError
from kaishu.server.refusals import LEFT, RefusedError
from kaishu.server.settings import ServerSettings
from kaishu.server.waiting import ClientLeft, EventStream, answer_of

PATIENT = ServerSettings(port=0)
NEVER = 1000.0
BOUND_S = 20  # for what would never end if it were broken


def completed(work: Coroutine[Any, Any, Any]) -> Any:
    async def bounded() -> Any:
        async with asyncio.timeout(BOUND_S):
            return await work

    return asyncio.run(bounded())


class Client:
    """The other side of one request.

    leaves_after_s: when it closes the connection
    takes:          how many messages it takes; it reads none after them
    """

    def __init__(self, leaves_after_s: float = NEVER, takes: int = 1000) -> None:
        self.scope: dict[str, Any] = {"type": "http", "headers": [], "state": {"request_id": "x"}}
        self.sent: list[dict[str, Any]] = []
        self._leaves_after_s, self._takes = leaves_after_s, takes

    async def receive(self) -> dict[str, Any]:
        await asyncio.sleep(self._leaves_after_s)
        return {"type": "http.disconnect"}

    async def send(self, message: dict[str, Any]) -> None:
        if len(self.sent) >= self._takes:
            await asyncio.sleep(NEVER)
        self.sent.append(message)

    @property
    def body(self) -> bytes:
        return b"".join(message.get("body", b"") for message in self.sent)

    @property
    def is_whole(self) -> bool:
        """The answer was ended, as HTTP has it."""
        return bool(self.sent) and self.sent[-1].get("more_body") is False


class Source:
    """Events, one a few milliseconds.

    fails_at: before this event
    """

    def __init__(self, count: int, *, fails_at: int | None = None, error: Exception | None = None) -> None:
        self._count, self._fails_at = count, fails_at
        self._error = error or InvalidRequestError("no such thing", field="messages")
        self.is_closed, self.aborts, self.num_given = False, 0, 0

    async def events(self) -> AsyncIterator[bytes]:
        try:
            for i in range(self._count):
                await asyncio.sleep(0.002)
                if i == self._fails_at:
                    raise self._error
                self.num_given += 1
                yield b"%d;" % i
        finally:
            self.is_closed = True

    def abort(self) -> None:
        self.aborts += 1

    def stream(self, settings: ServerSettings = PATIENT, **ping: Any) -> EventStream:
        return EventStream(
            self.events(),
            settings,
            lambda error: b"error: " + str(error).encode(),
            abort=self.abort,
            headers={"X": "y"},
            **ping,
        )

    @property
    def is_over(self) -> bool:
        return self.is_closed and self.aborts == 1


def run(source: Source, client: Client, **settings: float) -> None:
    """Send all, and see that nothing stays behind."""

    async def main() -> None:
        stream = source.stream(ServerSettings(port=0, **settings))
        try:
            await stream(client.scope, client.receive, client.send)
        finally:
            assert source.is_over, "the work is ended, whatever happened"
            assert asyncio.all_tasks() == {asyncio.current_task()}, "no task is left"

    completed(main())


def test_events_are_sent_one_by_one_as_they_come():
    source, client = Source(3), Client()
    run(source, client)
    start, *bodies = client.sent
    assert start["status"] == 200
    headers = {name.decode(): value.decode() for name, value in start["headers"]}
    assert headers["content-type"] == "text/event-stream; charset=utf-8" and headers["x"] == "y"
    assert headers["cache-control"] == "no-cache" and "content-length" not in headers
    assert [message["body"] for message in bodies] == [b"0;", b"1;", b"2;", b""] and client.is_whole
    assert "kaishu.status" not in client.scope


def test_a_stream_of_no_events_is_an_empty_answer():
    client = Client()
    run(Source(0), client)
    assert client.body == b"" and client.is_whole


def test_an_error_before_the_first_event_is_an_answer_of_its_own():
    client = Client()
    with pytest.raises(InvalidRequestError):
        run(Source(3, fails_at=0), client)
    assert client.sent == []


def test_a_later_error_is_an_event_of_its_own_and_the_last():
    client = Client()
    run(Source(3, fails_at=2), client)
    assert client.body == b"0;1;error: no such thing" and client.is_whole
    assert client.scope["kaishu.status"] == 400


def test_a_bug_in_a_stream_is_told_and_comes_into_the_log(caplog):
    client = Client()
    run(Source(3, fails_at=1, error=ZeroDivisionError("secret")), client)
    assert client.is_whole and client.scope["kaishu.status"] == 500
    assert any(record.exc_info and record.exc_info[0] is ZeroDivisionError for record in caplog.records)


def test_a_client_that_leaves_ends_the_work():
    source, client = Source(10_000), Client(leaves_after_s=0.05)
    run(source, client)
    assert 1 < source.num_given < 1000 and not client.is_whole
    assert client.scope["kaishu.status"] == LEFT


def test_a_client_that_leaves_before_the_first_event_ends_the_work():
    source, client = Source(10_000, fails_at=None), Client(leaves_after_s=0.0)
    run(source, client)
    assert client.sent == [] and client.scope["kaishu.status"] == LEFT


@pytest.mark.parametrize("takes", [0, 1, 3])
def test_a_client_that_reads_nothing_ends_the_work(takes):
    source, client = Source(10_000), Client(takes=takes)
    run(source, client, send_timeout_s=0.05)
    assert source.num_given < 100 and client.scope["kaishu.status"] == LEFT


def test_when_the_time_is_up_a_stream_ends_with_the_error():
    source, client = Source(10_000), Client()
    run(source, client, request_timeout_s=0.05)
    assert client.body.startswith(b"0;1;") and client.is_whole
    assert b";error: The answer was not complete within 0.05 s." in client.body
    assert client.scope["kaishu.status"] == 504


def test_when_the_time_is_up_before_the_first_event_it_is_an_answer_with_504():
    class Silent(Source):
        async def events(self) -> AsyncIterator[bytes]:
            try:
                await asyncio.sleep(NEVER)
                yield b""
            finally:
                self.is_closed = True

    client = Client()
    with pytest.raises(RefusedError) as caught:
        run(Silent(1), client, request_timeout_s=0.05)
    assert caught.value.status == 504 and client.sent == []


def test_a_stream_that_is_cancelled_from_outside_ends_the_work():
    source, client = Source(10_000), Client()

    async def main() -> None:
        task = asyncio.create_task(source.stream()(client.scope, client.receive, client.send))
        await asyncio.sleep(0.03)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert source.is_over and asyncio.all_tasks() == {asyncio.current_task()}

    completed(main())


# Whole answers


def wait_for(work: Callable[[], Any], client: Client, **settings: float) -> Any:
    async def main() -> Any:
        try:
            return await answer_of(Request(client.scope, client.receive), work(), ServerSettings(port=0, **settings))
        finally:
            assert asyncio.all_tasks() == {asyncio.current_task()}, "no task is left"

    return completed(main())


class Work:
    def __init__(self, seconds: float) -> None:
        self._seconds, self.is_closed = seconds, False

    async def __call__(self) -> str:
        try:
            await asyncio.sleep(self._seconds)
            return "done"
        finally:
            self.is_closed = True


def test_pings_are_sent_only_while_nothing_else_is_and_never_before_the_first_event():
    client, has_pings = Client(), asyncio.Event()

    async def events() -> AsyncIterator[bytes]:
        await asyncio.sleep(0.05)  # more than one ping's time
        yield b"first;"
        await has_pings.wait()
        yield b"last;"

    async def send(message: dict[str, Any]) -> None:
        await client.send(message)
        if client.body.count(b"ping;") == 3:
            has_pings.set()

    async def main() -> None:
        stream = EventStream(events(), PATIENT, lambda error: str(error).encode(), ping=b"ping;", ping_s=0.001)
        await stream(client.scope, client.receive, send)
        assert asyncio.all_tasks() == {asyncio.current_task()}, "no task is left"

    completed(main())
    first, *pings, last, rest = client.body.split(b";")
    assert (first, set(pings), last, rest) == (b"first", {b"ping"}, b"last", b"") and client.is_whole


def test_a_client_that_takes_no_pings_either_is_left_to_the_next_event():
    source, client = Source(3), Client(takes=2)
    stream = source.stream(ServerSettings(port=0, send_timeout_s=0.02), ping=b"ping;", ping_s=0.001)
    completed(stream(client.scope, client.receive, client.send))
    assert source.is_over and client.scope["kaishu.status"] == LEFT


def test_the_result_is_the_works():
    assert wait_for(Work(0.01), Client()) == "done"


def test_what_the_work_raises_is_raised():
    async def failing() -> None:
        raise InvalidRequestError("no", field="n")

    with pytest.raises(InvalidRequestError):
        wait_for(failing, Client())


def test_work_is_ended_when_the_client_leaves():
    work = Work(NEVER)
    with pytest.raises(ClientLeft):
        wait_for(work, Client(leaves_after_s=0.02))
    assert work.is_closed


def test_work_is_ended_when_the_time_is_up():
    work = Work(NEVER)
    with pytest.raises(RefusedError, match=r"within 0.02 s\.") as caught:
        wait_for(work, Client(), request_timeout_s=0.02)
    assert work.is_closed and (caught.value.status, caught.value.code) == (504, "request_timeout")
    assert "stream" in str(caught.value.hint)
