"""docs/cpu/ has a chapter for every kernel file; what chapters quote and measure is what the code and the records say.

A quote is a fenced python block whose first line names its file; a chapter's section "Measured" has numbers of
docs/experiments.md alone.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.chapters import ROOT, broken_links, check_quotes, linked_from

OPENING = ROOT / "docs" / "cpu.md"
CHAPTERS = sorted((ROOT / "docs" / "cpu").glob("*.md"))
NUMBER = re.compile(r"\d+(?:[.,]\d+)*")
HAS_KERNELS = re.compile(r"^\s*@(?:njit|intrinsic)\b|\bintrinsic\(", re.MULTILINE)


def kernel_files() -> list[Path]:
    folder = ROOT / "kaishu" / "cpu"
    return [path for path in sorted(folder.glob("*.py")) if HAS_KERNELS.search(path.read_text(encoding="utf-8"))]


def measured(text: str) -> str:
    """A chapter's section of what was measured, without its links and code; empty if it has none."""
    section = re.search(r"^## Measured\n(.*?)(?=^## |\Z)", text, re.DOTALL | re.MULTILINE)
    return re.sub(r"\]\([^)]*\)|`[^`]*`", "", section[1]) if section else ""


def test_every_kernel_file_has_a_chapter_that_links_to_it() -> None:
    explained = {target for chapter in CHAPTERS for target in linked_from(chapter)}
    assert len(kernel_files()) >= 15
    assert [path.name for path in kernel_files() if path not in explained] == []


def test_every_chapter_is_linked_from_the_opening_page() -> None:
    assert [path.name for path in CHAPTERS if path not in linked_from(OPENING)] == []


@pytest.mark.parametrize("page", [OPENING, *CHAPTERS], ids=lambda page: page.name)
def test_every_link_leads_somewhere(page: Path) -> None:
    assert broken_links(page) == []


@pytest.mark.parametrize("chapter", CHAPTERS, ids=lambda chapter: chapter.name)
def test_every_quoted_line_of_code_is_in_the_file_it_is_quoted_from(chapter: Path) -> None:
    assert ">>> " not in chapter.read_text(encoding="utf-8"), "examples are run for the engine's chapters only"
    check_quotes(chapter)


@pytest.mark.parametrize("chapter", CHAPTERS, ids=lambda chapter: chapter.name)
def test_what_a_chapter_says_was_measured_stands_in_the_experiments(chapter: Path) -> None:
    section = measured(chapter.read_text(encoding="utf-8"))
    recorded = NUMBER.findall((ROOT / "docs" / "experiments.md").read_text(encoding="utf-8"))
    assert section, "says what was measured, or that nothing was"
    assert [number for number in NUMBER.findall(section) if number not in recorded] == []
