"""`kaishu chat --url`: against a live server of ours, and against servers that say odd things."""

from __future__ import annotations

import io
import json
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator

import httpx
import pytest
from rich.console import Console

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

Answers = Callable[[httpx.Request], httpx.Response]
MODELS = {"object": "list", "data": [{"id": "first", "max_model_len": 512}, {"id": "second"}]}
HI = [{"role": "user", "content": "Hi"}]
EVENTS = {"Content-Type": "text/event-stream; charset=utf-8"}


@pytest.fixture(scope="module")
def server() -> Iterator[LiveServer]:
    loaded = load_model("tiny", threads=1, context_tokens=512, say=lambda _: None)
    with live(service_on(loaded), ServerSettings(port=0)) as made:
        yield made


def scripted(answers: Answers, **options: str) -> RemoteModel:
    """A model of a server that answers this, once it has listed its models."""

    def answered(request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, json=MODELS) if request.url.path.endswith("/models") else answers(request)

    return RemoteModel("http://a.b", client=httpx.Client(transport=httpx.MockTransport(answered)), **options)


def stream_of(*data: object, line_end: str = "\n") -> httpx.Response:
    lines = [one if isinstance(one, str) else f"data: {json.dumps(one)}" for one in data]
    return httpx.Response(200, headers=EVENTS, content="".join(line + 2 * line_end for line in lines).encode())


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


@pytest.mark.parametrize("typed", ["", "http://", "file:///etc/passwd", "http://a b", "http://a.b/?x=1"])
def test_what_is_no_address_is_refused(typed):
    with pytest.raises(InvalidParameterError, match="--url"):
        api_url(typed)


def test_without_a_name_the_first_model_is_asked_and_its_context_is_known():
    asked = []

    def answers(request: httpx.Request) -> httpx.Response:
        asked.append(json.loads(request.content)["model"])
        return stream_of(chunk("x", "stop"))

    first, second = scripted(answers), scripted(answers, model="second")
    assert (said(first), said(second)) == ("x", "x")
    assert asked == ["first", "second"]
    assert (first.context_tokens, second.context_tokens) == (512, None)


def test_the_key_goes_in_the_header_and_only_there():
    def answers(request: httpx.Request) -> httpx.Response:
        assert request.headers["authorization"] == "Bearer secret"
        assert b"secret" not in request.content
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
def test_odd_but_legal_streams_are_read(line_end):
    def answers(_: httpx.Request) -> httpx.Response:
        return stream_of(
            ": keep-alive", "event: message", {"choices": []}, chunk("北"), ":", chunk("京\u2028"), chunk(None, "stop"),
            "data: [DONE]", chunk("not read"), line_end=line_end,
        )  # fmt: skip

    assert said(scripted(answers)) == "北京\u2028"


def test_a_server_that_answers_at_once_and_one_without_done_are_read():
    whole = {"choices": [{"message": {"content": "42"}, "finish_reason": "stop"}]}
    assert said(scripted(lambda _: httpx.Response(200, json=whole))) == "42"
    assert said(scripted(lambda _: stream_of(chunk("42", "stop")))) == "42"


def test_an_answer_that_ends_without_its_end_is_no_answer():
    for ending in ((), ("data: [DONE]",)):
        with pytest.raises(RemoteError, match="broke the answer off"):
            said(scripted(lambda _, ending=ending: stream_of(chunk("4"), *ending)))


def test_an_error_in_the_middle_takes_the_question_back_and_the_session_goes_on():
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
    ("response", "words"),
    [
        (httpx.Response(401, json={"error": {"message": "No key."}}), ["401: No key.", "--api-key"]),
        (httpx.Response(429, json={"detail": "Slow down"}), ["429: Slow down.", "Ask again in a while."]),
        (httpx.Response(502, html="<html>Bad</html>"), ["502: Bad Gateway."]),
        (httpx.Response(301, headers={"Location": "https://c.d/v1"}), ["301: Moved Permanently, to https://c.d/v1."]),
        (httpx.Response(500, content=b"x" * 200_000), ["500: Internal Server Error."]),
        (httpx.Response(200, html="<html>"), ["is not JSON: <html>", "OpenAI's API"]),
        (httpx.Response(200, headers=EVENTS, content=b"data: {oops\n\n"), ["is not JSON: {oops"]),
    ],
)
def test_what_goes_wrong_is_said(response, words):
    with pytest.raises(RemoteError) as caught:
        said(scripted(lambda _: response))
    assert all(word in str(caught.value) for word in words)


@pytest.mark.parametrize(
    ("problem", "words"),
    [
        (httpx.ConnectTimeout("x"), "Nothing answers at http://a.b/v1 within 10 s."),
        (httpx.ReadTimeout("x"), "has said nothing for 600 s"),
        (httpx.ConnectError("[SSL: CERTIFICATE_VERIFY_FAILED] x"), "SSL_CERT_FILE"),
        (httpx.ConnectError("[SSL: WRONG_VERSION_NUMBER] x"), "http instead of https"),
        (httpx.RemoteProtocolError("x"), "broke the answer off"),
        (httpx.ProxyError("403 Forbidden"), "can't be asked: 403 Forbidden."),
    ],
)
def test_a_connection_that_fails_is_said(problem, words):
    def answers(_: httpx.Request) -> httpx.Response:
        raise problem

    with pytest.raises(RemoteError) as caught:
        said(scripted(answers))
    assert words in str(caught.value)


def test_where_nobody_listens_is_said():
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        with pytest.raises(RemoteError, match=r"Nothing answers at .*Connection refused") as caught:
            RemoteModel(f"http://127.0.0.1:{unused.getsockname()[1]}")
    assert "kaishu serve" in str(caught.value)


def test_a_server_without_a_list_needs_a_name():
    def answered(request: httpx.Request) -> httpx.Response:
        return httpx.Response(404) if request.method == "GET" else stream_of(chunk("x", "stop"))

    def model(**options: str) -> RemoteModel:
        return RemoteModel("http://a.b", client=httpx.Client(transport=httpx.MockTransport(answered)), **options)

    assert said(model(model="m")) == "x"
    with pytest.raises(RemoteError, match="404"):
        model()
