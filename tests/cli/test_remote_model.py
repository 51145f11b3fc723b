"""`kaishu chat --url`: against a live server of ours, and against servers that say odd things."""

from __future__ import annotations

import http.client
import io
import json
import signal
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
import trustme
from rich.console import Console

from kaishu.cli import remote_model
from kaishu.cli.chat import converse
from kaishu.cli.chat_commands import Chat
from kaishu.cli.chat_session import Session
from kaishu.cli.main import main
from kaishu.cli.remote_model import RemoteModel, api_url, request_body
from kaishu.errors import InvalidParameterError, RemoteError
from kaishu.loading import load_model
from kaishu.results import ChatEnd
from kaishu.sampling import SamplingParams
from kaishu.server.settings import ServerSettings
from kaishu.text.channels import ContentDelta
from tests.server.conftest import LiveServer, live, service_on

MODELS = {"object": "list", "data": [{"id": "first", "max_model_len": 512}, {"id": "second"}]}
HI = [{"role": "user", "content": "Hi"}]
EVENTS = "text/event-stream; charset=utf-8"


@dataclass(frozen=True)
class Asked:
    """A request that a scripted server got."""

    path: str
    headers: http.client.HTTPMessage
    body: bytes


@dataclass(frozen=True)
class Answer:
    """What it says. hangs_up: before all that it announced is sent"""

    body: bytes = b""
    status: int = 200
    kind: str = "application/json"
    headers: dict[str, str] = field(default_factory=dict)
    hangs_up: bool = False


Answers = Callable[[Asked], Answer]


class Handler(BaseHTTPRequestHandler):
    answers: Answers

    def do_GET(self) -> None:
        self._answer(as_json(MODELS) if self.path == "/v1/models" else Answer(status=404))

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        self._answer(type(self).answers(Asked(self.path, self.headers, body)))

    def _answer(self, answer: Answer) -> None:
        self.send_response(answer.status)
        length = len(answer.body) + (10 if answer.hangs_up else 0)
        for name, value in {"Content-Type": answer.kind, "Content-Length": str(length), **answer.headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(answer.body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def listening() -> Iterator[Callable[..., str]]:
    """`listening(answers)`: the address of a server that says this, and lists two models"""
    with ExitStack() as stack:

        def started(answers: Answers, **members: object) -> str:
            kind = type("Scripted", (Handler,), {"answers": staticmethod(answers), **members})
            server = stack.enter_context(ThreadingHTTPServer(("127.0.0.1", 0), kind))
            stack.callback(server.shutdown)
            threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
            return f"http://127.0.0.1:{server.server_port}"

        yield started


@pytest.fixture
def scripted(listening) -> Callable[..., RemoteModel]:
    """`scripted(answers)`: a model of such a server"""
    return lambda answers, **options: RemoteModel(listening(answers), **options)


@pytest.fixture(scope="module")
def server() -> Iterator[LiveServer]:
    loaded = load_model("tiny", threads=1, context_tokens=512, say=lambda _: None)
    with live(service_on(loaded), ServerSettings(port=0)) as made:
        yield made


def as_json(value: object, status: int = 200) -> Answer:
    return Answer(json.dumps(value).encode(), status)


def stream_of(*data: object, line_end: str = "\n") -> Answer:
    lines = [one if isinstance(one, str) else f"data: {json.dumps(one)}" for one in data]
    return Answer("".join(line + 2 * line_end for line in lines).encode(), kind=EVENTS)


def said(model: RemoteModel, **options) -> str:
    deltas = list(model.stream_chat(HI, params=options.pop("params", SamplingParams()), **options))
    assert isinstance(deltas[-1], ChatEnd)
    return deltas[-1].completion.content


def chunk(content: str | None, finish_reason: str | None = None) -> dict:
    return {"choices": [{"index": 0, "delta": {"content": content}, "finish_reason": finish_reason}]}


def run(arguments: list[str], question: str, monkeypatch) -> int:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(question.encode())))
    with pytest.raises(SystemExit) as leaving:
        main(["chat", *arguments])
    return leaving.value.code


def test_a_question_in_a_pipe_is_answered_by_the_server(server, monkeypatch, capsys):
    assert run(["--url", server.url, "--temperature", "0"], "12+30=?", monkeypatch) == 0
    assert capsys.readouterr().out == "12 + 30 = 42\n"


def test_nothing_of_a_model_is_loaded_for_a_server(server):
    heavy = {"numba", "torch", "tokenizers", "fastapi", "uvicorn", "kaishu.llm", "kaishu.loading"}
    code = (
        "import sys\n"
        "from kaishu.cli.main import main\n"
        "try: main(['chat', '--url', sys.argv[1], '--temperature', '0'])\n"
        f"except SystemExit as leaving: print(leaving.code, *{heavy} & {{*sys.modules}})"
    )
    arguments = [sys.executable, "-c", code, server.url]
    done = subprocess.run(arguments, input="12+30=?", capture_output=True, text=True, check=True)
    assert done.stdout == "12 + 30 = 42\n0\n"


def test_a_session_talks_thinks_counts_and_knows_the_context(server):
    model = RemoteModel(server.url)
    console = Console(file=io.StringIO(), width=200)
    state = Chat(Session(model.name), console, model.context_tokens, model.description, stops_at_once=True)
    messages = iter(["/set temperature 0", "12+30=?", "/thoughts", "/nothink", "14+30=?", "/stats", "/set seed -1"])
    converse(model, state, lambda: next(messages, None))
    screen = console.file.getvalue()
    assert "▸ thought for" in screen and "ones: 2 + 0 = 2" in screen
    assert "12 + 30 = 42" in screen and "14 + 30 = 44" in screen
    assert "50 tokens · " in screen and "tok/s" in screen
    assert f"tiny: at {server.url}/v1" in screen and "2 answers" in screen and "of 512 tokens used" in screen
    assert "speculation" not in screen
    assert "seed is -1" in screen
    assert [turn["role"] for turn in state.session.turns] == ["user", "assistant"] * 2


def test_ctrl_c_stops_the_answer_and_frees_the_work_on_the_server(server):
    model = RemoteModel(server.url)
    console = Console(file=io.StringIO(), width=200)
    settings = {"ignore_eos": True, "max_tokens": 400, "temperature": 0}
    state = Chat(Session(model.name, thinking=False, sampling=settings), console, None, "", stops_at_once=True)
    stream = model.stream_chat

    def pressed(*arguments, **options):
        for delta in stream(*arguments, **options):
            yield delta
            if isinstance(delta, ContentDelta):
                signal.raise_signal(signal.SIGINT)

    model.stream_chat = pressed
    messages = iter(["Hello"])
    converse(model, state, lambda: next(messages, None))
    assert console.file.getvalue().rstrip().endswith("stopped")
    assert [turn["role"] for turn in state.session.turns] == ["user", "assistant"]
    server.wait_until_idle()


def test_the_model_can_be_named_either_way(server, monkeypatch, capsys):
    assert run(["--url", server.url, "--model", "gpt"], "Hi", monkeypatch) == 2
    assert "The server answers 404: There is no model 'gpt' here; allowed: tiny." in capsys.readouterr().err
    assert run(["gpt", "--url", server.url], "Hi", monkeypatch) == 2
    assert "There is no model 'gpt'" in capsys.readouterr().err
    assert run(["gpt", "--url", server.url, "--model", "tiny"], "Hi", monkeypatch) == 2
    assert "named twice" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--url", "http://a.b", "--weights", "int4"], "--weights is about a model that runs here"),
        (["--url", "http://a.b", "--no-speculation"], "--speculation is about a model that runs here"),
        (["--api-key", "k"], "--api-key is about a server"),
        (["--model", "m"], "--model is about a server"),
        (["--url", "ftp://a.b"], "--url is 'ftp://a.b'"),
    ],
)
def test_options_that_do_not_go_together_are_refused(monkeypatch, capsys, arguments, said):
    assert run(arguments, "Hi", monkeypatch) == 2
    assert f"kaishu: error: {said}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("typed", "asked"),
    [
        ("http://127.0.0.1:8000", "http://127.0.0.1:8000/v1"),
        ("http://127.0.0.1:8000/", "http://127.0.0.1:8000/v1"),
        ("http://127.0.0.1:8000/v1/", "http://127.0.0.1:8000/v1"),
        ("https://a.b/v1/chat/completions", "https://a.b/v1"),
        ("https://a.b/api/v3", "https://a.b/api/v3"),
        ("localhost:8000", "http://localhost:8000/v1"),
        ("[::1]:8000", "http://[::1]:8000/v1"),
        ("a.b", "https://a.b/v1"),
    ],
)
def test_addresses_are_understood_as_people_type_them(typed, asked):
    assert api_url(typed) == asked


@pytest.mark.parametrize(
    "typed",
    [
        "",
        "http://",
        "file:///etc/passwd",
        "http://a b",
        "http://a.b/?x=1",
        "http://a.b:x",
        "http://a.b:99999",
        "http://u:p@a.b",
    ],
)
def test_what_is_no_address_is_refused(typed):
    with pytest.raises(InvalidParameterError, match="--url"):
        api_url(typed)


def test_without_a_name_the_first_model_is_asked_and_its_context_is_known(scripted):
    asked = []

    def answers(request: Asked) -> Answer:
        asked.append((request.path, json.loads(request.body)["model"]))
        return stream_of(chunk("x", "stop"))

    first, second = scripted(answers), scripted(answers, model="second")
    assert (said(first), said(second)) == ("x", "x")
    assert asked == [("/v1/chat/completions", "first"), ("/v1/chat/completions", "second")]
    assert (first.context_tokens, second.context_tokens) == (512, None)


def test_the_key_goes_in_the_header_and_only_there(scripted):
    def answers(request: Asked) -> Answer:
        assert request.headers["authorization"] == "Bearer secret"
        assert b"secret" not in request.body
        return stream_of(chunk("x", "stop"))

    assert said(scripted(answers, api_key="secret")) == "x"
    with pytest.raises(InvalidParameterError) as caught:
        scripted(answers, api_key="sec\nret")
    assert "ret" not in str(caught.value).replace("characters", "")


def test_only_what_was_set_is_sent():
    assert request_body("m", HI, None, None, SamplingParams()) == {
        "model": "m", "messages": HI, "stream": True, "stream_options": {"include_usage": True},
    }  # fmt: skip
    params = SamplingParams(temperature=0, stop=("a",), logit_bias={5: 1.0}, logprobs=2, top_k=3, max_tokens=4)
    tools = [{"type": "function", "function": {"name": "f"}}]
    body = request_body("m", HI, tools, False, params)
    assert {name: body[name] for name in body if name not in ("model", "messages", "stream", "stream_options")} == {
        "temperature": 0, "stop": ["a"], "logit_bias": {"5": 1.0}, "logprobs": True, "top_logprobs": 2, "top_k": 3,
        "max_tokens": 4, "tools": tools, "chat_template_kwargs": {"enable_thinking": False},
    }  # fmt: skip


def test_every_field_of_a_chat_is_taken_by_our_own_server(server):
    params = SamplingParams(
        temperature=0.5, top_k=5, top_p=0.9, min_p=0.1, repetition_penalty=1.1, presence_penalty=0.1, seed=1,
        frequency_penalty=0.1, max_tokens=20, min_tokens=1, stop=("§",), stop_token_ids=(7,), ignore_eos=True,
        logit_bias={5: 1.0}, logprobs=1, thinking_budget=3,
    )  # fmt: skip
    deltas = list(RemoteModel(server.url).stream_chat(HI, params=params, thinking=True))
    assert deltas[-1].completion.usage.completion_tokens == 20


def test_thoughts_are_sent_back_only_between_calls():
    thought = {"role": "assistant", "content": "x", "reasoning_content": "Hm"}
    body = request_body("m", [*HI, thought, *HI, thought], None, None, SamplingParams())
    assert [message.get("reasoning_content") for message in body["messages"]] == [None, None, None, "Hm"]


@pytest.mark.parametrize("line_end", ["\n", "\r\n", "\r"])
def test_odd_but_legal_streams_are_read(scripted, line_end):
    def answers(_: Asked) -> Answer:
        return stream_of(
            ": keep-alive", "event: message", {"choices": []}, chunk("北"), ":", chunk("京\u2028"), chunk(None, "stop"),
            "data: [DONE]", chunk("not read"), line_end=line_end,
        )  # fmt: skip

    assert said(scripted(answers)) == "北京\u2028"


def test_a_server_that_answers_at_once_and_one_without_done_are_read(scripted):
    whole = {"choices": [{"message": {"content": "42"}, "finish_reason": "stop"}]}
    assert said(scripted(lambda _: as_json(whole))) == "42"
    assert said(scripted(lambda _: stream_of(chunk("42", "stop")))) == "42"


def test_an_answer_that_ends_without_its_end_is_no_answer(scripted):
    hung_up = Answer(b"data: {}\n\n", kind=EVENTS, hangs_up=True)
    for answer in (stream_of(chunk("4")), stream_of(chunk("4"), "data: [DONE]"), hung_up):
        with pytest.raises(RemoteError, match="broke the answer off"):
            said(scripted(lambda _, answer=answer: answer))


def test_an_error_in_the_middle_takes_the_question_back_and_the_session_goes_on(scripted):
    answers = iter([stream_of(chunk("4"), {"error": {"message": "Out of memory."}}), stream_of(chunk("fine", "stop"))])
    model = scripted(lambda _: next(answers))
    console = Console(file=io.StringIO(), width=200)
    state = Chat(Session(model.name), console, None, model.description)
    messages = iter(["one", "two", "/stats"])
    converse(model, state, lambda: next(messages, None))
    assert "The server failed: Out of memory." in console.file.getvalue()
    assert [turn["content"] for turn in state.session.turns] == ["two", "fine"]
    assert "context" not in console.file.getvalue()


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (as_json({"error": {"message": "No key."}}, 401), ["401: No key.", "--api-key"]),
        (as_json({"detail": "Slow down"}, 429), ["429: Slow down.", "Ask again in a while."]),
        (Answer(b"<html>Bad</html>", 502, "text/html"), ["502: Bad Gateway."]),
        (Answer(b"", 301, headers={"Location": "https://c.d/v1"}), ["301: Moved Permanently, to https://c.d/v1."]),
        (Answer(b"x" * 200_000, 500), ["500: Internal Server Error."]),
        (Answer(b"<html>", 200, "text/html"), ["is not JSON: <html>", "OpenAI's API"]),
        (Answer(b"data: {oops\n\n", 200, EVENTS), ["is not JSON: {oops"]),
    ],
)
def test_what_goes_wrong_is_said(scripted, answer, words):
    with pytest.raises(RemoteError) as caught:
        said(scripted(lambda _: answer))
    assert all(word in str(caught.value) for word in words)


def test_a_server_that_says_nothing_is_given_up(scripted, monkeypatch):
    goes_on = threading.Event()
    model = scripted(lambda _: goes_on.wait(30) and Answer())
    monkeypatch.setattr(remote_model, "SILENCE_S", 0.05)
    with pytest.raises(RemoteError, match=r"doesn't answer: 10 s for the connection, 0\.05 s for"):
        said(model)
    goes_on.set()


def test_https_needs_a_certificate_that_is_trusted_and_a_server_that_speaks_it(listening, monkeypatch, tmp_path):
    authority = trustme.CA()
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(tls)
    authority.cert_pem.write_to_path(str(tmp_path / "authority.pem"))
    plain = listening(lambda _: stream_of(chunk("x", "stop")))
    secured = listening(
        lambda _: stream_of(chunk("x", "stop")),
        setup=lambda self: (
            setattr(self, "request", tls.wrap_socket(self.request, server_side=True)),
            Handler.setup(self),
        ),
    ).replace("http:", "https:")
    with pytest.raises(RemoteError, match="doesn't speak https"):
        RemoteModel(plain.replace("http:", "https:"))
    with pytest.raises(RemoteError, match="is not one that this machine trusts") as caught:
        RemoteModel(secured)
    assert "SSL_CERT_FILE" in str(caught.value)
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "authority.pem"))
    assert said(RemoteModel(secured)) == "x"


def test_where_nobody_listens_is_said():
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        with pytest.raises(RemoteError, match=r"Nothing answers at .*: Connection refused\.") as caught:
            RemoteModel(f"http://127.0.0.1:{unused.getsockname()[1]}")
    assert "kaishu serve" in str(caught.value)
    with pytest.raises(RemoteError, match="Nothing answers at"):
        RemoteModel("http://nowhere.invalid")


def test_a_server_without_a_list_needs_a_name(listening):
    url = listening(lambda _: stream_of(chunk("x", "stop")), do_GET=lambda self: self._answer(Answer(status=404)))
    assert said(RemoteModel(url, model="m")) == "x"
    with pytest.raises(RemoteError, match="404"):
        RemoteModel(url)
