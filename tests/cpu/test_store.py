"""The store under real processes, killed ones too, and on disks that don't play along: the weights are always right."""

from __future__ import annotations

import errno
import mmap
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from kaishu.cpu.packed_file import label_at
from kaishu.cpu.store import PackedStore, cache_folder
from kaishu.errors import OutOfMemoryError
from kaishu.locked_file import open_locked
from tests.cpu.packing_process import (
    NUM_BYTES,
    PackingProcess,
    allow_small_files_only,
    become_nobody,
    contents,
    open_packed,
)


@pytest.fixture
def store(tmp_path: Path) -> PackedStore:
    return PackedStore(tmp_path / "cache" / "packed", patience_seconds=0)


def files(store: PackedStore) -> list[str]:
    """The suffixes of what is in its folder."""
    return sorted(path.suffix for path in store.folder.iterdir()) if store.folder.exists() else []


# Opening and packing.


def test_the_second_time_the_file_is_mapped_and_nothing_is_packed(store: PackedStore) -> None:
    first, packed = open_packed(store)
    assert (packed, first.came_from_cache, first.note) == (1, False, None)
    second, packed = open_packed(PackedStore(store.folder))
    assert (packed, second.came_from_cache, second.note) == (0, True, None)
    assert first.path == second.path and first.path is not None and first.path.parent == store.folder
    assert files(store) == [".packed"]
    for file in (first, second):
        assert file.description == b"seed 0\nmore"
        assert file.data.ctypes.data % 4096 == 0
        assert not file.data.flags.writeable


def test_each_key_has_its_own_file_whatever_the_order_of_its_parts(store: PackedStore) -> None:
    keys: list[dict[str, str | int]] = [{"a": 1, "b": "x"}, {"a": 1, "b": "y"}, {"a": "1", "b": "x"}, {"a": 1}]
    paths = [store.open_or_pack(key, 10, lambda _: None).path for key in keys]
    assert len(set(paths)) == 4
    again = store.open_or_pack({"b": "x", "a": 1}, 10, lambda _: None)
    assert again.came_from_cache and again.path == paths[0]


def test_another_length_under_the_same_key_is_packed_anew(store: PackedStore) -> None:
    open_packed(store, num_bytes=1000)
    assert open_packed(store, num_bytes=2000)[1] == 1
    assert open_packed(store, num_bytes=2000)[1] == 0
    assert files(store) == [".packed"]


def test_the_key_is_in_the_file_not_only_in_its_name(store: PackedStore) -> None:
    one, other = (open_packed(store, seed)[0].path for seed in (0, 1))
    assert one and other
    shutil.copy(one, other)
    assert open_packed(store, 1)[1] == 1


@pytest.mark.parametrize(
    "damage",
    [
        lambda raw: b"",
        lambda raw: raw[:20],
        lambda raw: raw[:-1],
        lambda raw: raw + b"\0",
        lambda raw: raw[: len(raw) // 2] + bytes(len(raw) - len(raw) // 2),
        lambda raw: b"X" + raw[1:],
        lambda raw: raw[:100] + b"X" + raw[101:],
        lambda raw: raw[:-1] + bytes([raw[-1] ^ 1]),
    ],
    ids=["empty", "cut in its header", "cut", "too long", "zeros at its end", "magic", "header", "digest"],
)
def test_a_damaged_file_is_replaced_and_who_has_mapped_the_old_one_keeps_it(
    store: PackedStore, damage: Callable[[bytes], bytes]
) -> None:
    file, _ = open_packed(store)
    assert file.path is not None
    damaged = damage(file.path.read_bytes())
    file.path.unlink()
    file.path.write_bytes(damaged)
    assert open_packed(store)[1] == 1
    assert open_packed(store)[1] == 0
    assert file.data.tobytes() == contents(0).tobytes()


@pytest.mark.parametrize("error", [RuntimeError("ours"), OSError(errno.ENOSPC, "theirs"), KeyboardInterrupt()])
def test_an_exception_from_packing_is_passed_on_and_leaves_nothing(store: PackedStore, error: BaseException) -> None:
    def fail() -> None:
        assert files(store) == [".partial"]
        raise error

    with pytest.raises(type(error)) as raised:
        open_packed(store, before_packing=fail)
    assert raised.value is error
    assert files(store) == []
    assert open_packed(store)[0].came_from_cache is False  # though the traceback still holds the array
    assert files(store) == [".packed"]


# Processes.


def test_of_processes_that_start_at_once_one_packs_and_none_sees_half_a_file(store: PackedStore) -> None:
    started = [PackingProcess(store.folder) for _ in range(4)]
    for process in started:
        process.say("go")
    while any(process.process.is_alive() for process in started):
        for path in store.folder.glob("*.packed"):
            assert label_at(path) is not None
        time.sleep(0.002)
    answers = [process.heard() for process in started]
    assert sorted(answer["packed"] for answer in answers) == [0, 0, 0, 1]
    assert all(answer["note"] is None and answer["cached"] == (answer["packed"] == 0) for answer in answers)
    assert len({answer["path"] for answer in answers}) == 1
    assert files(store) == [".packed"]


def test_what_another_process_packs_now_is_left_alone(store: PackedStore) -> None:
    other = PackingProcess(store.folder, 1, held=True)
    other.say("go")
    assert other.heard() == "packing"
    assert [entry.state for entry in store.entries()] == ["unfinished"]
    assert store.clear() == (0, 0)
    open_packed(store, 2)
    assert files(store) == [".packed", ".partial"]
    assert store.clear()[0] == 1
    other.say("go on")
    assert other.heard() == {"packed": 1, "cached": False, "path": store.entries()[0].path, "note": None}
    assert open_packed(store, 1)[1] == 0


def test_who_waited_too_long_packs_into_memory_and_says_so(store: PackedStore) -> None:
    other = PackingProcess(store.folder, held=True)
    other.say("go")
    assert other.heard() == "packing"
    impatient, packed = open_packed(PackedStore(store.folder, patience_seconds=0.05))
    assert (packed, impatient.path) == (1, None)
    assert impatient.note is not None and "Another process" in impatient.note
    other.say("go on")
    assert other.heard()["note"] is None


@pytest.mark.parametrize("next_seed", [0, 1], ids=["the same weights", "others"])
def test_what_a_killed_process_left_is_removed_by_the_next_that_packs(store: PackedStore, next_seed: int) -> None:
    victim = PackingProcess(store.folder, held=True)
    victim.say("go")
    assert victim.heard() == "packing"
    victim.kill()
    assert files(store) == [".partial"]
    file, packed = open_packed(store, next_seed)
    assert (packed, file.note, files(store)) == (1, None, [".packed"])


def test_a_process_that_waits_packs_itself_when_the_other_is_killed(store: PackedStore) -> None:
    victim, heir = PackingProcess(store.folder, held=True), PackingProcess(store.folder)
    victim.say("go")
    assert victim.heard() == "packing"
    heir.say("go")
    time.sleep(0.1)
    victim.kill()
    answer = heir.heard()
    assert (answer["packed"], answer["note"], files(store)) == (1, None, [".packed"])


def test_what_a_killed_process_left_is_cleared(store: PackedStore) -> None:
    victim = PackingProcess(store.folder, held=True)
    victim.say("go")
    assert victim.heard() == "packing"
    victim.kill()
    assert store.clear() == (1, store_size())
    assert files(store) == []


def store_size() -> int:
    """How long a file of NUM_BYTES is: a page of header and the digest."""
    return 4096 + NUM_BYTES + 32


# Disks that don't play along.


def assert_kept_in_memory(store: PackedStore, *words: str, times: int = 1) -> None:
    file, packed = open_packed(store)
    assert (packed, file.path, file.came_from_cache) == (times, None, False)
    assert not file.data.flags.writeable and file.data.ctypes.data % 64 == 0
    assert file.note is not None and file.note.count(". ") == 0 and file.note.endswith(".")
    assert all(word in file.note for word in words), file.note
    assert files(store) == []


def test_a_kernel_that_refuses_the_room_is_noticed_before_anything_is_packed(store: PackedStore) -> None:
    process = PackingProcess(store.folder, before=allow_small_files_only)
    process.say("go")
    answer = process.heard()
    assert (answer["packed"], answer["path"]) == (1, None)
    assert "has no room for 300,000 bytes (File too large)" in answer["note"]
    assert files(store) == []


def failing(problem: int) -> Callable[..., None]:
    def fail(*_: object, **__: object) -> None:
        raise OSError(problem, os.strerror(problem))

    return fail


@pytest.mark.parametrize("problem", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_is_noticed_before_anything_is_packed(
    store: PackedStore, monkeypatch: pytest.MonkeyPatch, problem: int
) -> None:
    monkeypatch.setattr(os, "posix_fallocate", failing(problem), raising=False)
    assert_kept_in_memory(store, str(store.folder), "no room for 300,000 bytes", os.strerror(problem), "KAISHU_CACHE")


@pytest.mark.parametrize("call", ["write", "fsync"])
def test_a_full_disk_is_noticed_where_room_cannot_be_reserved(
    store: PackedStore, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    monkeypatch.setattr(os, "posix_fallocate", failing(errno.EOPNOTSUPP), raising=False)
    monkeypatch.setattr(os, call, failing(errno.ENOSPC))
    assert_kept_in_memory(store, "no room")


def test_a_disk_that_fails_after_packing_costs_a_second_packing(
    store: PackedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kaishu.cpu.store.complete", failing(errno.EIO))
    assert_kept_in_memory(store, "Input/output error", "KAISHU_CACHE", times=2)


def test_a_folder_that_vanishes_while_packing_costs_a_second_packing(store: PackedStore) -> None:
    gone = iter([lambda: shutil.rmtree(store.folder), lambda: None])
    file, packed = open_packed(store, before_packing=lambda: next(gone)())
    assert (packed, file.path) == (2, None)
    assert file.note is not None and "No such file or directory" in file.note


@pytest.mark.parametrize("problem", [errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS])
def test_a_file_system_without_locks_keeps_nothing_but_serves_what_it_has(
    store: PackedStore, monkeypatch: pytest.MonkeyPatch, problem: int
) -> None:
    open_packed(store, 1)
    with monkeypatch.context() as without_locks:
        without_locks.setattr("fcntl.flock", failing(problem))
        file, _ = open_packed(store, 0)
        assert file.path is None and file.note is not None and os.strerror(problem) in file.note
        assert open_packed(store, 1)[0].came_from_cache


def test_a_place_where_no_folder_can_be_is_noted(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert_kept_in_memory(PackedStore(tmp_path / "file" / "packed"), "Not a directory", "KAISHU_CACHE")


def test_something_else_under_the_file_s_name_is_noted(store: PackedStore) -> None:
    path = open_packed(store)[0].path
    assert path is not None
    path.unlink()
    path.mkdir()
    file, _ = open_packed(store)
    assert file.path is None and file.note is not None and "Is a directory" in file.note


@pytest.fixture
def read_only_store() -> Iterator[PackedStore]:
    """A folder that nobody can look into but not change; seed 0 is in it."""
    folder = Path(tempfile.mkdtemp())
    store = PackedStore(folder / "packed")
    open_packed(store, 0)
    (folder / "packed").chmod(0o555)
    folder.chmod(0o755)
    yield store
    (folder / "packed").chmod(0o755)
    shutil.rmtree(folder)


@pytest.mark.parametrize("seed", [0, 1], ids=["has it", "hasn't it"])
def test_a_folder_that_may_only_be_read_serves_what_it_has(read_only_store: PackedStore, seed: int) -> None:
    process = PackingProcess(read_only_store.folder, seed, before=become_nobody)
    process.say("go")
    answer = process.heard()
    assert (answer["packed"], answer["cached"]) == (seed, seed == 0)
    assert (answer["note"] is None) == (seed == 0)
    assert seed == 0 or "Permission denied" in answer["note"]


def test_memory_that_the_machine_does_not_have_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OutOfMemoryError, match="take 1,152,921,504,606,846,976 bytes"):
        PackedStore(tmp_path / "file").open_or_pack({"a": 1}, 1 << 60, lambda _: None)


def test_memory_that_cannot_be_mapped_falls_back_too(store: PackedStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mmap, "mmap", failing(errno.ENOMEM))
    assert_kept_in_memory(store, "Cannot allocate memory")


# Listing and clearing.


def test_entries_say_what_is_there_the_last_used_first(store: PackedStore) -> None:
    assert store.entries() == []
    for seed in range(3):
        path = open_packed(store, seed)[0].path
        assert path is not None
        os.utime(path, ns=(0, seed * 10**9))
    (store.folder / "notes.txt").write_text("not ours")
    open_packed(store, 0)
    found = store.entries()
    assert [entry.name for entry in found] == ["seed 0", "seed 2", "seed 1"]
    assert [(entry.num_bytes, entry.state) for entry in found] == [(store_size(), "whole")] * 3
    assert found[1].last_used_ns == 2 * 10**9
    found[1].path.write_bytes(b"damage")
    assert ("", 6, "damaged") in [(entry.name, entry.num_bytes, entry.state) for entry in store.entries()]


def test_clearing_removes_what_is_ours_and_counts_it(store: PackedStore) -> None:
    assert store.clear() == (0, 0)
    file, _ = open_packed(store, 0)
    open_packed(store, 1)
    (store.folder / "notes.txt").write_text("not ours")
    (store.folder / "old.partial").write_bytes(b"left over")
    (store.folder / "old.packed").write_bytes(b"damaged")
    assert store.clear() == (4, 2 * store_size() + 9 + 7)
    assert files(store) == [".txt"]
    assert file.data.tobytes() == contents(0).tobytes()


@pytest.mark.parametrize(
    "environment, platform, folder",
    [
        ({}, "linux", "~/.cache/kaishu"),
        ({}, "darwin", "~/Library/Caches/kaishu"),
        ({"XDG_CACHE_HOME": "/x"}, "linux", "/x/kaishu"),
        ({"XDG_CACHE_HOME": ""}, "linux", "~/.cache/kaishu"),
        ({"XDG_CACHE_HOME": "/x", "KAISHU_CACHE": "/own"}, "darwin", "/own"),
        ({"KAISHU_CACHE": "~/own"}, "linux", "~/own"),
    ],
)
def test_the_cache_is_where_the_user_or_the_platform_says(
    environment: dict[str, str], platform: str, folder: str
) -> None:
    assert cache_folder(environment, platform) == Path(folder).expanduser()


# Any order of events.


class AnyOrder(RuleBasedStateMachine):
    """The store against a set of the seeds that are kept whole, and one of those that another process is packing."""

    seeds = st.integers(0, 2)

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.store = PackedStore(self.folder / "packed", patience_seconds=0)
        self.paths: dict[int, Path] = {}
        for seed in range(3):
            path = open_packed(self.store, seed, 1000)[0].path
            assert path is not None
            self.paths[seed] = path
        self.whole = {0, 1, 2}
        self.others = {}  # seed → its partial file, locked

    @rule(seed=seeds)
    def open(self, seed: int) -> None:
        file, packed = open_packed(self.store, seed, 1000)
        assert file.came_from_cache == (seed in self.whole) == (packed == 0)
        assert (file.note is not None) == (seed not in self.whole and seed in self.others)
        if file.note is None:
            self.whole.add(seed)

    @rule(seed=seeds)
    def packing_fails(self, seed: int) -> None:
        if seed in self.whole | set(self.others):
            return
        with pytest.raises(ZeroDivisionError):
            open_packed(self.store, seed, 1000, before_packing=lambda: 1 // 0)

    @rule(seed=seeds, length=st.integers(0, 6000))
    def damage(self, seed: int, length: int) -> None:
        if seed in self.whole:
            raw = self.paths[seed].read_bytes()
            assert length != len(raw)
            self.paths[seed].unlink()
            self.paths[seed].write_bytes((raw + bytes(6000))[:length])
            self.whole.remove(seed)

    @rule(seed=seeds)
    def another_process_begins(self, seed: int) -> None:
        if seed not in self.others:
            self.others[seed] = open_locked(self.paths[seed].with_suffix(".partial"))
            self.others[seed].truncate(0)
            self.others[seed].write(b"begun")
            self.others[seed].flush()

    @precondition(lambda self: self.others)
    @rule(is_killed=st.booleans())
    def another_process_ends(self, is_killed: bool) -> None:
        seed, file = self.others.popitem()
        if not is_killed:
            self.paths[seed].with_suffix(".partial").unlink()
        file.close()

    @rule()
    def clear(self) -> None:
        self.store.clear()
        self.whole.clear()
        assert {path.suffix for path in self.store.folder.iterdir()} <= {".partial"}

    @invariant()
    def what_others_pack_is_theirs(self) -> None:
        for seed in self.others:
            assert self.paths[seed].with_suffix(".partial").read_bytes() == b"begun"

    @invariant()
    def entries_are_what_is_whole(self) -> None:
        states = {entry.path: entry.state for entry in self.store.entries()}
        assert {path for path, state in states.items() if state == "whole"} == {self.paths[s] for s in self.whole}

    def teardown(self) -> None:
        for file in self.others.values():
            file.close()
        shutil.rmtree(self.folder)


AnyOrder.TestCase.settings = settings(max_examples=40, stateful_step_count=25, deadline=None)
TestAnyOrder = AnyOrder.TestCase
