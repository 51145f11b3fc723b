"""docs/cpu/ has a chapter for every kernel file; what chapters quote and measure is what the code and the records say.

A quote is a fenced python block whose first line names its file; a chapter's section "Measured" has numbers of
docs/experiments.md alone.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
OPENING = ROOT / "docs" / "cpu.md"
CHAPTERS = sorted((ROOT / "docs" / "cpu").glob("*.md"))
QUOTE = re.compile(r"```python\n# (kaishu/cpu/\S+\.py)\n(.*?)```", re.DOTALL)
FENCED = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\]\(([^)#:]+)(?:#[^)]*)?\)")
NUMBER = re.compile(r"\d+(?:[.,]\d+)*")
HAS_KERNELS = re.compile(r"^\s*@(?:njit|intrinsic)\b|\bintrinsic\(", re.MULTILINE)


def linked_from(path: Path) -> list[Path]:
    """What a page links to, outside its code."""
    text = FENCED.sub("", path.read_text(encoding="utf-8"))
    return [(path.parent / target).resolve() for target in LINK.findall(text)]


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
    assert [str(target) for target in linked_from(page) if not target.exists()] == []


@pytest.mark.parametrize("chapter", CHAPTERS, ids=lambda chapter: chapter.name)
def test_every_quoted_line_of_code_is_in_the_file_it_is_quoted_from(chapter: Path) -> None:
    text = chapter.read_text(encoding="utf-8")
    quotes = QUOTE.findall(text)
    assert len(quotes) == text.count("```python"), "the first line of a python block names the file that it is from"
    for path, code in quotes:
        assert code in (ROOT / path).read_text(encoding="utf-8"), f"quotes what {path} doesn't say:\n{code}"
        assert code.count("\n") <= 12, f"quotes more of {path} than a reader needs:\n{code}"


@pytest.mark.parametrize("chapter", CHAPTERS, ids=lambda chapter: chapter.name)
def test_what_a_chapter_says_was_measured_stands_in_the_experiments(chapter: Path) -> None:
    section = measured(chapter.read_text(encoding="utf-8"))
    recorded = NUMBER.findall((ROOT / "docs" / "experiments.md").read_text(encoding="utf-8"))
    assert section, "says what was measured, or that nothing was"
    assert [number for number in NUMBER.findall(section) if number not in recorded] == []
