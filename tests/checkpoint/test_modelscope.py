"""ModelScope's own ways: its list of files is a stranger's, and its cache is ours."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kaishu.checkpoint import modelscope
from kaishu.errors import HubUnavailableError, KaishuError, ModelNotFoundError
from tests.checkpoint.hub_user import FILES, NAME, NEEDED, User, names_in


def test_paths_that_a_hub_lists_cannot_leave_the_folder(user: User) -> None:
    before = set(user.home.parent.rglob("evil*.*"))  # of other tests
    user.hub.models["org/evil"] = {
        **{name: FILES[name] for name in NEEDED},
        "../../evil.jinja": b"x",
        "additional_chat_templates/../../evil.jinja": b"x",
        "/tmp/evil.jinja": b"x",
        "model-../x-of-/../../evil.safetensors": b"x",
    }
    assert names_in(user.resolve("modelscope:org/evil")["folder"]) == NEEDED
    assert set(user.home.parent.rglob("evil*.*")) == before


@pytest.mark.parametrize(
    "answer, error",
    [
        ({}, ModelNotFoundError),
        ({"Code": 200}, ModelNotFoundError),
        ({"Code": 200, "Data": []}, ModelNotFoundError),
        ({"Code": 10010205001, "Message": "record not found"}, ModelNotFoundError),
        ({"Code": 200, "Data": {"Files": [{"Path": 3, "Size": 1}]}}, HubUnavailableError),
        ({"Code": 200, "Data": {"Files": [{"Path": "config.json"}]}}, HubUnavailableError),
        ({"Code": 200, "Data": {"Files": [{"Path": "config.json", "Size": -1}]}}, HubUnavailableError),
        ({"Code": 200, "Data": {"Files": [{"Path": "config.json", "Size": 1 << 60}]}}, HubUnavailableError),
        ({"Code": 200, "Data": {"Files": [None]}}, KaishuError),
    ],
)
def test_a_strange_list_of_files_is_an_error_and_nothing_is_written(
    answer: dict[str, Any], error: type, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(modelscope, "get_json", lambda *_: answer)
    with pytest.raises(error):
        modelscope.fetch(NAME, "master", None)
    assert not list(tmp_path.iterdir())


def test_the_cache_is_where_the_environment_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert modelscope.cache_folder(NAME, "a/b") == tmp_path / "kaishu" / "modelscope" / NAME / "a--b"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert modelscope.cache_folder(NAME, "master") == tmp_path / ".cache" / "kaishu" / "modelscope" / NAME / "master"
