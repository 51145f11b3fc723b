"""`kaishu cache`: what is there, what is removed, and no question where nobody can answer."""

from __future__ import annotations

import io
import os
import time
from pathlib import Path

import pytest

from kaishu.cli.cache import kernel_files
from kaishu.cli.main import main
from kaishu.cpu.store import PackedStore
from kaishu.locked_file import open_locked

NOTHING_PACKED = "packed weights      0 files        0 B  ~/kaishu/packed"
NO_KERNELS = "compiled kernels    0 files        0 B  ~/kaishu/kernels"
CLEAR_HINT = "`kaishu cache clear` removes them; the next start makes them again."


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("KAISHU_CACHE", str(tmp_path / "kaishu"))
    return tmp_path / "kaishu"


@pytest.fixture
def full(folder) -> Path:
    """Two files of packed weights and two of kernels."""
    for name, minutes in (("tiny, int8", 0), ("\x1b[2J, int4", 26 * 60)):
        key = {"name": name}
        file = PackedStore(folder / "packed").open_or_pack(key, 20_000, lambda _: None, describe=name.encode())
        used = time.time() - 60 * minutes - 1
        os.utime(file.path, (used, used))
    (folder / "kernels" / "deeper").mkdir(parents=True)
    (folder / "kernels" / "index").write_bytes(bytes(1500))
    (folder / "kernels" / "deeper" / "code").write_bytes(bytes(1000))
    return folder


@pytest.fixture
def run(capsys, monkeypatch):
    """`run(*arguments, typed="y")`: exit code, stdout, stderr; at a terminal if something is typed there."""

    def run(*arguments: str, typed: str | None = None) -> tuple[int, str, str]:
        stdin = io.StringIO(typed or "")
        stdin.isatty = lambda: typed is not None
        monkeypatch.setattr("sys.stdin", stdin)
        with pytest.raises(SystemExit) as ended:
            main(["cache", *arguments])
        captured = capsys.readouterr()
        return ended.value.code, captured.out, captured.err

    return run


def test_an_empty_cache_is_listed_as_one(run, folder):
    assert run() == (0, f"{NOTHING_PACKED}\n{NO_KERNELS}\n", "")
    assert not folder.exists(), "listing makes nothing"


def test_both_kinds_are_listed_with_sizes_and_places(run, full):
    code, out, err = run()
    assert (code, err) == (0, "")
    assert out.splitlines() == [
        "packed weights      2 files    48.3 kB  ~/kaishu/packed",
        "    24.1 kB  used just now         tiny, int8",
        "    24.1 kB  used 1 day ago        ␛[2J, int4",
        "compiled kernels    2 files     2.5 kB  ~/kaishu/kernels",
        CLEAR_HINT,
    ]


def test_what_is_damaged_or_unfinished_is_said_to_be(run, folder):
    (folder / "packed").mkdir(parents=True)
    (folder / "packed" / "a.packed").write_bytes(b"damage")
    (folder / "packed" / "b.partial").write_bytes(b"begun")
    lines = run()[1].splitlines()
    assert "damaged" in "".join(lines[1:3]) and "being packed now" in "".join(lines[1:3])


def test_a_folder_that_is_not_at_home_is_shown_whole(run, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("KAISHU_CACHE", str(tmp_path / "elsewhere"))
    assert f"  {tmp_path}/elsewhere/packed\n" in run()[1]


@pytest.mark.parametrize(
    "options, removed, left",
    [
        ([], "4 files, 50.8 kB", [NOTHING_PACKED, NO_KERNELS]),
        (["--packed", "--kernels"], "4 files, 50.8 kB", [NOTHING_PACKED, NO_KERNELS]),
        (["--packed"], "2 files, 48.3 kB", [NOTHING_PACKED, "compiled kernels    2 files"]),
        (["--kernels"], "2 files, 2.5 kB", ["packed weights      2 files", NO_KERNELS]),
    ],
)
def test_what_was_asked_for_is_removed_and_nothing_else(run, full, options, removed, left):
    (full / "modelscope").mkdir()
    (full / "modelscope" / "model.safetensors").touch()
    assert run("clear", "--yes", *options) == (0, f"Removed {removed}.\n", "")
    out = run()[1]
    assert all(line in out for line in left)
    assert (full / "modelscope" / "model.safetensors").exists()


@pytest.mark.parametrize(
    "typed, is_removed", [("y\n", True), ("YES\n", True), ("n\n", False), ("\n", False), ("", False)]
)
def test_at_a_terminal_it_asks_and_only_yes_means_yes(run, full, typed, is_removed):
    code, out, err = run("clear", "--packed", typed=typed)
    assert (code, err) == (0, "")
    assert out.startswith("Remove packed weights from ~/kaishu? [y/N] ")
    assert ("Removed 2 files" in out) == is_removed and ("Nothing was removed." in out) != is_removed
    assert any((full / "packed").iterdir()) != is_removed
    assert len(kernel_files(full / "kernels")) == 2


def test_where_nobody_can_answer_it_says_how_and_removes_nothing(run, full):
    code, out, err = run("clear")
    assert (code, out) == (2, "")
    assert err.startswith("kaishu: error: ") and "no terminal to ask at" in err and "--yes" in err
    assert len(list((full / "packed").iterdir())) == 2


def test_weights_that_are_being_packed_are_left_alone(run, full):
    with open_locked(full / "packed" / "now.partial"):
        assert run("clear", "--yes")[1] == "Removed 4 files, 50.8 kB.\n"
        assert [path.name for path in (full / "packed").iterdir()] == ["now.partial"]


def test_a_link_among_the_kernels_is_removed_not_what_it_leads_to(run, full, tmp_path):
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "file").touch()
    (full / "kernels" / "folder").symlink_to(tmp_path / "precious")
    (full / "kernels" / "nowhere").symlink_to(tmp_path / "nothing")
    assert run("clear", "--kernels", "--yes")[1].startswith("Removed 4 files")
    assert (tmp_path / "precious" / "file").exists()
    assert kernel_files(full / "kernels") == []
