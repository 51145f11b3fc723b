"""Text as ids with nothing special in it: what looks like a control token is spelt like any other text.

Owns the library's own steps without its first, the search for added tokens: normalise, split, merge. Used by
tokenizer.py, which knows where control tokens really stand.

The library lets other threads run only while it encodes a batch. So a batch of one text it is: a server's event loop
goes on while a long prompt is read.
"""

from __future__ import annotations

from collections.abc import Set
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Library


class OrdinaryText:
    """Encodes as a library does that has no added tokens.

    control_ids: which aren't text, even where merges spell one
    """

    def __init__(self, library: Library, control_ids: Set[int]) -> None:
        self._control_ids = control_ids
        self._library = type(library)(library.model)
        if library.normalizer is not None:
            self._library.normalizer = library.normalizer
        if library.pre_tokenizer is not None:
            self._library.pre_tokenizer = library.pre_tokenizer

    def encode(self, text: str) -> list[int]:
        """The ids of a text."""
        (found,) = self._library.encode_batch_fast([text], add_special_tokens=False)
        ids: list[int] = found.ids
        return ids if self._control_ids.isdisjoint(ids) else self._piece_by_piece(text)

    def _piece_by_piece(self, text: str) -> list[int]:
        """The same where merges spell a control token: they are stopped in the pieces that do."""
        normalizer, splitter, model = self._library.normalizer, self._library.pre_tokenizer, self._library.model
        normal = text if normalizer is None else normalizer.normalize_str(text)
        ids: list[int] = []
        for piece, _ in [(normal, None)] if splitter is None else splitter.pre_tokenize_str(normal):
            piece_ids = [token.id for token in model.tokenize(piece)]
            if not self._control_ids.isdisjoint(piece_ids):
                piece_ids = [token.id for letter in piece for token in model.tokenize(letter)]
            ids += piece_ids
        return ids
