"""A model's tokens as llguidance takes them.

Owns the translation: the bytes of each token, which ids are control tokens, and one id past the model's rows that means
"the output may end here". Masks are made of bytes, so they are as exact as `Tokenizer.token_bytes`.
Knows no grammars. Used by grammar.py, once for each model.

A grammar's end is an id of its own, since a model has several end tokens and a grammar may name any token: with it, the
model's end tokens are allowed where the output may end and nowhere else.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from kaishu.errors import KaishuError
from kaishu.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from llguidance import LLTokenizer

MAX_SPELLED = 4_096  # characters of forced text that are cut into tokens at once; the rest has its turn later


class GrammarTokens:
    """The tokens of a model that has `num_rows` rows of logits.

    library:   llguidance's tokenizer
    end_id:    the id that means "the output may end here"; equals num_rows
    usable:    [num_words(num_rows)] uint32, the bits of all ids that have a token and aren't an end token
    ended:     the same shape, the bits of the model's end tokens
    end_names: how the end tokens are written
    """

    def __init__(self, tokenizer: Tokenizer, *, num_rows: int, end_token_ids: Collection[int]) -> None:
        from llguidance import LLTokenizer, TokenizerWrapper

        self.num_rows = num_rows
        self.end_id = num_rows
        absent = set(tokenizer.ids_without_token(num_rows))
        tokens = [b"" if i in absent else tokenizer.token_bytes(i) for i in range(num_rows)]
        # The byte 0xFF, which no UTF-8 has, marks control tokens there.
        tokens = [b"" if token.startswith(b"\xff") else token for token in tokens]
        control = {i for i in tokenizer.control_tokens.values() if i < num_rows}
        ends = {i for i in end_token_ids if i < num_rows and i not in absent}
        usable = [i for i in range(num_rows) if tokens[i] and i not in ends]
        self.usable = bits_of(usable, num_rows)
        self.ended = bits_of(ends, num_rows)
        self.end_names = sorted(tokens[i].decode("utf-8", errors="replace") for i in ends)
        self.library: LLTokenizer = LLTokenizer(
            TokenizerWrapper(_Speller(tokenizer, [*tokens, b"the end"], [*sorted(control), self.end_id], self.end_id))
        )


class _Speller:
    """What llguidance asks of a tokenizer: the table of tokens, and how to cut a text that must come next.

    How it is cut decides which one token a mask allows where a grammar leaves one text only, so it is the model's own
    way; but never other bytes, as the normaliser would make of `e` and a combining accent.
    """

    bos_token_id = None

    def __init__(self, tokenizer: Tokenizer, tokens: list[bytes], control: list[int], end_id: int) -> None:
        self._tokenizer = tokenizer
        self.tokens = tokens
        self.special_token_ids = control
        self.eos_token_id = end_id
        self._num_before = len(tokenizer.encode(""))  # Llama's begin token
        special = set(control)
        self._byte_ids = {token[0]: i for i, token in enumerate(tokens) if len(token) == 1 and i not in special}

    def __call__(self, text: str) -> list[int]:
        if not isinstance(text, str):  # asked once, to find out whether bytes are taken
            raise TypeError("a text")
        text = text[:MAX_SPELLED]
        ids = self._exact(text)
        if ids is not None:
            return ids
        ids = []
        for word in re.findall(r"\s*\S+|\s+", text):  # only words that the normaliser would change are spelled
            own = self._exact(word)
            if own is None:
                own = self._spelled(word)
            ids += own
            if self._bytes(own) != word.encode():
                break  # the model can't write it; what comes before it, it can
        return ids

    def _exact(self, text: str) -> list[int] | None:
        """The model's own tokens, if they have the text's bytes."""
        ids = self._encoded(text)
        return ids if self._bytes(ids) == text.encode() else None

    def _spelled(self, text: str) -> list[int]:
        """One character after the other, in bytes where the normaliser would change it, as far as there are tokens."""
        ids: list[int] = []
        for character in text:
            own = self._exact(character)
            if own is None:
                own = [self._byte_ids[byte] for byte in character.encode() if byte in self._byte_ids]
            ids += own
            if self._bytes(own) != character.encode():
                break
        return ids

    def _encoded(self, text: str) -> list[int]:
        try:
            return self._tokenizer.encode(text)[self._num_before :]
        except KaishuError:  # a character that this model has no token for
            return []

    def _bytes(self, ids: list[int]) -> bytes:
        return b"".join(self.tokens[i] for i in ids if i < self.eos_token_id)


def num_words(num_rows: int) -> int:
    """How many 32-bit words hold one bit for each row."""
    return (num_rows + 31) // 32


def bits_of(ids: Collection[int], num_rows: int) -> NDArray[np.uint32]:
    """A mask of these ids: id i is bit i % 32 of word i // 32.

    return: [num_words(num_rows)] uint32
    """
    flags = np.zeros(32 * num_words(num_rows), np.uint8)
    flags[list(ids)] = 1
    return np.packbits(flags, bitorder="little").view("<u4").astype(np.uint32)
