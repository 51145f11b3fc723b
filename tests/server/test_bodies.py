"""Request bodies: what is no JSON, too large, too slow or of another type is refused in words, and what is JSON comes
out as Python's own reader has it."""

from __future__ import annotations

import gzip
import json
import socket
import sys
import threading
import time

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kaishu.errors import InvalidRequestError
from kaishu.server import bodies
from kaishu.server.bodies import MAX_DEPTH, MAX_VALUES, parsed

UNREADABLE = {
    b"": "Expecting value in line 1, column 1",
    b" \n": "Expecting value in line 2, column 1",
    b'{"a": 1': "in line 1, column 8",
    b'{"a": 1} x': "Extra data in line 1, column 10",
    b"{'a': 1}": "in line 1, column 2",
    b'{"a": 01}': "in line 1",
    b'{"a": NaN}': "it has NaN, which is no number of JSON",
    b"[Infinity]": "it has Infinity",
    b"[-Infinity]": "it has -Infinity",
    b'"\xff"': "byte 1 is no UTF-8",
    '"é"'.encode("latin-1"): "byte 1 is no UTF-8",
    '"é"'.encode("utf-16"): "byte 0 is no UTF-8",
    b'"\xed\xa0\x80"': "byte 1 is no UTF-8",  # U+D800, which UTF-8 hasn't
    b"\xef\xbb\xbf{}": "in line 1, column 1",  # a byte order mark, which RFC 8259 forbids
    b'"a\nb"': "in line 1",
    b"1" * 5000: "it has a number of thousands of digits",
    b"[" * 10_000 + b"]" * 10_000: "it is nested too deep",
    b'{"a":' * 10_000 + b"1" + b"}" * 10_000: "it is nested too deep",
    b"[" * 100_000: "it is nested too deep",
    b"[" + b"[],{}," * (MAX_VALUES // 3) + b"1]": "values, and at most 1,000,000 are read",
}
JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@pytest.mark.parametrize("raw", UNREADABLE, ids=lambda raw: repr(raw[:20]))
def test_what_is_no_json_is_refused_with_what_is_wrong(raw):
    with pytest.raises(InvalidRequestError) as caught:
        parsed(raw)
    assert caught.value.message.startswith("The body is not JSON that can be read: ")
    assert UNREADABLE[raw] in caught.value.message and caught.value.field == "body"


@given(JSON_VALUES, st.booleans())
def test_json_is_read_as_pythons_reader_does_however_it_is_escaped(value, ascii_only):
    assert parsed(json.dumps(value, ensure_ascii=ascii_only).encode()) == value


@pytest.mark.parametrize("raw", [rb'"\ud800"', rb'["\uDFFF a"]', rb'{"a": {"b\udc00": 1}}', rb'"\ude00\ud83d"'])
def test_half_of_a_surrogate_pair_is_refused_wherever_it_stands(raw):
    with pytest.raises(InvalidRequestError, match=r"^The body has a lone surrogate, \\ud[8-f]"):
        parsed(raw)


def test_whole_surrogate_pairs_and_backslashes_before_a_u_are_text():
    assert parsed(rb'"\ud83d\ude00"') == "😀"
    assert parsed(rb'"\\ud83d"') == r"\ud83d"


@pytest.mark.parametrize(
    "raw", ['{"a": 1, "a": 1}', '[{"b": {"a": 1, "é": 2, "a": null}}]', '{"\\ud800": 1, "\\ud800": 2}']
)
def test_a_field_that_is_there_twice_is_named(raw):
    with pytest.raises(InvalidRequestError, match="is there twice") as caught:
        parsed(raw.encode())
    assert caught.value.field in ("a", "?")
    str(caught.value).encode()


def test_nesting_ends_where_it_says():
    def nested(depth: int) -> bytes:
        return b'[{"a":' * (depth // 2) + b"[]" + b"}]" * (depth // 2)

    parsed(nested(MAX_DEPTH - 2))
    with pytest.raises(InvalidRequestError, match=f"beyond {MAX_DEPTH} levels"):
        parsed(nested(MAX_DEPTH + 2))
    assert len(parsed(b"[" + b"[]," * 1000 + b"[]]")) == 1001, "many that aren't nested are none too many"


# On the wire


def ask(server, content=b'{"prompt": "Hi"}', kind: str | None = "application/json") -> httpx.Response:
    return server.client.post("/tokenize", content=content, headers={"Content-Type": kind} if kind else {})


def refused(response: httpx.Response, status: int, code: str | None) -> str:
    assert response.status_code == status, response.text
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"} and error["code"] == code
    return error["message"]


@pytest.mark.parametrize(
    "kind", ["application/json", "application/json; charset=utf-8", "Application/JSON", "application/problem+json"]
)
def test_json_may_be_called_so_in_several_ways(tiny, kind):
    assert ask(tiny, kind=kind).status_code == 200


@pytest.mark.parametrize(
    "kind", [None, "", "text/plain", "application/x-www-form-urlencoded", "multipart/form-data", "json"]
)
def test_other_types_are_refused_since_pages_of_other_sites_may_send_them(tiny, kind):
    message = refused(ask(tiny, kind=kind), 415, "content_type")
    assert (f'"{kind}"' if kind else "null") in message and "application/json" in message


@pytest.mark.parametrize("coding", ["gzip", "br", "identity, gzip", "GZIP"])
def test_what_is_compressed_is_refused_unread(tiny, coding):
    packed = gzip.compress(b'{"prompt": "Hi"}')
    headers = {"Content-Type": "application/json", "Content-Encoding": coding}
    message = refused(tiny.client.post("/tokenize", content=packed, headers=headers), 415, "content_encoding")
    assert f'"{coding.lower()}"' in message
    headers["Content-Encoding"] = "identity"
    assert tiny.client.post("/tokenize", content=b'{"prompt": "Hi"}', headers=headers).status_code == 200


def test_a_body_over_the_limit_is_refused_whether_or_not_it_says_its_size(scripted):
    server = scripted(max_body_bytes=1000)
    limit = b'{"prompt": "%s"}' % (b"a" * 986)
    assert ask(server, limit).status_code == 200
    for content in (limit + b" ", b"x" * 100_000, iter([b"x" * 400] * 3), iter([limit, b" "])):
        response = ask(server, content)
        assert "allowed: 1,000" in refused(response, 413, "body_too_large")
        assert response.headers["Connection"] == "close"
    assert ask(server).status_code == 200


def test_who_sends_far_too_much_still_gets_the_answer(tiny):
    """Also a client that reads nothing before it has sent everything, over a connection that is closed then."""
    content = b"x" * (64 << 20)
    for _ in range(3):
        refused(ask(tiny, content), 413, "body_too_large")
        refused(ask(tiny, iter([content[: 8 << 20]] * 4)), 413, "body_too_large")


def test_a_large_body_is_read_in_a_thread(tiny, monkeypatch):
    """So that nobody else waits for it."""
    threads = set()
    monkeypatch.setattr(bodies, "parsed", lambda raw: threads.add(threading.get_ident()) or parsed(raw))
    ask(tiny, json.dumps({"prompt": "a" * 100}).encode())
    ask(tiny, json.dumps({"prompt": "a " * 100_000}).encode())
    assert len(threads) == 2


@pytest.mark.parametrize("number", [b"1234,", b"0.12345,"])
def test_while_many_numbers_are_read_other_threads_go_on(number):
    """Reading beside the event loop is no use if it keeps Python to itself."""
    turns, is_over = 0, threading.Event()

    def other() -> None:
        nonlocal turns
        while not is_over.is_set():
            turns += 1
            time.sleep(0)  # whoever wants to may go on

    thread, before = threading.Thread(target=other), sys.getswitchinterval()
    sys.setswitchinterval(0.0005)
    try:
        thread.start()
        begin = turns
        parsed(b"[" + number * 500_000 + b"1]")
        end = turns
    finally:
        is_over.set()
        sys.setswitchinterval(before)
        thread.join()
    assert end - begin > 30, "where nobody else may go on it is about eight"


def raw_answer(server, sent: bytes, *, then_close: bool = False) -> bytes:
    """What the server says to bytes that are no whole request."""
    host, port = server.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=20) as connection:
        connection.sendall(sent)
        if then_close:
            connection.shutdown(socket.SHUT_WR)
        answer = b""
        while piece := connection.recv(65536):
            answer += piece
        return answer


HEAD = b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"


def test_a_body_that_does_not_arrive_is_refused_and_the_connection_closed(scripted):
    server = scripted(body_timeout_s=0.1)
    for sent in (b"Content-Length: 50\r\n\r\n{", b"Transfer-Encoding: chunked\r\n\r\n1\r\n{\r\n"):
        answer = raw_answer(server, HEAD + sent)
        assert answer.startswith(b"HTTP/1.1 408 ") and b"within 0.1 s" in answer
        assert b"connection: close" in answer.lower()
    assert ask(server).status_code == 200


def test_lengths_that_are_lies_hurt_nobody(tiny):
    for length in (b"-5", b"abc", b"1" * 30, b"16, 17"):
        answer = raw_answer(tiny, HEAD + b"Content-Length: " + length + b'\r\n\r\n{"prompt": "Hi"}', then_close=True)
        assert answer == b"" or answer.split()[1] in (b"400", b"413"), answer[:200]
    raw_answer(tiny, HEAD + b'Content-Length: 500\r\n\r\n{"prompt": "Hi"}', then_close=True)  # it leaves early
    assert ask(tiny).status_code == 200


def test_a_body_that_says_it_is_enormous_is_not_waited_for(tiny):
    begin = time.monotonic()
    answer = raw_answer(tiny, HEAD + b"Content-Length: 999999999999\r\n\r\n{")
    assert answer.startswith(b"HTTP/1.1 413 ") and b"999,999,999,999 bytes" in answer
    assert time.monotonic() - begin < 20, "the body's own time limit is longer"
