"""Transfers that break, resume, arrive damaged or meet each other; the same for both hubs."""

from __future__ import annotations

import fcntl
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from kaishu.checkpoint.download import ProgressLines, is_complete, needed_files
from kaishu.checkpoint.hub import resolve
from kaishu.errors import CheckpointError
from tests.checkpoint.hub_user import DRIVER, FILES, NAME, PREFIXES, WEIGHTS, User, contents_of


@pytest.mark.parametrize("prefix", PREFIXES)
def test_a_broken_transfer_resumes_where_it_broke(user: User, prefix: str) -> None:
    user.hub.break_after_bytes, user.hub.max_breaks = 1_000_000, 10
    answer = user.resolve(prefix + NAME)
    assert contents_of(answer["folder"])["model.safetensors"] == WEIGHTS
    ranges = [headers.get("Range") for headers in user.hub.gets(r"model\.safetensors$")]
    assert ranges == [None, "bytes=1000000-", "bytes=2000000-", "bytes=3000000-"]


@pytest.mark.parametrize("prefix", PREFIXES)
def test_what_arrived_before_a_failure_is_not_fetched_again(user: User, prefix: str) -> None:
    part_folder = user.home
    user.hub.break_after_bytes = 0  # nothing arrives: the first run gives up
    failed = user.resolve(prefix + NAME)
    assert failed["error"] == "HubUnavailableError" and "broke off after 0 of 3,072,000 bytes" in failed["message"]
    (part,) = part_folder.rglob("*.part")
    part.write_bytes(WEIGHTS[:123_456])  # as an interrupted process leaves it
    user.hub.break_after_bytes = None
    user.hub.requests.clear()
    answer = user.resolve(prefix + NAME)
    assert contents_of(answer["folder"])["model.safetensors"] == WEIGHTS
    assert [headers.get("Range") for headers in user.hub.gets(r"model\.safetensors$")] == ["bytes=123456-"]
    assert not list(user.home.rglob("*.part"))


@pytest.mark.parametrize("prefix", PREFIXES)
def test_a_partial_file_that_is_too_long_is_begun_anew(user: User, prefix: str) -> None:
    """As one of an older, larger version is."""
    user.hub.break_after_bytes = 0
    user.resolve(prefix + NAME)
    (part,) = user.home.rglob("*.part")
    part.write_bytes(WEIGHTS + b"more")
    user.hub.break_after_bytes = None
    answer = user.resolve(prefix + NAME)
    assert contents_of(answer["folder"])["model.safetensors"] == WEIGHTS
    assert answer["progress"][-1][0] == answer["progress"][-1][1]


@pytest.mark.parametrize("prefix", PREFIXES)
def test_a_server_that_ignores_ranges_still_yields_a_right_file(user: User, prefix: str) -> None:
    user.hub.break_after_bytes, user.hub.max_breaks, user.hub.ignore_ranges = 1_000_000, 2, True
    answer = user.resolve(prefix + NAME)
    assert contents_of(answer["folder"])["model.safetensors"] == WEIGHTS
    done, total = answer["progress"][-1]
    assert done == total


@pytest.mark.parametrize("prefix", PREFIXES)
def test_a_damaged_transfer_is_noticed_and_kept_nowhere(user: User, prefix: str) -> None:
    user.hub.damage_weights = True
    answer = user.resolve(prefix + NAME)
    assert answer["error"] == "HubUnavailableError"
    assert "model.safetensors arrived damaged: its SHA-256 is" in answer["message"]
    user.hub.damage_weights = False
    assert contents_of(user.resolve(prefix + NAME)["folder"])["model.safetensors"] == WEIGHTS


def test_two_downloads_of_one_file_do_not_mix(user: User) -> None:
    folder = user.home / "cache" / "kaishu" / "modelscope" / NAME / "master"
    folder.mkdir(parents=True)
    with (folder / "model.safetensors.part").open("ab") as other_process:
        fcntl.flock(other_process, fcntl.LOCK_EX)
        answer = user.resolve("modelscope:" + NAME)
    assert answer["error"] == "HubUnavailableError" and "Another process" in answer["message"]


def test_a_file_is_checked_and_put_in_its_place_before_another_process_may_touch_it(user: User) -> None:
    """The first process is held in its check of the SHA-256, while the second one tries."""
    checking, go_on = user.home / "checking", user.home / "go_on"
    held = f"""
import hashlib, time
from pathlib import Path
digest = hashlib.file_digest
def slow_digest(*arguments):
    if "model.safetensors" in arguments[0].name:
        Path({str(checking)!r}).touch()
        while not Path({str(go_on)!r}).exists():
            time.sleep(0.005)
    return digest(*arguments)
hashlib.file_digest = slow_digest
"""
    command = [sys.executable, "-c", held + DRIVER, "modelscope:" + NAME]
    first = subprocess.Popen(command, env=user.process_environment(), stdout=subprocess.PIPE, text=True)
    while first.poll() is None and not checking.exists():
        time.sleep(0.005)
    second = user.resolve_in_a_process("modelscope:" + NAME)
    go_on.touch()
    answer = json.loads(first.communicate()[0])
    assert second["error"] == "HubUnavailableError" and "Another process" in second["message"]
    assert contents_of(answer["folder"])["model.safetensors"] == WEIGHTS
    assert user.resolve("modelscope:" + NAME)["folder"] == answer["folder"]


@pytest.mark.parametrize("other_process", ["finishes", "finds damage", "writes more and is killed"])
def test_what_another_process_does_just_before_the_lock_is_seen(
    user: User, monkeypatch: pytest.MonkeyPatch, other_process: str
) -> None:
    """It had the lock when we opened the partial file, and did one more thing before it let go."""
    folder = user.home / "cache" / "kaishu" / "modelscope" / NAME / "master"
    folder.mkdir(parents=True)
    part = folder / "model.safetensors.part"
    part.write_bytes(WEIGHTS[:1000])
    lock = fcntl.flock

    def lock_later(output: Any, operation: int) -> None:
        if output.name == str(part):
            monkeypatch.setattr(fcntl, "flock", lock)
            if other_process == "finds damage":
                part.unlink()
            elif other_process == "finishes":
                part.write_bytes(WEIGHTS)
                part.rename(folder / "model.safetensors")
            else:
                part.write_bytes(WEIGHTS[:2000])
        lock(output, operation)

    monkeypatch.setattr(fcntl, "flock", lock_later)
    answer = user.resolve("modelscope:" + NAME)
    assert contents_of(answer["folder"])["model.safetensors"] == WEIGHTS
    assert not part.exists() and answer["progress"][-1][0] == answer["progress"][-1][1]
    asked = [headers.get("Range") for headers in user.hub.gets(r"model\.safetensors$")]
    assert (
        asked == {"finishes": [], "finds damage": [None], "writes more and is killed": ["bytes=2000-"]}[other_process]
    )


def test_a_log_gets_a_line_for_each_tenth(capsys: pytest.CaptureFixture[str]) -> None:
    report = ProgressLines("m")
    for done in range(0, 1001):
        report(done * 1_000_000, 1_000_000_000)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 11
    assert (lines[0], lines[-1]) == ("m: 0 of 1,000 MB", "m: 1,000 of 1,000 MB")


@pytest.mark.parametrize("prefix", PREFIXES)
def test_a_download_that_nobody_watches_still_says_how_far_it_is(
    user: User, prefix: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.checkpoint.hub_user.resolve", lambda name, **_: resolve(name))
    assert "folder" in user.resolve(prefix + NAME)
    assert capsys.readouterr().err.splitlines()[-1] == f"{NAME}: 3 of 3 MB"


def test_an_interrupted_process_leaves_what_the_next_one_continues(user: User) -> None:
    """Kill a real download in its middle, by the process's own id, then run it again."""
    big = {**FILES, "model.safetensors": WEIGHTS * 8}
    user.hub.models["org/big"] = big
    user.hub.break_after_bytes = (
        6_000_000  # each connection carries this much, so the process is still busy when killed
    )
    driver = DRIVER.replace("seen.append(counts)", "__import__('time').sleep(0.05)")
    process = subprocess.Popen(
        [sys.executable, "-c", driver, "modelscope:org/big"], env=user.process_environment(), stdout=subprocess.DEVNULL
    )
    folder = user.home / "cache" / "kaishu" / "modelscope" / "org" / "big" / "master"
    part = folder / "model.safetensors.part"
    while process.poll() is None and not (part.exists() and part.stat().st_size > 4_000_000):
        time.sleep(0.005)
    process.kill()
    process.wait()
    have = part.stat().st_size
    assert 0 < have < len(big["model.safetensors"])
    user.hub.requests.clear()
    answer = user.resolve("modelscope:org/big")
    assert contents_of(answer["folder"])["model.safetensors"] == big["model.safetensors"]
    assert user.hub.gets(r"model\.safetensors$")[0]["Range"] == f"bytes={have}-"


def test_only_what_a_model_folder_needs_is_picked_and_weights_come_last() -> None:
    unneeded = [".gitattributes", "LICENSE", "README.md", "merges.txt", "vocab.json", "deeper/chat_template.jinja"]
    unneeded += ["special_tokens_map.json", "added_tokens.json", "chat_template.json"]  # text/ doesn't read them
    unneeded += ["consolidated.safetensors", "original/model-1-of-1.safetensors", "onnx/config.json"]
    unneeded += ["pytorch_model-00001-of-00002.bin", "../config.json", "additional_chat_templates/../x.jinja"]
    needed = [
        "additional_chat_templates/tool_use.jinja",
        "chat_template.jinja",
        "config.json",
        "generation_config.json",
        "model.safetensors.index.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
    ]
    assert needed_files([*unneeded, *reversed(needed)], "org/name") == needed


@pytest.mark.parametrize(
    "listed, words",
    [
        ([], "has no config.json"),
        (["a.gguf", "b.gguf"], "2 GGUF models"),
        (["config.json", "pytorch_model.bin"], "only pickled weights"),
        (["config.json"], "has no weights"),
    ],
)
def test_a_list_without_a_usable_model_is_an_error(listed: list[str], words: str) -> None:
    with pytest.raises(CheckpointError, match=words):
        needed_files(listed, "org/name")


def test_of_a_list_with_gguf_only_one_model_is_needed() -> None:
    assert needed_files(["config.json", "a.gguf", "mmproj-a.gguf"], "org/name") == ["a.gguf"]
    assert needed_files(["a.gguf", "b.gguf"], "org/name", "b") == ["b.gguf"]
    both = ["config.json", "model.safetensors", "a.gguf"]
    assert needed_files(both, "org/name") == both[:2] and needed_files(both, "org/name", "a") == ["a.gguf"]


def test_a_folder_is_complete_only_with_every_shard(tmp_path: Path) -> None:
    assert not is_complete(tmp_path)
    for name in ("config.json", "tokenizer.json"):
        (tmp_path / name).write_text("{}")
    assert not is_complete(tmp_path)
    index = tmp_path / "model.safetensors.index.json"
    for broken in ("", "[]", "{}", '{"weight_map": 3}', '{"a": ' + "[" * 100_000, '{"weight_map": {"a": [1]}}'):
        index.write_text(broken)
        assert not is_complete(tmp_path)
    index.write_text(json.dumps({"weight_map": {"a": "1.safetensors", "b": "2.safetensors"}}))
    (tmp_path / "1.safetensors").touch()
    assert not is_complete(tmp_path)
    (tmp_path / "2.safetensors").touch()
    assert is_complete(tmp_path)
    (tmp_path / "tokenizer.json").unlink()
    assert not is_complete(tmp_path)
