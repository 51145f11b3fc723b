"""Files of OpenAI's batch form: many requests in, an answer to each out, a line each.

Owns the two files: what a line may be, and that the output never has half an answer, the same one twice, or two
writers. A process may be killed at any moment; what is lost then is the answers that were on their way. Knows nothing
of models: batch_run.py computes the answers.

An answer has the custom_id of its request, by which a later run knows that it is done. A line without a custom_id of
its own (no JSON, or a custom_id that an earlier line has) gets an error that names the line's number instead.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from kaishu.errors import InvalidParameterError, InvalidRequestError
from kaishu.json_fields import MAX_BYTES, parse_json_object, shown
from kaishu.locked_file import open_locked

URLS = ("/v1/chat/completions", "/v1/completions", "/v1/embeddings")
ID_PREFIX = "batch_req_"
_BEGINNING = f'{{"id": "{ID_PREFIX}'.encode()  # of every line that we write
_KEYS = ("custom_id", "method", "url", "body")


@dataclass(frozen=True)
class BatchLine:
    """One line of the input.

    number:    from 1
    custom_id: nobody else's; None where the line hasn't one that can be used
    url, body: what is asked; absent if there is an error
    error:     what is wrong with the line
    """

    number: int
    custom_id: str | None
    url: str = ""
    body: Mapping[str, Any] | None = None
    error: InvalidRequestError | None = None

    @property
    def key(self) -> str | int:
        """What an answer to it is known by."""
        return self.number if self.custom_id is None else self.custom_id


class _LineError(InvalidRequestError):
    """A line that isn't JSON."""

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message, field="line", hint=hint)


def read_batch(path: Path) -> Iterator[BatchLine]:
    """The lines of an input file, one after another; empty ones are left out.

    raises: OSError when the file can't be read; nothing that a line says is an exception
    """
    first_with: dict[str, int] = {}
    with path.open("rb") as file:
        for number, text in enumerate(_texts(file), 1):
            if number == 1:
                text = text.removeprefix(b"\xef\xbb\xbf")  # noqa: PLW2901  # some editors begin UTF-8 with it
            if text.strip():
                yield _line(number, text, first_with)


def _texts(file: IO[bytes]) -> Iterator[bytes]:
    """The lines as they are; of one that is too long as much as shows that it is."""
    while text := file.readline(MAX_BYTES + 1):
        is_whole = text.endswith(b"\n") or len(text) <= MAX_BYTES
        while not is_whole:
            rest = file.readline(MAX_BYTES)
            is_whole = rest.endswith(b"\n") or not rest
        yield text


def _line(number: int, text: bytes, first_with: dict[str, int]) -> BatchLine:
    try:
        fields = parse_json_object(text, f"Line {number}", _LineError)
        custom_id = _custom_id(number, fields, first_with)
    except InvalidRequestError as error:
        return BatchLine(number, None, error=error)
    try:
        url, body = _request(fields)
    except InvalidRequestError as error:
        return BatchLine(number, custom_id, error=error)
    return BatchLine(number, custom_id, url, body)


def _custom_id(number: int, fields: Mapping[str, Any], first_with: dict[str, int]) -> str:
    custom_id = fields.get("custom_id")
    where = f"Line {number}: custom_id"
    if not isinstance(custom_id, str) or not custom_id or any("\ud800" <= letter <= "\udfff" for letter in custom_id):
        allowed = "a text that isn't empty, and another one in every line"
        raise InvalidRequestError(f"{where} is {shown(custom_id)}; allowed: {allowed}.", field="custom_id")
    first = first_with.setdefault(custom_id, number)
    if first != number:
        raise InvalidRequestError(f"{where} {shown(custom_id)} is that of line {first} already.", field="custom_id")
    return custom_id


def _request(fields: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
    for key in fields:
        if key not in _KEYS:
            raise InvalidRequestError(f"There is no {shown(key)} in a line; allowed: {', '.join(_KEYS)}.", field=key)
    method, url, body = fields.get("method"), fields.get("url"), fields.get("body")
    if method != "POST":
        raise InvalidParameterError("method", method, "POST")
    if not isinstance(url, str) or url not in URLS:
        raise InvalidParameterError("url", url, ", ".join(URLS))
    if not isinstance(body, dict):
        raise InvalidParameterError("body", body, "a JSON object, {...}")
    return url, body


class BatchOutput:
    """The output file, which belongs to this process until it is closed.

    done: the keys (see BatchLine) of all lines that are answered
    """

    def __init__(self, path: Path) -> None:
        """Open it, made if it isn't there, and go on where an earlier run stopped: half a line at its end is cut off.

        raises: InvalidRequestError where another run writes it, or it holds what no run has written; OSError
        """
        self.path, self.done = path, set[str | int]()
        try:
            self._file: IO[bytes] = open_locked(path)
        except BlockingIOError:
            raise InvalidRequestError(
                f"Another run is writing {path}.", field="output", hint="Wait for it, or give another file."
            ) from None
        try:
            self._recover()
        except BaseException:
            self._file.close()
            raise

    def write(self, answers: Sequence[Mapping[str, Any]]) -> None:
        """Add answers, a line each, and have them on the disk when this returns.

        answers: made by answer_line or error_line
        raises:  OSError
        """
        # A lone surrogate that is part of a message can't be UTF-8, but what it is replaced by, \ud800, is JSON.
        lines = [json.dumps(answer, ensure_ascii=False, allow_nan=False) + "\n" for answer in answers]
        self._file.write("".join(lines).encode("utf-8", "backslashreplace"))
        self._sync()
        self.done.update(_key(answer) for answer in answers)

    def __enter__(self) -> BatchOutput:
        return self

    def __exit__(self, _type: type | None, _error: BaseException | None, _trace: TracebackType | None) -> None:
        self._file.close()

    def _recover(self) -> None:
        self._file.seek(0)
        end = 0
        for number, text in enumerate(self._file, 1):
            key = _key_of(text)
            if key is None:
                if self._file.read(1) or not _is_torn(text):
                    raise self._foreign(number)
                self._file.truncate(end)
                self._sync()
                return
            self.done.add(key)
            end += len(text)
        folder = os.open(self.path.absolute().parent, os.O_RDONLY)  # so that a new file's name is on the disk, too
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def _sync(self) -> None:
        self._file.flush()
        os.fsync(self._file.fileno())

    def _foreign(self, number: int) -> InvalidRequestError:
        return InvalidRequestError(
            f"{self.path} exists, and its line {number} is no answer of an earlier run.",
            field="output",
            hint="Give another file, or remove that line.",
        )


def answer_line(
    answer_id: str, custom_id: str, status: int, request_id: str, body: Mapping[str, Any]
) -> dict[str, Any]:
    """The output's line for a request that has a custom_id; also for one that failed, with the error as its body."""
    response = {"status_code": status, "request_id": request_id, "body": body}
    return {"id": answer_id, "custom_id": custom_id, "response": response, "error": None}


def error_line(answer_id: str, number: int, error: InvalidRequestError) -> dict[str, Any]:
    """The output's line for a line that has no custom_id of its own."""
    said = {"code": "invalid_line", "message": error.message, "param": error.field, "line": number}
    return {"id": answer_id, "custom_id": None, "response": None, "error": said}


def _key(answer: Mapping[str, Any]) -> str | int:
    custom_id = answer["custom_id"]
    key: str | int = answer["error"]["line"] if custom_id is None else custom_id
    return key


def _key_of(text: bytes) -> str | int | None:
    """Whose answer a line of the output is; None where it isn't one, or not all of one."""
    if not text.endswith(b"\n") or not text.startswith(_BEGINNING):
        return None
    try:
        key = _key(json.loads(text))
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
    return key if isinstance(key, str | int) else None


def _is_torn(text: bytes) -> bool:
    """Whether what ends a file is the beginning of a line of ours, or what a file system leaves of one, zeros."""
    begun = text.rstrip(b"\0\n")
    return begun.startswith(_BEGINNING) or _BEGINNING.startswith(begun)
