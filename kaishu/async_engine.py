"""Engine: the asynchronous Python API. Requests are added at any time, and each is an asynchronous iterator of deltas.

Owns the thread that runs the engine's steps, and the way of events from there into event loops. The work itself is the
same as LLM's: loading.py, prompting.py, engine/core.py, deltas.py. The server is built on this.

    async with Engine("tiny") as engine:
        request = await engine.add_chat([{"role": "user", "content": "Hi"}])
        async for found in request:
            ...

What takes time (templates, tokenising, compiling a grammar) runs in a worker thread, so an event loop never waits.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable, Sequence
from pathlib import Path
from typing import Any

from kaishu.deltas import ChatDeltas, ChoiceDelta, CompletionDeltas
from kaishu.engine.core import EngineCore, EngineSettings
from kaishu.engine.jobs import Generate, Read
from kaishu.engine.statistics import Statistics
from kaishu.engine.stream import Stream
from kaishu.errors import EngineClosedError, QueueFullError
from kaishu.loading import LoadedModel, load_model
from kaishu.prompting import ChatRequest, Prompting
from kaishu.results import ChatCompletion, Completion
from kaishu.sampling import SamplingParams

_LOOKS_AGAIN_S = 0.02  # whoever waits for room in the queue


class EngineRequest:
    """One request: iterate over it for its deltas. Leaving the iteration early, or `abort`, ends it.

    number: which the engine's other calls take
    """

    def __init__(self, engine: Engine, stream: Stream, deltas: CompletionDeltas | ChatDeltas) -> None:
        self._engine, self._stream, self._deltas = engine, stream, deltas
        self._loop = asyncio.get_running_loop()
        self._has_news = asyncio.Event()
        self.number = stream.number

    def notify(self) -> None:
        """Called in the engine's thread when there is something to read."""
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._has_news.set)

    async def begun(self) -> int | None:
        """Wait until the engine begins with it.

        return: how many of the prompt's tokens were found in the cache; None where it ended before
        """
        stream = self._stream
        while stream.cached_tokens is None and not stream.is_over:
            self._has_news.clear()
            if stream.cached_tokens is None and not stream.is_over:
                await self._has_news.wait()
        return stream.cached_tokens

    async def __aiter__(self) -> AsyncGenerator[ChoiceDelta, None]:
        try:
            while True:
                self._has_news.clear()
                is_over = self._stream.is_over  # before its events are taken, so that these are all
                events = self._stream.take()
                for event in events:
                    for found in self._deltas.push(event):
                        yield found
                if not events:
                    if is_over:
                        return
                    await self._has_news.wait()
        finally:
            if not self._stream.is_over:
                self.abort()

    async def completion(self) -> Any:
        """Wait for the whole answer, a Completion or ChatCompletion.

        raises: what made the request fail; EngineClosedError if it was aborted
        """
        answer: Completion | ChatCompletion | None = None
        async for found in self:
            answer = getattr(found.delta, "completion", answer)
        if answer is None:
            raise EngineClosedError("The request was aborted before it was over.")
        return answer

    def abort(self) -> None:
        """End it within a step."""
        self._engine.abort(self.number)


class Engine:
    """A loaded model that serves many requests at once.

    model:    as for LLM, or a LoadedModel that nobody else uses
    settings: of the engine; None for the usual ones
    options:  as for LLM: weights, threads, context_tokens …
    raises:   as LLM
    """

    def __init__(
        self, model: str | Path | LoadedModel = "tiny", *, settings: EngineSettings | None = None, **options: Any
    ) -> None:
        self.loaded = model if isinstance(model, LoadedModel) else load_model(model, **options)
        self.prompting = Prompting(self.loaded)
        self._core: EngineCore = self.loaded.start_engine(settings)
        self._watchers: dict[int, Callable[[], object]] = {}  # by the number of the request
        self._has_work = threading.Condition()
        self._is_closed = False
        self._thread = threading.Thread(target=self._run, name="kaishu-engine", daemon=True)
        self._thread.start()

    async def add(
        self, prompt: str | Sequence[int], params: SamplingParams | None = None, *, priority: int = 0, salt: str = ""
    ) -> EngineRequest:
        """Add a text to be continued.

        raises: InvalidRequestError and its kinds, QueueFullError, EngineClosedError
        """
        chosen = params or SamplingParams()
        job = await asyncio.to_thread(self.prompting.completion, prompt, chosen, priority=priority, salt=salt)
        return await self.start(job, CompletionDeltas())

    async def add_chat(self, chat: ChatRequest | Sequence[Any], params: SamplingParams | None = None) -> EngineRequest:
        """Add a conversation to be answered: a ChatRequest, or its messages alone.

        raises: as `add`, TemplateError
        """
        request = chat if isinstance(chat, ChatRequest) else ChatRequest(chat)
        made = await asyncio.to_thread(self.prompting.chat, request, params or SamplingParams())
        return await self.start(made.job, ChatDeltas(made.new_parser))

    async def start(
        self, job: Generate, deltas: CompletionDeltas | ChatDeltas, *, let_in: asyncio.Event | None = None
    ) -> EngineRequest:
        """Add a job of Prompting's, and say what reads its events.

        let_in: of jobs that belong together. Set by the first that is let in; from then on the others wait for room in
                the queue rather than be refused
        raises: as `add`
        """
        stream = await self._let_in(job, let_in)
        request = EngineRequest(self, stream, deltas)
        self._watch(stream, request.notify)
        return request

    async def read(self, job: Read, *, let_in: asyncio.Event | None = None) -> Any:
        """Compute rows of a text. return: [R, V] logits or [1, D] hidden states, float32

        let_in: as `start`
        raises: InvalidRequestError and its kinds, QueueFullError, NumericalError
        """
        stream = await self._let_in(job, let_in)
        loop, is_over = asyncio.get_running_loop(), asyncio.Event()
        self._watch(stream, lambda: loop.is_closed() or loop.call_soon_threadsafe(is_over.set))
        try:
            while not stream.is_over:
                is_over.clear()
                if not stream.is_over:
                    await is_over.wait()
        finally:
            if not stream.is_over:
                self.abort(stream.number)
        stream.take()
        return stream.rows

    def abort(self, number: int) -> None:
        """End a request within a step; one that is over is no error."""
        self._core.abort(number)
        self._wake()

    def stop_thinking(self, number: int) -> None:
        """Have a request's thought end now, and its answer follow."""
        self._core.stop_thinking(number)
        self._wake()

    def statistics(self) -> Statistics:
        """What the engine has done so far, and what it is doing."""
        return self._core.statistics()

    async def close(self) -> None:
        """End every request, and the thread."""
        self._is_closed = True
        self._wake()
        await asyncio.to_thread(self._thread.join)

    async def __aenter__(self) -> Engine:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _let_in(self, job: Generate | Read, let_in: asyncio.Event | None) -> Stream:
        start = await asyncio.to_thread(self._core.prepare, job)
        while True:
            try:
                stream = self._enter(start)
            except QueueFullError:
                if let_in is None or not let_in.is_set():
                    raise
                await asyncio.sleep(_LOOKS_AGAIN_S)
            else:
                if let_in is not None:
                    let_in.set()
                return stream

    def _enter(self, start: Callable[[], Stream]) -> Stream:
        if self._is_closed:
            raise EngineClosedError("The engine was closed.")
        return start()

    def _watch(self, stream: Stream, notify: Callable[[], object]) -> None:
        """Have somebody told when a stream gets something, from now on and of what it has already."""
        self._watchers[stream.number] = notify
        if stream.is_over:
            self._watchers.pop(stream.number, None)
        notify()
        self._wake()

    def _wake(self) -> None:
        with self._has_work:
            self._has_work.notify()

    def _run(self) -> None:
        """The engine's thread: step while there is something to do."""
        while self._waited_for_work():
            try:
                touched = self._core.step()
            except Exception as problem:  # a bug of ours: nobody shall wait for ever because of it
                touched = self._core.end_all(problem)
            for stream in touched:
                self._tell(stream)
        for stream in self._core.end_all(EngineClosedError("The engine was closed.")):
            self._tell(stream)

    def _waited_for_work(self) -> bool:
        """return: True as soon as there is something to do, False once the engine is closed"""
        with self._has_work:
            self._has_work.wait_for(lambda: self._core.is_busy or self._is_closed)
        return not self._is_closed

    def _tell(self, stream: Stream) -> None:
        watchers = self._watchers
        notify = watchers.pop(stream.number, None) if stream.is_over else watchers.get(stream.number)
        if notify is not None:
            notify()
