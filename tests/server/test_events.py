"""Server-sent events as bytes: an independent reader, written after the HTML standard, gets back what was sent."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from kaishu.server.events import DONE, event

TEXTS = st.text() | st.sampled_from(["a\nb", "\r\n", "\u2028\u2029", "data: x\n\n", "😀", "\ufeff", "\x00", ": x"])
VALUES = st.dictionaries(TEXTS, TEXTS | st.integers() | st.lists(TEXTS, max_size=3), max_size=4)


def read(stream: bytes) -> list[tuple[str, str]]:
    """Type and data of each event; HTML standard, section 9.2.6."""
    text = stream.decode().removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")
    found, kind, data = [], "", []
    for line in text.split("\n"):
        if not line:
            if data:
                found.append((kind or "message", "\n".join(data)))
            kind, data = "", []
            continue
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if name == "data":
            data.append(value)
        elif name == "event":
            kind = value
    return found


@given(st.lists(VALUES, max_size=4))
def test_a_reader_of_the_standard_gets_back_what_was_sent(values):
    found = read(b"".join(event(value) for value in values) + DONE)
    assert [(kind, json.loads(data)) for kind, data in found[:-1]] == [("message", value) for value in values]
    assert found[-1] == ("message", "[DONE]")


@given(VALUES)
def test_an_event_can_have_a_type(value):
    ((kind, data),) = read(event(value, "response.created"))
    assert kind == "response.created" and json.loads(data) == value


def test_text_is_sent_as_it_is_and_without_needless_space():
    assert event({"a": "楷书", "b": [1, 2]}) == 'data: {"a":"楷书","b":[1,2]}\n\n'.encode()
