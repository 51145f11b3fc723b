"""The tokens of a text add up to it, whatever came before it and however it came."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kaishu.results import PositionLogprobs, TokenLogprob
from kaishu.server.responses_logprobs import TextTokens


def tokens_of(*pieces: str | bytes) -> list[PositionLogprobs]:
    raw = [piece.encode() if isinstance(piece, str) else piece for piece in pieces]
    return [PositionLogprobs(TokenLogprob(0, piece.decode(errors="replace"), piece, -1.0)) for piece in raw]


def spelt(tokens: list[PositionLogprobs]) -> bytes:
    return b"".join(token.chosen.bytes for token in tokens)


def test_what_came_before_the_text_is_left_out():
    assert spelt(TextTokens().push("Hi", tokens_of("\n", "</think>", "\n\n", "Hi"))) == b"Hi"


def test_a_token_whose_text_is_held_back_comes_with_its_text_or_not_at_all():
    tokens = TextTokens()
    assert spelt(tokens.push("Hi", tokens_of("Hi", " ", "\n"))) == b"Hi"
    assert spelt(tokens.push(" \nyou", tokens_of("you"))) == b" \nyou"
    assert tokens.push("", tokens_of("<tool_call>")) == []


def test_a_character_of_several_tokens_has_all_of_them():
    tokens = TextTokens()
    rabbit = "🐇".encode()
    assert tokens.push("🐇", tokens_of("</think>", rabbit[:1], rabbit[1:3], rabbit[3:])) == tokens_of(
        rabbit[:1], rabbit[1:3], rabbit[3:]
    )


def test_a_token_that_ends_outside_of_the_text_belongs_to_it():
    assert spelt(TextTokens().push("yes", tokens_of("\n\n", "yes\n"))) == b"yes\n"


@given(
    st.lists(st.text("ab 世🙂é\n", min_size=1, max_size=4), min_size=1, max_size=8),
    st.lists(st.sampled_from(["</think>", "\n</tool_call>", "\n\n"]), max_size=3),
    st.integers(0, 3),
)
def test_tokens_add_up_to_a_text_that_came_in_pieces(pieces, before, held_back):
    """Tokens are known earlier than their text by up to `held_back` pieces."""
    text = "x" + "".join(pieces)
    words = ["x", *pieces]
    reader, found = TextTokens(), []
    waiting = tokens_of(*before, *words[:held_back])
    for index, word in enumerate(words):
        coming = words[index + held_back : index + held_back + 1]
        found += reader.push(word, [*waiting, *tokens_of(*coming)])
        waiting = []
    assert spelt(found) == text.encode()
