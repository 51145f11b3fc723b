"""docs/engine/ has a chapter for every file of the engine, and what its examples print is what the chapters say.

The examples are real runs: one request traced through every step, pages that are taken and given back, logits alone and
in a batch.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chapters import ROOT, broken_links, check_examples, check_quotes, linked_from

OPENING = ROOT / "docs" / "engine" / "README.md"
CHAPTERS = sorted(path for path in (ROOT / "docs" / "engine").glob("*.md") if path != OPENING)
every_chapter = pytest.mark.parametrize("chapter", CHAPTERS, ids=lambda chapter: chapter.name)


def test_every_file_of_the_engine_is_explained_by_a_chapter_that_links_to_it() -> None:
    files = [path for path in sorted((ROOT / "kaishu" / "engine").glob("*.py")) if path.name != "__init__.py"]
    explained = {target for chapter in CHAPTERS for target in linked_from(chapter)}
    assert len(files) >= 15
    assert [path.name for path in files if path not in explained] == []


def test_every_chapter_is_linked_from_the_opening_page_and_that_from_the_first_page() -> None:
    assert [path.name for path in CHAPTERS if path not in linked_from(OPENING)] == []
    assert OPENING in linked_from(ROOT / "docs" / "README.md")


@pytest.mark.parametrize("page", [OPENING, *CHAPTERS], ids=lambda page: page.name)
def test_every_link_leads_somewhere(page: Path) -> None:
    assert broken_links(page) == []


@every_chapter
def test_every_quoted_line_of_code_is_in_the_file_it_is_quoted_from(chapter: Path) -> None:
    check_quotes(chapter)


@every_chapter
def test_every_example_prints_what_the_chapter_says(chapter: Path, request: pytest.FixtureRequest) -> None:
    names = {"tokenizer": request.getfixturevalue("qwen3")} if chapter.name == "grammars.md" else {}
    assert check_examples(chapter, names) >= 4
