"""Computed pages as a file, so that a text's beginning needn't be computed again by another process.

Owns the file: a safetensors file with the pages' bytes, the tokens that they stand for, what they depend on, and the
SHA-256 of all that. It tells damage from what was written; it can't tell who wrote it. Knows nothing of texts or chats.
Called between two steps, through blocking.py; only pages that are published are written, and those that are read are
published only once all of the file has been checked.

    token_ids  [n · page_tokens] I32
    about      [bytes] U8, JSON: the format, the model, the form of the pages, page_tokens
    pages      [n, page_bytes] U8, as KeepsPages.read_pages gives them
    sha256     [32] U8, of the bytes of the three above, in this order
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from kaishu.batch import KeepsPages
from kaishu.checkpoint.safetensors import StoredTensor, open_safetensors
from kaishu.checkpoint.writing import NewTensor, TensorFile
from kaishu.engine.core import EngineCore
from kaishu.engine.pages import Key, page_keys, page_tag
from kaishu.errors import CheckpointError, KaishuError, SavedPagesError
from kaishu.json_fields import parse_json_object

FORMAT = "kaishu pages 1"
_PIECE_BYTES = 16 << 20  # of pages that are in memory at once beside the engine's own
_MAX_ABOUT_BYTES = 1 << 16
_DIGEST_BYTES = 32
_BEGINNING = b'{"__metadata__":{"format":"pt"},"token_ids":'  # of the header of every file that was written here


@dataclass(frozen=True)
class SavedPages:
    """What a file of pages has.

    saved_tokens: how many tokens' keys and values are in it
    ready_tokens: how many of these the engine has, from the first on
    num_bytes:    how long the file is
    """

    saved_tokens: int
    ready_tokens: int
    num_bytes: int


def save_pages(core: EngineCore, token_ids: Sequence[int], file: Path) -> SavedPages | None:
    """Write what is computed of a text's beginning, in full pages. Only such a file is ever replaced, as a whole.

    return: None, and there is no such file any more, where no page of it is computed
    raises: SavedPagesError when the file is something else, or can't be written
    """
    executor, size = _keeper(core), core.pool.page_tokens
    pages = core.pool.find(_keys(core, token_ids), token_ids)
    about = np.frombuffer(json.dumps(_about(core)).encode(), np.uint8)
    ids = np.array(token_ids[: len(pages) * size], "<i4")
    tensors = {
        "token_ids": NewTensor("I32", ids.shape),
        "about": NewTensor("U8", about.shape),
        "pages": NewTensor("U8", (len(pages), executor.page_bytes)),
        "sha256": NewTensor("U8", (_DIGEST_BYTES,)),
    }
    step = _pages_a_piece(executor)
    try:
        if file.exists() and not is_saved_pages(file):
            raise SavedPagesError(f"{file} exists and is no file of saved pages.", hint="Choose another name.")
        if not pages:
            file.unlink(missing_ok=True)
            return None
        with _replaced(file) as partial, TensorFile(partial, tensors) as written:
            written.write("token_ids", ids)
            written.write("about", about)
            digest = hashlib.sha256(ids.tobytes() + about.tobytes())
            for first in range(0, len(pages), step):
                contents = executor.read_pages(pages[first : first + step])
                digest.update(contents.reshape(-1).data)
                written.write("pages", contents, first * executor.page_bytes)
            written.write("sha256", np.frombuffer(digest.digest(), np.uint8))
        return SavedPages(len(ids), len(ids), file.stat().st_size)
    except OSError as error:
        raise SavedPagesError(f"{file} can't be written: {error.strerror or error}.") from error


def restore_pages(core: EngineCore, file: Path) -> SavedPages:
    """Read a file of pages, so that requests which begin with its tokens find them computed.

    Pages that requests hold are never touched; where too few others are left, the text's first pages are restored.

    raises: SavedPagesError, and nothing is restored
    """
    try:
        if file.exists() and not file.is_file():  # asked before opening, because opening a pipe waits for a writer
            raise SavedPagesError(f"{file} is no file.")
        with file.open("rb") as opened:
            content = _Content.checked(core, file, opened)
            num_pages = _put_back(core, content)
    except OSError as error:
        raise SavedPagesError(f"{file} can't be read: {error.strerror or error}.") from error
    return SavedPages(len(content.token_ids), num_pages * core.pool.page_tokens, content.num_bytes)


def is_saved_pages(file: Path) -> bool:
    """Whether a file begins as those that are written here, so that it may be replaced. raises: OSError"""
    if not file.is_file():
        return False
    with file.open("rb") as opened:
        opened.seek(8)
        return opened.read(len(_BEGINNING)) == _BEGINNING


@dataclass(frozen=True)
class _Content:
    """An open file of which all but the pages' bytes is checked.

    before: the bytes that are digested before those of the pages
    digest: what SHA-256 should give
    """

    file: Path
    opened: BinaryIO
    pages: StoredTensor
    token_ids: list[int]
    num_bytes: int
    before: bytes
    digest: bytes

    @classmethod
    def checked(cls, core: EngineCore, file: Path, opened: BinaryIO) -> _Content:
        """raises: SavedPagesError, OSError"""
        try:
            header = open_safetensors(file)
        except CheckpointError as error:
            raise _damaged(file, "it is cut short, or its header doesn't hold") from error
        tensors = dict(header.tensors)
        found = {name: (tensor.dtype, len(tensor.shape)) for name, tensor in tensors.items()}
        if found != {"token_ids": ("I32", 1), "about": ("U8", 1), "pages": ("U8", 2), "sha256": ("U8", 1)}:
            raise SavedPagesError(f"{file} is no file of saved pages.")
        if tensors["sha256"].nbytes != _DIGEST_BYTES or tensors["about"].nbytes > _MAX_ABOUT_BYTES:
            raise _damaged(file, "the sizes in its header are impossible")
        about, digest = (_whole(file, opened, tensors[name]) for name in ("about", "sha256"))
        _check_about(core, file, about)
        pages, (num_ids,) = tensors["pages"], tensors["token_ids"].shape
        if (
            pages.shape != (num_ids // core.pool.page_tokens, _keeper(core).page_bytes)
            or num_ids % core.pool.page_tokens
        ):
            raise _damaged(file, "the sizes in its header are impossible")
        ids = _whole(file, opened, tensors["token_ids"])
        token_ids: list[int] = np.frombuffer(ids, "<i4").tolist()
        return cls(file, opened, pages, token_ids, header.num_bytes, ids + about, digest)

    def pieces(self, count: int) -> Iterator[tuple[int, NDArray[np.uint8]]]:
        """`count` pages after another, each time with the number of the first; [count, page_bytes] uint8.

        raises: SavedPagesError, after the last, if any byte of the file isn't what was written
        """
        digest = hashlib.sha256(self.before)
        num_pages, page_bytes = self.pages.shape
        for first in range(0, num_pages, count):
            wanted = min(count, num_pages - first)
            piece = _read(self.file, self.opened, self.pages.offset + first * page_bytes, wanted * page_bytes)
            digest.update(piece)
            yield first, np.frombuffer(piece, np.uint8).reshape(wanted, page_bytes)
        if digest.digest() != self.digest:
            raise _damaged(self.file, "its SHA-256 isn't the one that was written")


def _put_back(core: EngineCore, content: _Content) -> int:
    """return: how many of the file's pages, from the first on, are in the engine now; raises: as `pieces`"""
    executor, pool, token_ids = _keeper(core), core.pool, content.token_ids
    keys = _keys(core, token_ids)
    found = pool.find(keys, token_ids)
    pool.hold(found)
    taken = pool.take(min(len(keys) - len(found), pool.num_available))
    assert taken is not None, "so many were available"
    pages = found + taken
    try:
        for first, contents in content.pieces(_pages_a_piece(executor)):
            start, end = max(first, len(found)), min(first + len(contents), len(pages))
            if start < end:
                executor.write_pages(pages[start:end], contents[start - first : end - first])
        for index in range(len(found), len(pages)):
            own = token_ids[index * pool.page_tokens : (index + 1) * pool.page_tokens]
            pool.publish(pages[index], keys[index], own)
    finally:
        pool.release(pages)  # what isn't published is free again
    return len(pages)


def _check_about(core: EngineCore, file: Path, about: bytes) -> None:
    """raises: SavedPagesError that says in what the file differs from what the engine needs"""
    try:
        said = parse_json_object(about, "what it says about itself", KaishuError)
    except KaishuError as error:
        raise _damaged(file, "what it says about itself can't be read") from error
    differs = {
        "format": f"{file} is in another format than {FORMAT!r}.",
        "model": f"{file} was saved with another model, or with other options for its weights, keys and values.",
        "form": f"{file} was saved by another version of Kaishu, or on another kind of processor.",
        "page_tokens": f"{file} has pages of another size; here they have {core.pool.page_tokens} tokens.",
    }
    for name, expected in _about(core).items():
        if said.get(name) != expected:
            raise SavedPagesError(differs[name])


def _about(core: EngineCore) -> dict[str, object]:
    """What the pages of an engine depend on."""
    assert core.settings.model_tag, "pages that are saved say whose they are"
    return {
        "format": FORMAT,
        "model": core.settings.model_tag.hex(),
        "form": _keeper(core).page_form,
        "page_tokens": core.pool.page_tokens,
    }


def _keeper(core: EngineCore) -> KeepsPages:
    if not isinstance(core.executor, KeepsPages):
        raise SavedPagesError("What this executor has computed can't be taken out of it, nor put back.")
    return core.executor


def _keys(core: EngineCore, token_ids: Sequence[int]) -> list[Key]:
    return page_keys(token_ids, core.pool.page_tokens, page_tag(core.settings.model_tag, salt=""))


def _pages_a_piece(executor: KeepsPages) -> int:
    return max(1, _PIECE_BYTES // executor.page_bytes)


def _whole(file: Path, opened: BinaryIO, tensor: StoredTensor) -> bytes:
    return _read(file, opened, tensor.offset, tensor.nbytes)


def _read(file: Path, opened: BinaryIO, offset: int, num_bytes: int) -> bytes:
    opened.seek(offset)
    found = opened.read(num_bytes)
    if len(found) != num_bytes:
        raise _damaged(file, "it became shorter while it was read")
    return found


def _damaged(file: Path, what: str) -> SavedPagesError:
    return SavedPagesError(f"{file} is damaged: {what}.", hint="What it held is computed again when it is needed.")


@contextmanager
def _replaced(file: Path) -> Iterator[Path]:
    """yields: where to write; when the context ends well, that becomes the file, else it goes"""
    partial = file.with_name(f"{file.name}.{os.getpid()}.partial")
    try:
        yield partial
        partial.replace(file)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
