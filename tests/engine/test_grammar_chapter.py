"""The examples of docs/engine/grammars.md print what the chapter says, and its links lead somewhere."""

from __future__ import annotations

import doctest
import re
from pathlib import Path

CHAPTER = Path(__file__).parents[2] / "docs" / "engine" / "grammars.md"


def test_every_example_prints_what_the_chapter_says(qwen3):
    text = CHAPTER.read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert len(blocks) >= 4
    test = doctest.DocTestParser().get_doctest("\n".join(blocks), {"tokenizer": qwen3}, CHAPTER.name, None, 0)
    said: list[str] = []
    failed, tried = doctest.DocTestRunner(optionflags=doctest.IGNORE_EXCEPTION_DETAIL).run(test, out=said.append)
    assert (failed, tried > 10) == (0, True), "".join(said)


def test_every_link_leads_somewhere():
    links = re.findall(r"\]\(([^)#:]+)\)", CHAPTER.read_text(encoding="utf-8"))
    assert links and [link for link in links if not (CHAPTER.parent / link).exists()] == []
