"""Live servers on loopback, each with its own thread and event loop, for tests that speak HTTP to them.

`tiny` is one server for all tests of a file, on the bundled model: `tiny.url`, and `tiny.client`, an httpx client.
`serve(load, **settings)` starts another with settings of its own; `scripted("answer", …, **settings)` one whose model
says what the test tells it to, and `steady(**settings)` one that talks for as long as it may (steady.py). All stop at
the end of the test.
"""

from __future__ import annotations

import io
import json
import logging
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import httpx
import pytest
import uvicorn
from fastapi import FastAPI

from kaishu.async_engine import Engine
from kaishu.engine.core import EngineSettings
from kaishu.engine.scheduler import Budget
from kaishu.loading import LoadedModel, load_model
from kaishu.server.app import create_app
from kaishu.server.logs import JsonLines
from kaishu.server.metrics import Metrics
from kaishu.server.service import Life, Service
from kaishu.server.settings import ServerSettings
from tests.scripted import Script, ScriptedExecutor
from tests.server.steady import SteadyExecutor, steady_model

Load = Callable[[ServerSettings, Metrics], Service]


@dataclass(frozen=True)
class LiveServer:
    """A server that is listening.

    client: of httpx, with the server's address as its base
    """

    url: str
    client: httpx.Client
    app: FastAPI

    @property
    def life(self) -> Life:
        return self.app.state.life

    @property
    def engine(self) -> Engine:
        return self.life.ready_service().engine

    def wait_until(self, condition: Callable[[], bool], seconds: float = 30) -> None:
        """For something that another thread brings about."""
        end = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < end, "it didn't come about"
            time.sleep(0.005)

    def wait_until_idle(self) -> None:
        """Until no request is in the engine and no page is held."""
        self.wait_until(
            lambda: (now := self.engine.statistics()).running == now.waiting == now.held_pages == 0,
        )


@contextmanager
def live(load: Load, settings: ServerSettings, *, waits: bool = True) -> Iterator[LiveServer]:
    """waits: until the model is loaded"""
    app = create_app(settings, load)
    with socket.socket(proto=socket.IPPROTO_TCP) as listening:
        # Connections inherit it: of what a client doesn't read little is taken by the kernel.
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 32 << 10)
        listening.bind(("127.0.0.1", 0))
        config = uvicorn.Config(app, log_config=None, lifespan="on", timeout_graceful_shutdown=5)
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, args=([listening],), daemon=True)
        thread.start()
        url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        with httpx.Client(base_url=url, timeout=60) as client:
            made = LiveServer(url, client, app)
            try:
                made.wait_until(lambda: server.started)
                if waits:
                    made.wait_until(lambda: made.life.state != "loading")
                    assert made.life.state == "ready", made.life.problem
                yield made
            finally:
                server.should_exit = True
                thread.join(30)
                assert not thread.is_alive(), "the server stops"


def engine_settings(settings: ServerSettings, *, speculation: bool = True) -> EngineSettings:
    return EngineSettings(
        Budget(running=settings.max_running),
        max_waiting=settings.max_waiting,
        queue_timeout_s=settings.queue_timeout_s,
        speculation=speculation,
    )


def service_on(loaded: LoadedModel, name: str = "tiny", *, speculation: bool = True) -> Load:
    """What makes a service of a model that is loaded already."""

    def load(settings: ServerSettings, metrics: Metrics) -> Service:
        engine = Engine(loaded, settings=engine_settings(settings, speculation=speculation))
        return Service(engine, settings, metrics, settings.names or (name,))

    return load


@pytest.fixture(scope="session")
def tiny_model() -> LoadedModel:
    """The bundled model, for those that ask nothing of it at the same time. Engines that are on it own its pages."""
    return load_model("tiny", threads=1, context_tokens=1024, say=lambda _: None)


@pytest.fixture(scope="module")
def tiny() -> Iterator[LiveServer]:
    loaded = load_model("tiny", threads=1, context_tokens=1024, say=lambda _: None)
    with live(service_on(loaded), ServerSettings(port=0)) as server:
        yield server


@pytest.fixture
def serve() -> Iterator[Callable[..., LiveServer]]:
    """`serve(load, waits=True, **settings)`"""
    with ExitStack() as stack:

        def started(load: Load, *, waits: bool = True, **settings: Any) -> LiveServer:
            return stack.enter_context(live(load, ServerSettings(port=0, **settings), waits=waits))

        yield started


@pytest.fixture
def scripted(tiny_model: LoadedModel, serve: Callable[..., LiveServer]) -> Callable[..., LiveServer]:
    """`scripted("first answer", …, **settings)`: one answer a prompt; control tokens in them are control tokens."""

    def of(*answers: str, **settings: Any) -> LiveServer:
        ids = [tiny_model.tokenizer.encode(answer, allow_control=True) for answer in answers]
        (end,) = tiny_model.tokenizer.encode("<|im_end|>", allow_control=True)
        executor = ScriptedExecutor(Script(ids, end=end), vocab_size=tiny_model.config.vocab_size)
        # A wrong guess would be a new prompt to the script.
        return serve(service_on(replace(tiny_model, executor=executor), speculation=False), **settings)

    return of


@pytest.fixture
def steady(
    tiny_model: LoadedModel, serve: Callable[..., LiveServer]
) -> Callable[..., tuple[LiveServer, SteadyExecutor]]:
    """`steady(**settings)`: the server, and the executor that holds its pace."""

    def started(**settings: Any) -> tuple[LiveServer, SteadyExecutor]:
        model, executor = steady_model(tiny_model)
        return serve(service_on(model, speculation=False), **settings), executor

    return started


class LogLines:
    """What the servers of a test write into their log, as its JSON form has it."""

    def __init__(self) -> None:
        self.stream = io.StringIO()
        self.handler = logging.StreamHandler(self.stream)
        self.handler.setFormatter(JsonLines())

    @property
    def text(self) -> str:
        return self.stream.getvalue()

    def of(self, logger: str) -> list[dict[str, Any]]:
        lines = [json.loads(line) for line in self.text.splitlines()]
        return [line for line in lines if line["logger"] == logger]

    @property
    def requests(self) -> list[dict[str, Any]]:
        """The lines of requests that are over."""
        return [line for line in self.of("kaishu.access") if "status" in line]


@pytest.fixture
def log() -> Iterator[LogLines]:
    """What is written into the log while the test runs; ask for it before the server."""
    lines, logger = LogLines(), logging.getLogger("kaishu")
    level = logger.level
    logger.addHandler(lines.handler)
    logger.setLevel(logging.INFO)
    try:
        yield lines
    finally:
        logger.removeHandler(lines.handler)
        logger.setLevel(level)
