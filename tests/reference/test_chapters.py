"""The chapters on the reference model quote its code; what they quote must be there, word for word."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
QUOTE = re.compile(r"```python\n# (kaishu/\S+\.py)\n(.*?)```", re.DOTALL)


@pytest.mark.parametrize("chapter", ["reference.md", "reference.zh.md"])
def test_every_quoted_line_of_code_is_in_the_file_it_is_quoted_from(chapter):
    quotes = QUOTE.findall((ROOT / "docs" / chapter).read_text(encoding="utf-8"))
    assert len(quotes) >= 8
    for path, code in quotes:
        assert code in (ROOT / path).read_text(encoding="utf-8"), f"{chapter} quotes what {path} doesn't say:\n{code}"


@pytest.mark.parametrize("chapter", ["reference.md", "reference.zh.md"])
def test_every_link_of_a_chapter_leads_somewhere(chapter):
    text = (ROOT / "docs" / chapter).read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)#]+)\)", text):
        assert (ROOT / "docs" / target).exists(), target


def test_both_languages_quote_the_same_code_and_the_same_numbers():
    english, chinese = (
        (ROOT / "docs" / name).read_text(encoding="utf-8") for name in ("reference.md", "reference.zh.md")
    )
    for pattern in (QUOTE.pattern, r"```text\n.*?```", r"^\$\$.*?\$\$$"):
        flags = re.DOTALL | re.MULTILINE
        assert re.findall(pattern, english, flags) == re.findall(pattern, chinese, flags)
