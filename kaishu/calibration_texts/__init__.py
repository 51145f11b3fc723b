"""What `kaishu quantize --calibrate` reads: a user's text, or Kaishu's own.

Owns the texts and how they become sequences of tokens. None of them is among those that `kaishu eval` measures with
(evaluation_texts.py): what is measured must not be what was calibrated on, and a test holds them apart. The bundled
model reads tiny.jsonl, conversations of its own world as training/tiny makes them up; others read pages.txt: famous
pages in the public domain, English and Chinese, and a little of Kaishu's own: code, questions, tables.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from importlib.resources import files

from kaishu.text.template import ChatTemplate
from kaishu.text.tokenizer import Tokenizer

WINDOW_TOKENS = 512


def world_of_tiny(tokenizer: Tokenizer, template: ChatTemplate) -> list[list[int]]:
    """The bundled model's conversations and stories, each a sequence."""
    sequences = []
    for line in _own("tiny.jsonl").splitlines():
        row = json.loads(line)
        if "text" in row:
            sequences.append(tokenizer.encode(row["text"]))
        else:
            prompt = template.render(row["messages"], tools=row.get("tools"), add_generation_prompt=False)
            sequences.append(tokenizer.encode_prompt(prompt))
    return sequences


def pages(tokenizer: Tokenizer) -> list[list[int]]:
    """The pages for all other models, each a sequence."""
    return [tokenizer.encode(page.strip("\n")) for page in _own("pages.txt").split("\n%%\n")]


def windows(token_ids: Sequence[int], size: int) -> list[list[int]]:
    """A long text cut into sequences of at most `size` tokens."""
    return [list(token_ids[start : start + size]) for start in range(0, len(token_ids), size)]


def at_most(sequences: Sequence[Sequence[int]], tokens: int, context: int) -> list[list[int]]:
    """The first sequences, cut where they are longer than the model's context or the tokens are enough.

    tokens: at least 1
    """
    kept: list[list[int]] = []
    for sequence in sequences:
        for window in windows(sequence, context):
            left = tokens - sum(map(len, kept))
            if left > 0:
                kept.append(window[:left])
    return kept


def _own(name: str) -> str:
    return files(__name__).joinpath(name).read_text(encoding="utf-8")
