"""The chapters on the reference model quote its code; what they quote must be there, word for word."""

import re

import pytest

from tests.chapters import QUOTE, ROOT, broken_links


@pytest.mark.parametrize("chapter", ["reference.md", "reference.zh.md"])
def test_every_quoted_line_of_code_is_in_the_file_it_is_quoted_from(chapter):
    quotes = QUOTE.findall((ROOT / "docs" / chapter).read_text(encoding="utf-8"))
    assert len(quotes) >= 8
    for path, code in quotes:
        assert code in (ROOT / path).read_text(encoding="utf-8"), f"{chapter} quotes what {path} doesn't say:\n{code}"


@pytest.mark.parametrize("chapter", ["reference.md", "reference.zh.md"])
def test_every_link_of_a_chapter_leads_somewhere(chapter):
    assert broken_links(ROOT / "docs" / chapter) == []


def test_both_languages_quote_the_same_code_and_the_same_numbers():
    english, chinese = (
        (ROOT / "docs" / name).read_text(encoding="utf-8") for name in ("reference.md", "reference.zh.md")
    )
    for pattern in (QUOTE.pattern, r"```text\n.*?```", r"^\$\$.*?\$\$$"):
        flags = re.DOTALL | re.MULTILINE
        assert re.findall(pattern, english, flags) == re.findall(pattern, chinese, flags)
