"""Fixtures for tests that download."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.checkpoint.hub_server import serve
from tests.checkpoint.hub_user import FILES, NAME, User


@pytest.fixture
def user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[User]:
    for key in ("HF_TOKEN", "KAISHU_HUB"):
        monkeypatch.delenv(key, raising=False)
    with serve({NAME: FILES}) as hub:
        yield User(hub, tmp_path, monkeypatch)
