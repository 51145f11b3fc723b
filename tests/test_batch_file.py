"""Batch files: what a line may be, and an output that no kill, cut or second writer spoils."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kaishu.batch_file import BatchOutput, answer_line, error_line, read_batch
from kaishu.errors import InvalidParameterError, InvalidRequestError
from kaishu.json_fields import MAX_BYTES

GOOD: dict[str, Any] = {"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": {"x": 1}}


def lines_of(tmp_path: Path, *texts: str | bytes | dict[str, Any]) -> list[Any]:
    path = tmp_path / "in.jsonl"
    written = [json.dumps(text) if isinstance(text, dict) else text for text in texts]
    path.write_bytes(b"\n".join(text if isinstance(text, bytes) else text.encode() for text in written))
    return list(read_batch(path))


def test_a_line_is_read(tmp_path):
    (line,) = lines_of(tmp_path, GOOD)
    assert (line.number, line.custom_id, line.url, line.body, line.error) == (1, "a", "/v1/completions", {"x": 1}, None)


def test_empty_lines_windows_ends_and_a_byte_order_mark_are_no_matter(tmp_path):
    text = json.dumps(GOOD).encode()
    other = json.dumps({**GOOD, "custom_id": "b"}).encode()
    lines = lines_of(tmp_path, b"\xef\xbb\xbf" + text + b"\r", b"", b"  \r", other, b"")
    assert [(line.number, line.custom_id, line.error) for line in lines] == [(1, "a", None), (4, "b", None)]


@pytest.mark.parametrize(
    "text",
    ["{", "[]", "null", '"x"', b"\xff\xfe", b"\0", '{"custom_id": "a", "custom_id": "b"}', "[" * 100_000, "{}",
     {**GOOD, "custom_id": ""}, {**GOOD, "custom_id": 5}, {**GOOD, "custom_id": None}, {**GOOD, "custom_id": "\ud800"}],
)  # fmt: skip
def test_a_line_without_a_custom_id_is_known_by_its_number_and_ends_nothing(tmp_path, text):
    before, broken, after = lines_of(tmp_path, GOOD, text, {**GOOD, "custom_id": "z"})
    assert before.error is None and after.error is None
    assert broken.custom_id is None and broken.key == 2 and broken.error.message.startswith("Line 2")


@pytest.mark.parametrize(
    "change, field",
    [
        ({"method": "GET"}, "method"),
        ({"method": None}, "method"),
        ({"url": "/v1/responses"}, "url"),
        ({"url": ["/v1/completions"]}, "url"),
        ({"body": []}, "body"),
        ({"body": None}, "body"),
        ({"extra": 1}, "extra"),
    ],
)
def test_what_else_is_wrong_is_answered_under_the_custom_id(tmp_path, change, field):
    (line,) = lines_of(tmp_path, {**GOOD, **change})
    assert line.key == "a" and line.error.field == field


def test_a_custom_id_that_was_there_is_an_error_that_names_the_first(tmp_path):
    lines = lines_of(tmp_path, GOOD, {**GOOD, "custom_id": "b"}, GOOD, {**GOOD, "url": "?"})
    assert [line.key for line in lines] == ["a", "b", 3, 4]
    assert "is that of line 1 already" in lines[2].error.message


def test_a_line_that_is_too_long_is_an_error_and_the_next_one_is_found(tmp_path):
    long = json.dumps({**GOOD, "body": {"x": "y" * (2 * MAX_BYTES + 100)}})
    padded = json.dumps({**GOOD, "custom_id": "p"}) + " " * MAX_BYTES
    lines = lines_of(tmp_path, long, padded, GOOD)
    assert [(line.key, line.error is None) for line in lines] == [(1, False), (2, False), ("a", True)]
    assert "bytes of JSON" in lines[0].error.message


def answers_of(keys: list[str | int]) -> list[dict[str, Any]]:
    wrong = InvalidParameterError("body", 1, "an object")
    return [
        answer_line("batch_req_1", key, 200, "req_1", {"text": f"你好\n{key}\ud800"})
        if isinstance(key, str)
        else error_line("batch_req_2", key, wrong)
        for key in keys
    ]


def keys_in(path: Path) -> list[str | int]:
    found = [json.loads(line) for line in path.read_bytes().splitlines()]
    return [one["error"]["line"] if one["custom_id"] is None else one["custom_id"] for one in found]


KEYS = st.lists(st.one_of(st.text(max_size=5), st.integers(1, 99)), unique=True, max_size=6)


@settings(deadline=None, max_examples=200)
@given(keys=KEYS, data=st.data())
def test_however_a_file_is_torn_the_next_run_completes_it(tmp_path_factory, keys, data):
    """Cut anywhere, and where a file system had room for more than was written, zeros."""
    path = tmp_path_factory.mktemp("torn") / "out.jsonl"
    keys = [key for key in keys if not isinstance(key, str) or not any("\ud800" <= x <= "\udfff" for x in key)]
    with BatchOutput(path) as output:
        output.write(answers_of(keys))
    whole = path.read_bytes()
    cut = data.draw(st.integers(0, len(whole)))
    zeros = data.draw(st.sampled_from([0, 0, 1, 4096]))
    path.write_bytes(whole[:cut] + bytes(zeros))
    with BatchOutput(path) as output:
        kept = whole[:cut].count(b"\n")
        assert output.done == set(keys[:kept])
        assert path.read_bytes() == b"".join(whole.splitlines(keepends=True)[:kept])
        output.write(answers_of(keys[kept:]))
        assert output.done == set(keys)
    assert path.read_bytes() == whole


@pytest.mark.parametrize(
    "content",
    [b"my notes", b"my notes\n", b'{"custom_id": "a"}\n', b'{"id": "x", "custom_id": "a", "response": null}', b"{}\n",
     b'{"id": "batch_req_1", "custom_id": null, "response": null, "error": null}\n{}\n'],
)  # fmt: skip
def test_a_file_that_no_run_has_written_is_left_alone(tmp_path, content):
    path = tmp_path / "notes"
    path.write_bytes(content)
    with pytest.raises(InvalidRequestError, match="no answer of an earlier run"):
        BatchOutput(path)
    assert path.read_bytes() == content
    path.unlink()
    BatchOutput(path).__exit__(None, None, None)  # the refusal held no lock


def test_damage_before_the_last_line_is_told_and_not_cut(tmp_path):
    path = tmp_path / "out"
    with BatchOutput(path) as output:
        output.write(answers_of(["a", "b", "c"]))
    first, second, third = path.read_bytes().splitlines(keepends=True)
    damaged = first + second[:-9] + b"\n" + third
    path.write_bytes(damaged)
    with pytest.raises(InvalidRequestError, match="its line 2 is no answer"):
        BatchOutput(path)
    assert path.read_bytes() == damaged


def test_two_runs_cannot_write_one_file(tmp_path):
    path = tmp_path / "out"
    with BatchOutput(path), pytest.raises(InvalidRequestError, match="Another run is writing"):
        BatchOutput(path)
    with BatchOutput(path):
        pass


def test_answers_are_on_the_disk_when_they_count_as_done(tmp_path, monkeypatch):
    path = tmp_path / "out"
    sizes = []
    with BatchOutput(path) as output:
        monkeypatch.setattr(os, "fsync", lambda number: sizes.append(os.fstat(number).st_size))
        output.write(answers_of(["a", 2]))
        assert sizes == [path.stat().st_size] and keys_in(path) == ["a", 2]
