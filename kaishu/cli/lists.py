"""Options that take several values, separated by commas: `--weights bf16,int4`, `--contexts 1,1024`.

Owns how they are read and what is said about one that is wrong. What the values mean is the command's.
"""

from __future__ import annotations

from collections.abc import Sequence

from kaishu.errors import InvalidParameterError

_MAX_DIGITS = 10


def choices_of(field: str, text: str, allowed: Sequence[str]) -> tuple[str, ...]:
    """Read some of a few words.

    return: at least one, each once, in the order given
    raises: InvalidParameterError naming the word that isn't allowed
    """
    words = tuple(dict.fromkeys(word.strip() for word in text.split(",")))
    for word in words:
        if word not in allowed:
            raise InvalidParameterError(field, word, f"{' or '.join(allowed)}; several with commas between them")
    return words


def numbers_of(field: str, text: str, smallest: int, largest: int) -> tuple[int, ...]:
    """Read whole numbers.

    return: at least one, each once, in the order given
    raises: InvalidParameterError naming what isn't a number in that range
    """
    allowed = f"whole numbers from {smallest:,} to {largest:,}, with commas between them"
    numbers = []
    for word in (word.strip() for word in text.split(",")):
        is_number = word.isascii() and word.isdigit() and len(word) <= _MAX_DIGITS
        if not is_number or not smallest <= int(word) <= largest:
            raise InvalidParameterError(field, word, allowed)
        numbers.append(int(word))
    return tuple(dict.fromkeys(numbers))
