"""Ordinary text against the library on texts without control tokens, and what other threads do meanwhile."""

from __future__ import annotations

import threading
import time

from hypothesis import given, settings
from hypothesis import strategies as st

from kaishu.text.ordinary_text import OrdinaryText
from tests.qwen3_files import find_qwen3_files


def qwen3_library():
    from tokenizers import Tokenizer as Library

    return Library.from_file(str(find_qwen3_files() / "tokenizer.json"))


LIBRARY = qwen3_library()
CONTROL_TOKENS = {token.content: token_id for token_id, token in LIBRARY.get_added_tokens_decoder().items()}
ORDINARY = OrdinaryText(LIBRARY, frozenset(CONTROL_TOKENS.values()))


@settings(deadline=None, max_examples=300)
@given(
    st.text(st.characters(exclude_categories=["Cs"]), max_size=60)
    | st.sampled_from(["", " \n\n\r a1 é e\u0301 楷书 don't"])
)
def test_text_has_the_library_s_ids(text):
    assert not any(content in text for content in CONTROL_TOKENS)
    assert ORDINARY.encode(text) == LIBRARY.encode(text, add_special_tokens=False).ids


@given(st.sampled_from(sorted(CONTROL_TOKENS)), st.text("ab <|>/\n", max_size=5))
def test_what_looks_like_a_control_token_is_spelt(content, around):
    ids = ORDINARY.encode(around + content)
    assert CONTROL_TOKENS[content] not in ids
    assert LIBRARY.decode(ids) == around + content


def test_a_tokenizer_without_normaliser_and_splitter_takes_the_whole_text_as_one_piece():
    from tokenizers import Tokenizer as Library
    from tokenizers.models import BPE

    library = Library(BPE({"a": 0, "b": 1, " ": 2, "a b": 3, "a ": 4}, [("a", " "), ("a ", "b")]))
    assert OrdinaryText(library, frozenset()).encode("a ba") == [3, 0]


def test_other_threads_run_while_a_long_text_is_read():
    """If the library kept the interpreter's lock, no turn would be seen, however often it is tried."""
    text, turns, is_over = "Read this, 读一读!\n" * 10_000, 0, threading.Event()

    def count() -> None:
        nonlocal turns
        while not is_over.is_set():
            turns += 1
            time.sleep(0.001)

    other = threading.Thread(target=count)
    other.start()
    try:
        for _ in range(20):
            before = turns
            ids = ORDINARY.encode(text)
            if turns - before > 3:
                break
        else:
            raise AssertionError("the other thread stood still")
    finally:
        is_over.set()
        other.join()
    assert len(ids) > 60_000
