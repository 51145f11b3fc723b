"""The page in a real browser, on a model that says what a test tells it to.

`model.says("an answer")` is what it answers next; `chat` is an open page with a few words for what people do with it.
One server and one browser for all tests of this folder; every test has a window of its own, with nothing stored. Needs
Debian's Chromium at /usr/bin/chromium, and is skipped where that isn't (never in CI).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright

from kaishu.batch import TokenBatch
from kaishu.loading import LoadedModel, load_model
from kaishu.server.settings import ServerSettings
from tests.scripted import Script, ScriptedExecutor
from tests.server.conftest import LiveServer, live, service_on

CHROMIUM = Path("/usr/bin/chromium")
ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


class Answers:
    """What the model will say, one answer a prompt; an iterator that goes on when more is added."""

    def __init__(self) -> None:
        self.waiting: list[list[int]] = []

    def __iter__(self) -> Answers:
        return self

    def __next__(self) -> list[int]:
        if not self.waiting:
            raise StopIteration
        return self.waiting.pop(0)


class Model(ScriptedExecutor):
    """A scripted model that a test can hold in the middle of an answer.

    certainty: the logit of what it says; all others are a few random ones. At 100 it can't say anything else
    """

    def __init__(self, loaded: LoadedModel) -> None:
        self._tokenizer = loaded.tokenizer
        (end,) = self._tokenizer.encode("<|im_end|>", allow_control=True)
        self.answers = Answers()
        self.script = Script(self.answers, end=end)
        super().__init__(self.script, vocab_size=loaded.config.vocab_size, num_pages=512)
        self.certainty: Callable[[np.random.Generator], float] = lambda rng: 100.0
        self._may_go_on = threading.Event()
        self._may_go_on.set()
        self._hold_before = ""
        self._said = 0

    def says(self, *answers: str, hold_before: str = "") -> None:
        """What it answers next. hold_before: the part of the text that it doesn't say until `go_on`"""
        self.script.prompts.clear()
        self.script._given.clear()
        self.answers.waiting = [self._tokenizer.encode(answer, allow_control=True) for answer in answers]
        self._said = 0
        self._hold_at = 0
        if hold_before:
            start = answers[0][: answers[0].index(hold_before)].rstrip()  # a space belongs to the next token
            self._hold_at = len(self._tokenizer.encode(start, allow_control=True))
            self._may_go_on.clear()
        else:
            self._may_go_on.set()

    def go_on(self) -> None:
        """Say the rest."""
        self._may_go_on.set()

    def step(self, batch: TokenBatch) -> NDArray[np.float32]:
        """As a scripted executor; waits where it was told to hold."""
        if len(batch.logit_rows):
            if self._said >= self._hold_at:
                assert self._may_go_on.wait(60), "the test never let the model go on"
            self._said += 1
        return super().step(batch)

    def _certain(self, context: tuple[int, ...]) -> NDArray[np.float32]:
        rng = np.random.default_rng(list(context[-8:]))
        logits = np.zeros(self._vocab_size, np.float32)  # [V]
        logits[rng.integers(300, self._vocab_size // 2, 8)] = rng.uniform(2, 8, 8)
        logits[self._next_token(context)] = self.certainty(rng)
        return logits


@pytest.fixture(scope="package")
def loaded_tiny() -> LoadedModel:
    return load_model("tiny", threads=1, context_tokens=1024, say=lambda _: None)


@pytest.fixture(scope="package")
def only_model(loaded_tiny: LoadedModel) -> Model:
    return Model(loaded_tiny)


@pytest.fixture(scope="package")
def server(loaded_tiny: LoadedModel, only_model: Model) -> Iterator[LiveServer]:
    loaded = replace(loaded_tiny, executor=only_model)
    with live(service_on(loaded, speculation=False), ServerSettings(port=0)) as started:
        yield started
        only_model.go_on()


@pytest.fixture
def model(only_model: Model) -> Iterator[Model]:
    yield only_model
    only_model.says()
    only_model.certainty = lambda rng: 100.0


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    if not CHROMIUM.exists():
        pytest.skip(f"there is no {CHROMIUM}; on Debian: apt-get install chromium")
    expect.set_options(timeout=30_000)  # for machines that are busy; what is there is found at once
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=str(CHROMIUM), args=ARGUMENTS)
        yield started
        started.close()


class ChatPage:
    """An open page, and what was wrong on it.

    window:   of playwright
    requests: every address that it asked for
    problems: errors of scripts, and what the console complained of
    """

    def __init__(self, context: BrowserContext, url: str) -> None:
        self.url = url
        self.window: Page = context.new_page()
        self.requests: list[str] = []
        self.problems: list[str] = []
        self.window.on("request", lambda request: self.requests.append(request.url))
        self.window.on("pageerror", lambda error: self.problems.append(str(error)))
        self.window.on("console", self._console)

    def _console(self, message: Any) -> None:
        if message.type in ("error", "warning") or "Content Security Policy" in message.text:
            self.problems.append(message.text)

    def open(self, *, waits: bool = True) -> ChatPage:
        """waits: until it has found the model"""
        self.window.goto(self.url)
        if waits:
            expect(self.window.locator("#model")).not_to_be_empty()
        return self

    def send(self, text: str) -> None:
        self.input.fill(text)
        self.input.press("Enter")

    def ask(self, text: str) -> None:
        """Send, and wait until the answer is complete."""
        self.send(text)
        self.wait_until_answered()

    def wait_until_answered(self) -> None:
        expect(self.window.locator("article.assistant").last).to_have_attribute("aria-busy", "false")
        expect(self.window.locator("#send")).to_be_visible()

    def button(self, name: str) -> Any:
        return self.window.get_by_role("button", name=name, exact=True)

    @property
    def input(self) -> Any:
        return self.window.locator("#input")

    @property
    def answers(self) -> Any:
        return self.window.locator("article.assistant .text")


@pytest.fixture
def open_page(browser: Browser, server: LiveServer) -> Iterator[Callable[..., ChatPage]]:
    """`open_page(url=…, waits=True, **options of a browser context)`: a page in a window of its own."""
    contexts: list[BrowserContext] = []
    pages: list[ChatPage] = []

    def opened(*, url: str = server.url, waits: bool = True, **options: Any) -> ChatPage:
        options = {"locale": "en-GB", "viewport": {"width": 1200, "height": 800}, **options}
        context = browser.new_context(**options)
        context.set_default_timeout(30_000)
        contexts.append(context)
        made = ChatPage(context, url)
        pages.append(made)
        return made.open(waits=waits)

    yield opened
    for context in contexts:
        context.close()
    for page in pages:
        outside = [url for url in page.requests if not url.startswith((page.url, "blob:", "data:"))]
        assert not outside, "the page asks nobody but its server"
    assert not [problem for page in pages for problem in page.problems]


@pytest.fixture
def chat(open_page: Callable[..., ChatPage], model: Model) -> ChatPage:
    return open_page()
