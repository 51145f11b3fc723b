"""What may be taken, on machines made of files: of either version of control groups, nested, odd, or none."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kaishu.memory_limits import MachineMemory, machine_memory

KB = 1024
GROUPS = "sys/fs/cgroup"
UNLIMITED_V1 = 9_223_372_036_854_771_712


def machine(root: Path, *, total_kb: int = 16_000, available_kb: int = 8_000, cgroup: str = "0::/\n") -> Path:
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/meminfo").write_text(
        f"MemTotal:       {total_kb} kB\nMemFree:  1 kB\nMemAvailable:   {available_kb} kB\nHugePages_Total:  0\n"
    )
    (root / "proc/self/cgroup").write_text(cgroup)
    return root


def write(folder: Path, **files: object) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(f"{text}\n")


def test_without_groups_it_is_what_the_kernel_calls_available(tmp_path):
    assert machine_memory(machine(tmp_path)) == MachineMemory(16_000 * KB, 8_000 * KB, is_group=False)


def test_a_kernel_that_does_not_say_what_is_available_has_all(tmp_path):
    machine(tmp_path)
    (tmp_path / "proc/meminfo").write_text("MemTotal: 500 kB\n")
    assert machine_memory(tmp_path) == MachineMemory(500 * KB, 500 * KB, is_group=False)


def test_a_group_of_version_2_leaves_its_limit_less_what_is_used_beside_files(tmp_path):
    machine(tmp_path, cgroup="0::/a/b\n")
    statistics = f"anon {900 * KB}\nfile {600 * KB}\ninactive_file {400 * KB}\nactive_file {100 * KB}"
    write(tmp_path / GROUPS / "a", memory__max=4_000 * KB, memory__current=2_000 * KB, memory__stat=statistics)
    write(tmp_path / GROUPS / "a/b", memory__max="max", memory__current=1_000 * KB)
    assert machine_memory(tmp_path) == MachineMemory(4_000 * KB, 2_500 * KB, is_group=True)


def test_the_tightest_of_nested_groups_counts(tmp_path):
    machine(tmp_path, cgroup="0::/a/b\n")
    write(tmp_path / GROUPS / "a", memory__max=9_000 * KB, memory__current=8_900 * KB)  # others fill the parent
    write(tmp_path / GROUPS / "a/b", memory__max=3_000 * KB, memory__current=10 * KB)
    assert machine_memory(tmp_path) == MachineMemory(3_000 * KB, 100 * KB, is_group=True)


def test_a_limit_above_what_the_machine_has_is_none(tmp_path):
    machine(tmp_path, cgroup="0::/a\n")
    write(tmp_path / GROUPS / "a", memory__max=99_000 * KB, memory__current=10 * KB)
    assert machine_memory(tmp_path) == MachineMemory(16_000 * KB, 8_000 * KB, is_group=False)


def test_a_group_that_is_over_its_limit_leaves_nothing_and_no_debt(tmp_path):
    machine(tmp_path, cgroup="0::/a\n")
    write(tmp_path / GROUPS / "a", memory__max=1_000 * KB, memory__current=1_200 * KB)
    assert machine_memory(tmp_path) == MachineMemory(1_000 * KB, 0, is_group=True)


def test_a_group_of_version_1_is_found_by_its_controller(tmp_path):
    cgroup = "12:cpu,cpuacct:/other\n4:memory:/x/y\n1:name=systemd:/\n0::/\n"
    machine(tmp_path, cgroup=cgroup)
    memory = tmp_path / GROUPS / "memory"
    write(memory, memory__limit_in_bytes=UNLIMITED_V1, memory__usage_in_bytes=7_000 * KB)
    write(memory / "x", memory__limit_in_bytes=UNLIMITED_V1, memory__usage_in_bytes=3_000 * KB)
    statistics = f"cache {500 * KB}\ntotal_inactive_file {300 * KB}\ntotal_active_file {200 * KB}"
    write(
        memory / "x/y",
        memory__limit_in_bytes=2_000 * KB,
        memory__usage_in_bytes=1_500 * KB,
        memory__stat=statistics,
    )
    assert machine_memory(tmp_path) == MachineMemory(2_000 * KB, 1_000 * KB, is_group=True)


def test_inside_a_container_the_groups_above_are_not_there(tmp_path):
    machine(tmp_path, cgroup="4:memory:/docker/0123abcd\n")
    write(
        tmp_path / GROUPS / "memory", memory__limit_in_bytes=1_000 * KB, memory__usage_in_bytes=400 * KB
    )  # the container sees its own group as the first
    assert machine_memory(tmp_path) == MachineMemory(1_000 * KB, 600 * KB, is_group=True)


def test_a_hybrid_machine_keeps_version_2_in_a_folder_of_its_own(tmp_path):
    machine(tmp_path, cgroup="0::/a\n")
    write(tmp_path / GROUPS / "unified/a", memory__max=2_000 * KB, memory__current=500 * KB)
    assert machine_memory(tmp_path) == MachineMemory(2_000 * KB, 1_500 * KB, is_group=True)


@pytest.mark.parametrize("cgroup", ["", "nonsense\n", "0::\n", "0::/../../etc\n", "::::\n"])
def test_odd_files_count_for_nothing(cgroup, tmp_path):
    machine(tmp_path, cgroup=cgroup)
    write(tmp_path / GROUPS, memory__max="lots", memory__current="-5", memory__stat="inactive_file many")
    assert machine_memory(tmp_path) == MachineMemory(16_000 * KB, 8_000 * KB, is_group=False)


def test_without_proc_the_machine_s_whole_memory_counts(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "sysconf", {"SC_PHYS_PAGES": 1000, "SC_PAGE_SIZE": 4096}.__getitem__)
    assert machine_memory(tmp_path) == MachineMemory(4_096_000, 4_096_000, is_group=False)


def test_where_nothing_is_known_nothing_is_said(tmp_path, monkeypatch):
    monkeypatch.delattr(os, "sysconf")
    assert machine_memory(tmp_path) is None


def test_on_this_machine_it_is_something_sensible():
    found = machine_memory()
    assert found is not None and 0 < found.available_bytes <= found.total_bytes
