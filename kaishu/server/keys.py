"""API keys: who may ask, by what they know.

Owns reading them, from a file and from the environment, and comparing. A key itself is kept nowhere, only its digest,
so it can't come into a log or a message; a key that is refused is named by where it stands. Read by app.py, asked by
gate.py.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import re
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from kaishu.errors import ConfigError

ENVIRONMENT = "KAISHU_API_KEYS"
SHORTEST = 16  # characters; what is shorter can be found by trying
_NAME, _KEY = re.compile(r"[A-Za-z0-9_.-]{1,64}"), re.compile(r"[!-~]+")
_COMMENT = re.compile(r"(^|\s)#.*")  # a key may have a # within
_HINT = """Make one with `python3 -c "import secrets; print(secrets.token_urlsafe(32))"`."""
_LOG = logging.getLogger("kaishu.server")


@dataclass(frozen=True)
class Key:
    """One key.

    name:   whose it is, for logs and limits
    digest: SHA-256 of the key
    """

    name: str
    digest: bytes


class Keys:
    """All keys; none at all lets everybody in."""

    def __init__(self, keys: Sequence[Key] = ()) -> None:
        self._keys = tuple(keys)

    def __len__(self) -> int:
        return len(self._keys)

    def name_of(self, said: str) -> str | None:
        """Whose key it is, or None. Takes the same time whichever it is, and whether it is one."""
        digest, found = _digest(said), None
        for key in self._keys:
            if hmac.compare_digest(key.digest, digest):
                found = key.name
        return found


def read_keys(file: Path | None, environment: str = "") -> Keys:
    """The keys of a file, and those of KAISHU_API_KEYS after them.

    file:        a key in each line, `NAME KEY` or only `KEY`; a word that begins with # begins a comment; empty lines
                 are allowed
    environment: keys with commas between them
    raises:      ConfigError for a file that can't be read or has no key, and for a key that is empty, short, not plain
                 or there twice; it says where the key stands, never what it is
    """
    found: list[Key] = []
    for where, name, key in [*_of_file(file), *_of_environment(environment)]:
        _check(where, name, key)
        digest = _digest(key)
        for other in found:
            if other.digest == digest:
                raise ConfigError(f"{where}: this key was there before, as that of {other.name}.")
            if other.name == name:
                raise ConfigError(f"{where}: the name {name} was there before.", hint="Give each key its own name.")
        found.append(Key(name, digest))
    return Keys(found)


def _of_file(file: Path | None) -> Iterator[tuple[str, str, str]]:
    if file is None:
        return
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
        others_may_read = file.stat().st_mode & (stat.S_IRGRP | stat.S_IROTH)
    except (OSError, UnicodeDecodeError) as error:
        said = error.strerror if isinstance(error, OSError) else "it isn't UTF-8"
        raise ConfigError(f"The file of API keys {file} can't be read: {said}.") from None
    if others_may_read:
        _LOG.warning("Other users of this machine can read the API keys in %s. Run `chmod 600 %s`.", file, file)
    is_empty = True
    for number, line in enumerate(lines, 1):
        words = _COMMENT.sub("", line).split()
        where = f"{file}, line {number}"
        if len(words) > 2:
            raise ConfigError(f"{where} has {len(words)} words; allowed: `NAME KEY` or only `KEY`.")
        if words:
            is_empty = False
            yield where, words[0] if len(words) == 2 else f"line-{number}", words[-1]
    if is_empty:  # an empty file would let everybody in
        raise ConfigError(f"The file of API keys {file} has no key.", hint=_HINT)


def _of_environment(said: str) -> Iterator[tuple[str, str, str]]:
    for number, key in enumerate(said.split(",") if said.strip() else (), 1):
        yield f"{ENVIRONMENT}, key {number}", f"environment-{number}", key.strip()


def _check(where: str, name: str, key: str) -> None:
    if not _NAME.fullmatch(name):
        raise ConfigError(f"{where}: the name has other characters than letters, digits, `_`, `.` and `-`, or over 64.")
    if not key:
        raise ConfigError(f"{where} is empty.", hint=_HINT)
    if not _KEY.fullmatch(key):
        raise ConfigError(f"{where}: a key may have letters, digits and signs of ASCII alone.", hint=_HINT)
    if len(key) < SHORTEST:
        found = f"{len(key)} character" + ("s" if len(key) != 1 else "")
        raise ConfigError(f"{where}: the key has {found}; allowed: {SHORTEST} or more.", hint=_HINT)


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", errors="surrogateescape")).digest()
