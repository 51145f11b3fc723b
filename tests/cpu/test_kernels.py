"""Compiled code is found again in its folder, and the folder's name follows everything that the code depends on."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import llvmlite
import llvmlite.binding
import numpy as np
import pytest

from kaishu.cpu import kernels as module
from kaishu.cpu.kernels import Entry, Kernels, kernel_folder
from kaishu.cpu.records import address

PACKAGE = Path(module.__file__).parent


@pytest.fixture
def sources(tmp_path, monkeypatch):
    """A copy of kaishu/cpu's files that is taken for the package."""
    folder = tmp_path / "cpu"
    shutil.copytree(PACKAGE, folder, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(module, "__file__", str(folder / "kernels.py"))
    return folder


def name() -> str:
    folder = kernel_folder(Path("kernels"))
    assert folder.parent == Path("kernels")
    return folder.name


def test_the_folder_of_the_same_world_has_the_same_name(sources):
    before = name()
    (sources / "notes.txt").write_text("not code")
    assert name() == before == name()


@pytest.mark.parametrize("file", ["vector.py", "forward.py", "layout.py", "kernels.py"])
def test_a_changed_source_has_another_folder(file, sources):
    before, text = name(), (sources / file).read_text()
    (sources / file).write_text(text + "\n# changed\n")
    assert name() != before
    (sources / file).write_text(text)
    assert name() == before


def test_a_source_that_came_or_went_or_was_renamed_has_another_folder(sources):
    names = {name()}
    (sources / "new.py").write_text("")
    names.add(name())
    (sources / "new.py").rename(sources / "newer.py")
    names.add(name())
    (sources / "newer.py").unlink()
    (sources / "norm.py").unlink()
    names.add(name())
    assert len(names) == 4


def test_another_version_has_another_folder(monkeypatch):
    names = {name()}
    with monkeypatch.context() as patch:
        patch.setattr(llvmlite, "__version__", llvmlite.__version__ + ".1")
        names.add(name())
    monkeypatch.setattr(module, "_numba_version", lambda: module._numba_version.__name__)
    names.add(name())
    assert len(names) == 3


def test_numba_is_asked_for_its_version_without_importing_it():
    import numba

    assert f'"{numba.__version__}"' in module._numba_version()


def test_another_cpu_or_set_of_features_has_another_folder(monkeypatch):
    names = {name()}
    with monkeypatch.context() as patch:
        patch.setenv("NUMBA_CPU_FEATURES", "+avx2")
        names.add(name())
    monkeypatch.setattr(llvmlite.binding, "get_host_cpu_name", lambda: "another")
    names.add(name())
    assert len(names) == 3


# A module of kernels, found by its name as Kaishu's own are; the second function calls the first.
SOURCE = """
import numpy as np
from numba import njit

from kaishu.cpu.vector import KERNEL, floats_at


@njit(**KERNEL)
def doubled(x):
    return 2 * x


@njit(**KERNEL)
def add_doubled(pair, address, count):
    numbers = floats_at(address)
    for index in range(count):
        numbers[index] += np.float32(doubled(pair.first) + pair.second)
    return count - 100
"""
PAIR = np.dtype([("first", "i8"), ("second", "i8")])
ENTRY = Entry("add", "numbers_for_test_kernels", "add_doubled", (PAIR, None, None))


@pytest.fixture
def numbers(tmp_path, monkeypatch):
    """The folder in which the module of kernels lies."""
    folder = tmp_path / "source"
    folder.mkdir()
    (folder / f"{ENTRY.module}.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(folder)
    yield folder
    sys.modules.pop(ENTRY.module, None)


def use(kernels: Kernels, entry: Entry = ENTRY) -> tuple[int, list[float]]:
    """Call the kernel. return: what it returns and what it writes"""
    pair, found = np.array((20, 2), PAIR), np.array([0, 0.5, 7], np.float32)
    return kernels.load(entry)(address(pair), address(found), 2), found.tolist()


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("*") if path.is_file())


def test_a_kernel_gets_numbers_and_records_and_returns_a_number(numbers, tmp_path):
    said: list[str] = []
    kernels = Kernels(tmp_path / "kernels", said.append)
    assert use(kernels) == (-98, [42.0, 42.5, 7.0])
    assert kernels.load(ENTRY) is kernels.load(ENTRY)
    assert len(said) == 1 and said[0].startswith("Compiling the kernels")


def test_it_is_known_whether_a_kernel_is_compiled(numbers, tmp_path):
    kernels = Kernels(tmp_path)
    assert not kernels.is_compiled(ENTRY)
    kernels.load(ENTRY)
    assert kernels.is_compiled(ENTRY) and Kernels(tmp_path).is_compiled(ENTRY)
    assert not Kernels(tmp_path / "other").is_compiled(ENTRY)


def test_a_second_process_finds_what_the_first_compiled(numbers, tmp_path, monkeypatch):
    said: list[str] = []
    use(Kernels(tmp_path / "kernels", said.append))
    assert files(tmp_path / "kernels") == ["add.kernel"]
    monkeypatch.setattr(module, "_compiled", lambda entry: pytest.fail("compiled again"))
    assert use(Kernels(tmp_path / "kernels", said.append)) == (-98, [42.0, 42.5, 7.0])
    assert len(said) == 1


def test_compiling_two_kernels_is_said_once(numbers, tmp_path):
    said: list[str] = []
    kernels = Kernels(tmp_path / "kernels", said.append)
    for own in ("add", "again"):
        use(kernels, Entry(own, ENTRY.module, ENTRY.function, ENTRY.arguments))
    assert files(tmp_path / "kernels") == ["add.kernel", "again.kernel"] and len(said) == 1


@pytest.mark.parametrize("damage", ["cut", "flipped", "emptied", "a folder"])
def test_a_damaged_file_is_compiled_anew(damage, numbers, tmp_path):
    use(Kernels(tmp_path / "kernels"))
    (path,) = (tmp_path / "kernels").rglob("add.kernel")
    whole = path.read_bytes()
    if damage == "a folder":
        path.unlink()
        path.mkdir()
    else:
        middle = len(whole) // 2
        flipped = whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :]
        path.write_bytes({"cut": whole[:-1], "flipped": flipped, "emptied": b""}[damage])
    said: list[str] = []
    assert use(Kernels(tmp_path / "kernels", said.append))[0] == -98
    assert len(said) == 1
    if damage != "a folder":
        assert files(tmp_path / "kernels") == ["add.kernel"]
        assert use(Kernels(tmp_path / "kernels", said.append))[0] == -98 and len(said) == 1, "and mended"


def test_where_the_folder_cannot_be_kept_it_is_compiled_every_time(numbers, tmp_path):
    (tmp_path / "file").write_text("")
    said: list[str] = []
    for count in (1, 2):
        assert use(Kernels(tmp_path / "file", said.append))[0] == -98
        assert len(said) == count
    assert (tmp_path / "file").read_text() == ""


def test_a_folder_that_may_only_be_read_is_enough(numbers, tmp_path, monkeypatch):
    """A container's image may bring the kernels, and its user not be allowed to write there."""
    use(Kernels(tmp_path / "kernels"))
    monkeypatch.setattr(module, "_write", lambda *_: pytest.fail("written"))
    said: list[str] = []
    assert use(Kernels(tmp_path / "kernels", said.append))[0] == -98 and said == []


FULL_DISK = """
import resource, sys
from pathlib import Path
from kaishu.cpu.kernels import Kernels
from tests.cpu.test_kernels import use

resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))
print(use(Kernels(Path(sys.argv[1]))))
"""


def test_a_disk_that_is_full_stops_no_kernel_and_leaves_nothing(numbers, tmp_path):
    paths = os.pathsep.join([str(numbers), str(PACKAGE.parent.parent)])
    run = subprocess.run(
        [sys.executable, "-c", FULL_DISK, tmp_path / "kernels"],
        env=os.environ | {"PYTHONPATH": paths, "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (run.returncode, run.stdout) == (0, "(-98, [42.0, 42.5, 7.0])\n"), run.stderr
    assert files(tmp_path / "kernels") == []


def test_compiled_code_needs_nothing_of_numba(kernels):
    """The linker finds only what the process has anyway, so nothing of Numba's runtime may be left in the code."""
    from kaishu.cpu.executor import FORWARD

    for entry in FORWARD.values():
        kernels.load(entry)
        found = module._read(kernels._folder / f"{entry.name}.kernel")
        assert found is not None and b"NRT_" not in found[1] and b"numba_" not in found[1]
