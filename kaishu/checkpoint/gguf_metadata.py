"""What a GGUF file says about its model: typed values under keys, read with bounds and decoded when asked for.

Owns the value types of the format (https://github.com/ggml-org/ggml/blob/master/docs/gguf.md) and the cursor that walks
over a header without stepping outside it. Knows nothing of tensors or of what the keys mean. Used by gguf.py.

A tokenizer's arrays are nearly the whole header: 151,936 tokens and as many merges. Opening walks over their lengths
and no more; who needs the strings pays for decoding them.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from kaishu.checkpoint.safetensors import RESUME_HINT
from kaishu.errors import CheckpointError, shown

MAX_HEADER_BYTES = 32 << 20  # a vocabulary of 262,144 with half a million merges takes 16 MB
_MAX_ENTRIES = 65_536
_MAX_STRINGS = 1 << 20  # in all arrays together; that vocabulary has 0.8 million. Bounds what walking and decoding cost
_MAX_DEPTH = 4
_STRING, _ARRAY = 8, 9
_NUMBERS: Mapping[int, str] = {
    0: "u1",
    1: "i1",
    2: "<u2",
    3: "<i2",
    4: "<u4",
    5: "<i4",
    6: "<f4",
    7: "?",
    10: "<u8",
    11: "<i8",
    12: "<f8",
}
_NUMBER_BYTES = {type_id: np.dtype(storage).itemsize for type_id, storage in _NUMBERS.items()}
_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")


class HeaderCursor:
    """Reads a header from front to back. Every count is held against the bytes that are left before it is believed.

    name:   the file's name, for messages
    buffer: the file's first bytes, at most MAX_HEADER_BYTES
    size:   how many bytes the whole file has
    """

    def __init__(self, name: str, buffer: Any, size: int) -> None:
        self.name = name
        self.position = 0
        self._buffer = buffer
        self._limit = len(buffer)
        self._size = size
        self._strings_left = _MAX_STRINGS

    def u32(self, what: str) -> int:
        """An unsigned integer of 4 bytes. what: for the message when the file ends before it"""
        return self._integer(_U32, what)

    def u64(self, what: str) -> int:
        """An unsigned integer of 8 bytes."""
        return self._integer(_U64, what)

    def text(self, what: str, longest: int) -> str:
        """A length and that many bytes of UTF-8, at most `longest`."""
        length = self.u64(what)
        if length > longest:
            raise CheckpointError(f"{self.name}: {what} has {length:,} bytes; allowed: {longest:,}.")
        start = self.skip(length, what)
        return decoded(self._buffer[start : start + length], self.name, what)

    def skip(self, num_bytes: int, what: str) -> int:
        """Step over bytes that must be there. return: where they begin"""
        start = self.position
        if num_bytes > self._limit - start:
            raise self._too_short(what)
        self.position = start + num_bytes
        return start

    def skip_value(self, type_id: int, what: str) -> None:
        """Step over one value of any type."""
        if type_id in _NUMBER_BYTES:
            self.skip(_NUMBER_BYTES[type_id], what)
        elif type_id == _STRING:
            self._skip_strings(1, what)
        elif type_id == _ARRAY:
            self._skip_array(what, 1)
        else:
            raise self._unknown_type(type_id, what)

    def _skip_array(self, what: str, depth: int) -> None:
        type_id, count = self.u32(what), self.u64(what)
        if type_id in _NUMBER_BYTES:
            self.skip(count * _NUMBER_BYTES[type_id], what)
        elif type_id == _STRING:
            self._skip_strings(count, what)
        elif type_id == _ARRAY:
            if depth == _MAX_DEPTH:
                raise CheckpointError(f"{self.name}: {what} has arrays in arrays, more than {_MAX_DEPTH} deep.")
            self._spend(count, 12, what)
            for _ in range(count):
                self._skip_array(what, depth + 1)
        else:
            raise self._unknown_type(type_id, what)

    def _skip_strings(self, count: int, what: str) -> None:
        self._spend(count, 8, what)
        buffer, position, unpack = self._buffer, self.position, _U64.unpack_from
        try:
            for _ in range(count):
                position += 8 + unpack(buffer, position)[0]
        except (struct.error, OverflowError, IndexError):  # a length led outside, perhaps beyond what an index can be
            raise self._too_short(what) from None
        if position > self._limit:
            raise self._too_short(what)
        self.position = position

    def _spend(self, count: int, fewest_bytes_each: int, what: str) -> None:
        if count * fewest_bytes_each > self._limit - self.position:
            raise CheckpointError(f"{self.name}: {what} would have {count:,} items, more than the file has bytes for.")
        self._strings_left -= count
        if self._strings_left < 0:
            raise CheckpointError(f"{self.name}: more than {_MAX_STRINGS:,} strings by {what}; no vocabulary has that.")

    def _integer(self, form: struct.Struct, what: str) -> int:
        start = self.skip(form.size, what)
        value: int = form.unpack_from(self._buffer, start)[0]
        return value

    def _too_short(self, what: str) -> CheckpointError:
        if self._size > self._limit:
            return CheckpointError(
                f"{self.name}: {what} reaches beyond the first {self._limit:,} bytes, the most that a header may take."
            )
        return CheckpointError(f"{self.name} ends at {self._size:,} bytes, inside {what}.", hint=RESUME_HINT)

    def _unknown_type(self, type_id: int, what: str) -> CheckpointError:
        return CheckpointError(f"{self.name}: {what} is of type {type_id}; allowed: 0 to 12.")


@dataclass(frozen=True)
class _Place:
    type_id: int
    start: int


class GgufMetadata(Mapping[str, Any]):
    """The metadata as a read-only mapping; a value is decoded each time it is asked for.

    Numbers come as int, float or bool (a float32 as the shortest decimal that rounds to it: 1e-06), text as str, arrays
    of numbers as a read-only numpy array, arrays of strings as list[str], arrays of arrays as list.

    raises: CheckpointError from `metadata[key]` when the value's text isn't UTF-8 or a boolean is neither 0 nor 1
    """

    def __init__(self, name: str, header: bytes, places: Mapping[str, _Place]) -> None:
        self._name = name
        self._header = header
        self._places = places

    def __len__(self) -> int:
        return len(self._places)

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __contains__(self, key: object) -> bool:
        return key in self._places

    def __getitem__(self, key: str) -> Any:
        place = self._places[key]
        return self._value(place.type_id, place.start, key)[0]

    def count(self, key: str) -> int | None:
        """How many items an array has, without decoding them; None where there is no such array."""
        place = self._places.get(key)
        if place is None or place.type_id != _ARRAY:
            return None
        count: int = _U64.unpack_from(self._header, place.start + 4)[0]
        return count

    def _value(self, type_id: int, start: int, key: str) -> tuple[Any, int]:
        """A value and where it ends."""
        if type_id == _ARRAY:
            item_type = _U32.unpack_from(self._header, start)[0]
            count = _U64.unpack_from(self._header, start + 4)[0]
            return self._items(item_type, count, start + 12, key)
        if type_id == _STRING:
            return self._text(start, key)
        numbers, end = self._items(type_id, 1, start, key)
        number = numbers[0]
        return float(str(number)) if type_id == 6 else number.item(), end

    def _items(self, type_id: int, count: int, start: int, key: str) -> tuple[Any, int]:
        if type_id in _NUMBERS:
            storage = _NUMBERS[type_id]
            numbers = np.frombuffer(self._header, "u1" if storage == "?" else storage, count, start)
            if storage == "?":
                if numbers.size and numbers.max() > 1:
                    raise CheckpointError(f"{self._name}: {key} has a boolean {numbers.max()}; allowed: 0 or 1.")
                numbers = numbers.view(np.bool_)
            return numbers, start + numbers.nbytes
        if type_id == _STRING:
            return self._strings(count, start, key)
        items = []
        for _ in range(count):
            item, start = self._value(_ARRAY, start, key)
            items.append(item)
        return items, start

    def _strings(self, count: int, start: int, key: str) -> tuple[list[str], int]:
        header, unpack = self._header, _U64.unpack_from
        texts: list[str] = []
        append: Callable[[str], None] = texts.append
        try:
            for _ in range(count):
                end = start + 8 + unpack(header, start)[0]
                append(header[start + 8 : end].decode())
                start = end
        except UnicodeDecodeError:
            raise CheckpointError(f"{self._name}: item {len(texts):,} of {key} is not UTF-8.") from None
        return texts, start

    def _text(self, start: int, key: str) -> tuple[str, int]:
        end = start + 8 + _U64.unpack_from(self._header, start)[0]
        return decoded(self._header[start + 8 : end], self._name, key), end


def walk_metadata(cursor: HeaderCursor, count: int) -> dict[str, _Place]:
    """Step over the metadata and note where each value lies.

    count:  how many pairs of key and value the header announces
    raises: CheckpointError naming the key where something is wrong
    """
    if count > _MAX_ENTRIES:
        raise CheckpointError(f"{cursor.name} would have {count:,} metadata keys; allowed: {_MAX_ENTRIES:,}.")
    places: dict[str, _Place] = {}
    for number in range(count):
        key = cursor.text(f"metadata key {number}", 65_535)
        what = f"the metadata {shown(key)}"
        if key in places:
            raise CheckpointError(f"{cursor.name} has {what} twice; allowed: once.")
        type_id = cursor.u32(what)
        places[key] = _Place(type_id, cursor.position)
        cursor.skip_value(type_id, what)
    return places


def decoded(text: bytes, name: str, what: str) -> str:
    """UTF-8 bytes as text. raises: CheckpointError that says what isn't UTF-8"""
    try:
        return text.decode()
    except UnicodeDecodeError:
        raise CheckpointError(f"{name}: {what} is not UTF-8: {shown(text)}.") from None
