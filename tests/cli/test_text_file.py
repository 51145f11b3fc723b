"""A text file that an option names: read whole, or refused in the words of that option."""

from __future__ import annotations

import pytest

from kaishu.cli.text_file import read_text
from kaishu.errors import InvalidParameterError


def test_text_comes_as_it_is(tmp_path):
    (tmp_path / "书.txt").write_text(" 楷书\n\n", encoding="utf-8")
    assert read_text("--text", tmp_path / "书.txt") == " 楷书\n\n"


@pytest.mark.parametrize("content, said", [(b"\xff\xfe", "isn't UTF-8"), (b" \n", "is empty"), (None, "can't be read")])
def test_what_is_no_text_says_why_and_of_which_option(tmp_path, content, said):
    if content is not None:
        (tmp_path / "text").write_bytes(content)
    with pytest.raises(
        InvalidParameterError, match=r"--calibrate is .*; allowed: a file with a text in UTF-8"
    ) as found:
        read_text("--calibrate", tmp_path / "text")
    assert said in str(found.value)
