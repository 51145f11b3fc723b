"""What tests of the chapters in docs/ have in common: their links, what they quote, and the examples that they print.

A quote is a fenced python block whose first line names its file, an example one whose first line begins with `>>>`.
"""

from __future__ import annotations

import doctest
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
FENCED = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\]\(([^)#:]+)(?:#[^)]*)?\)")
QUOTE = re.compile(r"```python\n# (kaishu/\S+\.py)\n(.*?)```", re.DOTALL)
EXAMPLE = re.compile(r"```python\n(>>> .*?)```", re.DOTALL)
MOST_QUOTED_LINES = 12


def linked_from(page: Path) -> list[Path]:
    """What a page links to, outside its code."""
    text = FENCED.sub("", page.read_text(encoding="utf-8"))
    return [(page.parent / target).resolve() for target in LINK.findall(text)]


def broken_links(page: Path) -> list[str]:
    """Links of a page that lead nowhere."""
    return [str(target) for target in linked_from(page) if not target.exists()]


def check_quotes(page: Path) -> None:
    """Every python block is an example, or says word for word what the file that it names says."""
    text = page.read_text(encoding="utf-8")
    quotes = QUOTE.findall(text)
    blocks = len(quotes) + len(EXAMPLE.findall(text))
    assert blocks == text.count("```python"), "the first line of a quote names the file that it is from"
    for path, code in quotes:
        assert code in (ROOT / path).read_text(encoding="utf-8"), f"quotes what {path} doesn't say:\n{code}"
        assert code.count("\n") <= MOST_QUOTED_LINES, f"quotes more of {path} than a reader needs:\n{code}"


def check_examples(page: Path, names: Mapping[str, Any]) -> int:
    """Run a page's examples, one after another, and compare what they print with what the page says.

    names:  what the examples have without making it
    return: how many there were
    """
    blocks = EXAMPLE.findall(page.read_text(encoding="utf-8"))
    test = doctest.DocTestParser().get_doctest("\n".join(blocks), dict(names), page.name, None, 0)
    said: list[str] = []
    failed, tried = doctest.DocTestRunner(optionflags=doctest.IGNORE_EXCEPTION_DETAIL).run(test, out=said.append)
    assert failed == 0, "".join(said)
    return tried
