"""How many threads there are, what ranks do with work and with errors."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path

import pytest

from kaishu.cpu.threads import Ranks, _Run, available_threads


def machine(folder: Path, siblings: list[str], group: str = "0::/\n", **quotas: str) -> Path:
    """A machine's /sys and /proc.

    siblings: of each CPU
    quotas:   what cpu.max says, by the name of a group ("root" is the top); `__` between nested names
    """
    for cpu, text in enumerate(siblings):
        topology = folder / f"sys/devices/system/cpu/cpu{cpu}/topology"
        topology.mkdir(parents=True)
        (topology / "thread_siblings_list").write_text(text + "\n")
    (folder / "proc/self").mkdir(parents=True)
    (folder / "proc/self/cgroup").write_text(group)
    for name, text in quotas.items():
        place = folder / "sys/fs/cgroup" / ("" if name == "root" else name.replace("__", "/"))
        place.mkdir(parents=True, exist_ok=True)
        (place / "cpu.max").write_text(text + "\n")
    return folder


PAIRS = ["0,4", "1,5", "2,6", "3,7", "0,4", "1,5", "2,6", "3,7"]  # four cores of two hardware threads


@pytest.mark.parametrize(
    "affinity, siblings, expected",
    [
        (range(8), [str(cpu) for cpu in range(8)], 8),
        (range(8), PAIRS, 4),
        ({0, 1}, PAIRS, 2),
        ({0, 4}, PAIRS, 1),  # both on one core
        ({0, 4, 1}, PAIRS, 2),
        ({3}, PAIRS, 1),
    ],
)
def test_only_cores_that_we_may_use_count_and_each_once(affinity, siblings, expected, tmp_path, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(affinity), raising=False)
    assert available_threads(machine(tmp_path, siblings)) == expected


@pytest.mark.parametrize(
    "group, quotas, expected",
    [
        ("0::/\n", {"root": "max 100000"}, 8),
        ("0::/\n", {"root": "200000 100000"}, 2),
        ("0::/\n", {"root": "150000 100000"}, 2),  # one and a half: a second thread gets half a core
        ("0::/\n", {"root": "10000 100000"}, 1),
        ("0::/a/b\n", {"a": "300000 100000", "a__b": "max 100000"}, 3),
        ("0::/a/b\n", {"a": "max 100000", "a__b": "50000 10000"}, 5),
        ("0::/a/b\n", {"a": "200000 100000", "a__b": "500000 100000"}, 2),  # the parent's counts too
        ("0::/a\n", {"other": "100000 100000"}, 8),
        ("12:cpu:/x\n1:name=systemd:/x\n0::/a\n", {"a": "400000 100000"}, 4),
        ("", {"root": "100000 100000"}, 8),
        ("0::/\n", {"root": "nonsense"}, 8),
    ],
)
def test_the_control_group_s_quota_counts_rounded_up(group, quotas, expected, tmp_path, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    assert available_threads(machine(tmp_path, [str(cpu) for cpu in range(8)], group, **quotas)) == expected


@pytest.mark.parametrize(
    "group, quotas, expected",
    [
        ("4:cpu,cpuacct:/\n3:memory:/x\n", {"": "200000"}, 2),
        ("4:cpu,cpuacct:/docker/abc\n", {"docker/abc": "150000"}, 2),
        ("4:cpu,cpuacct:/docker/abc\n", {"docker": "300000", "docker/abc": "-1"}, 3),
        ("4:cpu,cpuacct:/docker/abc\n", {"": "-1", "docker/abc": "-1"}, 8),
        ("4:cpu,cpuacct:/docker/abc\n", {"": "100000"}, 1),  # a container sees its own group as the root
        ("5:cpuset:/\n", {"": "100000"}, 8),
        ("4:cpu,cpuacct:/\n", {"": "nonsense"}, 8),
        ("4:cpu,cpuacct:/\n0::/\n", {"": "400000"}, 4),
    ],
)
def test_control_groups_of_version_1_count_too(group, quotas, expected, tmp_path, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    root = machine(tmp_path, [str(cpu) for cpu in range(8)], group)
    for name, quota in quotas.items():
        place = root / "sys/fs/cgroup/cpu,cpuacct" / name
        place.mkdir(parents=True, exist_ok=True)
        (place / "cpu.cfs_quota_us").write_text(f"{quota}\n")
        (place / "cpu.cfs_period_us").write_text("100000\n")
    assert available_threads(root) == expected


def test_where_nothing_is_known_every_cpu_counts(tmp_path, monkeypatch):
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 6)
    assert available_threads(tmp_path) == 6
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert available_threads(tmp_path) == 1


def test_on_this_machine_it_is_something_sensible():
    assert 1 <= available_threads() <= (os.cpu_count() or 1)


@pytest.fixture(params=[1, 2, 3, 4])
def ranks(request):
    made = Ranks(request.param)
    yield made
    made.close()


def test_every_rank_works_once_at_the_same_time_and_rank_0_is_the_caller(ranks):
    together, names = threading.Barrier(ranks.count), {}

    def work(rank):
        together.wait(timeout=30)  # passes only if all are there at once
        names[rank] = threading.current_thread()

    for _ in range(3):
        names.clear()
        ranks.run(work)
        assert sorted(names) == list(range(ranks.count))
        assert names[0] is threading.current_thread()
        assert len(set(names.values())) == ranks.count


@pytest.mark.parametrize("failing", [{0}, {1}, {2, 3}, {0, 1, 2, 3}])
def test_an_error_of_a_rank_reaches_the_caller_when_all_are_done(failing):
    ranks, finished = Ranks(4), []

    def work(rank):
        if rank in failing:
            raise LookupError(rank)
        time.sleep(0.05)
        finished.append(rank)

    for _ in range(3):
        finished.clear()
        with pytest.raises(LookupError) as caught:
            ranks.run(work)
        assert caught.value.args[0] in failing
        assert set(finished) == set(range(4)) - failing, "whoever works still is waited for"
        seen = []
        ranks.run(seen.append)
        assert sorted(seen) == [0, 1, 2, 3], "they can work again, and each only once"
    ranks.close()


@pytest.fixture
def interrupts():
    """Ctrl-C raises KeyboardInterrupt, even where the tests' own process was started with it ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("where", ["in its own part", "while it waits"])
def test_an_interrupt_waits_for_the_others_because_they_use_the_caller_s_memory(where, interrupts):
    ranks, finished = Ranks(2), []
    asked = threading.Event()

    def work(rank):
        if rank == 1:
            asked.wait(timeout=30)
            signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
            time.sleep(0.1)
            finished.append(rank)
        else:
            asked.set()
            for _ in range(3000 if where == "in its own part" else 0):
                time.sleep(0.01)

    with pytest.raises(KeyboardInterrupt):
        ranks.run(work)
    assert finished == [1]
    seen = []
    ranks.run(seen.append)
    assert sorted(seen) == [0, 1]
    ranks.close()


def test_who_interrupts_twice_gets_away_from_a_rank_that_never_ends(interrupts):
    ranks, never = Ranks(2), threading.Event()

    def work(rank):
        if rank == 1:
            for _ in range(2):
                time.sleep(0.05)
                signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
            never.wait(timeout=60)

    with pytest.raises(KeyboardInterrupt):
        ranks.run(work)
    never.set()
    seen = []
    ranks.run(seen.append)
    assert sorted(seen) == [0, 1], "what the lost run reports late is not mistaken for this one's"
    ranks.close()


def test_an_interrupt_that_comes_with_a_rank_s_word_does_not_lose_it():
    run = _Run(lambda _: None)
    run.do(1)

    class Interrupted:
        def get(self):
            run.do(2)
            raise KeyboardInterrupt

        def put(self, word):
            pass

    run._one_is_done = Interrupted()
    assert isinstance(run.wait(2), KeyboardInterrupt)
    assert run.wait(2) is None


def test_closing_ends_the_threads_and_may_be_repeated():
    before = set(threading.enumerate())
    ranks = Ranks(4)
    own = set(threading.enumerate()) - before
    assert sorted(thread.name for thread in own) == [f"kaishu-rank-{rank}" for rank in (1, 2, 3)]
    ranks.close()
    ranks.close()
    for thread in own:
        thread.join(timeout=30)
        assert not thread.is_alive()
    with pytest.raises(AssertionError, match="ended"):
        ranks.run(lambda _: None)
