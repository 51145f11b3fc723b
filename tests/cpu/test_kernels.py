"""Compiled code is found again in its folder, and the folder's name follows everything that the code depends on."""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import llvmlite
import llvmlite.binding
import numba
import pytest
from numba.core.registry import cpu_target

from kaishu.cpu import kernels
from kaishu.cpu.kernels import kernel_folder

PACKAGE = Path(kernels.__file__).parent


@pytest.fixture
def sources(tmp_path, monkeypatch):
    """A copy of kaishu/cpu's files that is taken for the package."""
    folder = tmp_path / "cpu"
    shutil.copytree(PACKAGE, folder, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(kernels, "__file__", str(folder / "kernels.py"))
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


@pytest.mark.parametrize("module", [numba, llvmlite])
def test_another_version_has_another_folder(module, monkeypatch):
    before = name()
    monkeypatch.setattr(module, "__version__", module.__version__ + ".1")
    assert name() != before


def test_another_cpu_or_set_of_features_has_another_folder(monkeypatch):
    before = name()
    codegen = cpu_target.target_context.codegen()
    with monkeypatch.context() as patch:
        patch.setattr(codegen, "_tm_features", codegen._tm_features + ",+another")
        with_feature = name()
    monkeypatch.setattr(llvmlite.binding, "get_host_cpu_name", lambda: "another")
    assert len({before, with_feature, name()}) == 3


PROGRAM = """
import sys
from pathlib import Path

import numba
from numba import njit

from kaishu.cpu.kernels import keep_compiled


@njit
def inner(x):
    return x + 1


@njit
def doubled(x):
    return 2 * inner(x)


@njit
def halved(x):
    return x / 2


is_new = keep_compiled((doubled, halved), Path(sys.argv[1]))
values = doubled(20), halved(1.0)
hits = sum(sum(function.stats.cache_hits.values()) for function in (doubled, halved))
print(is_new, hits, values, numba.config.CACHE_DIR == "")
"""


def run(program: Path, folder: Path, *, largest_file: int | None = None) -> list[str]:
    """Run the program in a process of its own. return: whether the folder was new, hits, results, setting restored"""
    environment = {key: value for key, value in os.environ.items() if key != "NUMBA_CACHE_DIR"}
    environment |= {"PYTHONPATH": str(PACKAGE.parent.parent), "PYTHONDONTWRITEBYTECODE": "1"}

    def limit() -> None:
        if largest_file is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (largest_file, largest_file))

    done = subprocess.run(
        [sys.executable, program, folder],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        cwd="/",
        preexec_fn=limit,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip().split(" ", 2)


@pytest.fixture
def program(tmp_path):
    folder = tmp_path / "program"
    folder.mkdir()
    (folder / "program.py").write_text(PROGRAM)
    return folder / "program.py"


def test_a_second_process_finds_what_the_first_compiled(program, tmp_path):
    folder = tmp_path / "kernels" / "digest"
    assert run(program, folder) == ["True", "0", "(42, 0.5) True"]
    assert len(list(folder.rglob("*.nbi"))) == 2
    assert run(program, folder) == ["False", "2", "(42, 0.5) True"]
    assert [path.name for path in program.parent.iterdir()] == ["program.py"], "nothing is left beside the source"


def test_where_the_folder_cannot_be_kept_nothing_is_left_elsewhere(program, tmp_path):
    """Numba on its own would go on to the source's __pycache__, whose code nobody checks against the callees."""
    (tmp_path / "file").write_text("")
    for _ in range(2):
        assert run(program, tmp_path / "file" / "digest") == ["True", "0", "(42, 0.5) True"]
    assert [path.name for path in program.parent.iterdir()] == ["program.py"]


def test_a_disk_that_is_full_stops_no_kernel(program, tmp_path):
    """Numba opens its files well enough, and can't write them."""
    folder = tmp_path / "kernels"
    for _ in range(2):
        assert run(program, folder, largest_file=100)[1:] == ["0", "(42, 0.5) True"]
    assert run(program, folder)[1:] == ["0", "(42, 0.5) True"]
    assert run(program, folder)[1:] == ["2", "(42, 0.5) True"]
