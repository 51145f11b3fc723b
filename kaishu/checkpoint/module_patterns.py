"""Values for modules by name or pattern, as `rank_pattern` and `alpha_pattern` of an adapter give them.

Owns how such a key is read: as the whole name of a module, its end after a dot, or a regular expression for either; the
first key that matches wins. Patterns come from strangers, and some take exponential time, so only simple ones are
obeyed. Knows nothing of what the values mean. Made by lora_config.py.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from kaishu.errors import CheckpointError
from kaishu.json_fields import shown

_PLAIN = re.compile(r"\^?[\w.]+")
_MAX_LENGTH = 200
_MAX_REPEATS = 2  # a name of 70 characters has 2,415 ways to match two of them: microseconds
_MAX_EXPRESSIONS = 16
_ALLOWED = (
    f"names of modules, or at most {_MAX_EXPRESSIONS} regular expressions of {_MAX_LENGTH} characters with at most "
    f"{_MAX_REPEATS} repeats (*, +, {{…}}), none of a group"
)


@dataclass(frozen=True)
class ModulePatterns:
    """Keys and their values, sorted by how they are looked up.

    plain:       the end of a name, or with `^` in front a whole name → its place among the keys, and the value
    expressions: the others, each with its place
    """

    plain: Mapping[str, tuple[int, float]]
    expressions: tuple[tuple[int, re.Pattern[str], float], ...]

    @classmethod
    def from_mapping(cls, source: str, values: Mapping[str, float]) -> ModulePatterns:
        """Sort and check the keys.

        source: where they stand, for messages
        raises: CheckpointError for a key that is no expression, or might take long
        """
        plain: dict[str, tuple[int, float]] = {}
        expressions: list[tuple[int, re.Pattern[str], float]] = []
        for place, (key, value) in enumerate(values.items()):
            literal = key.removesuffix("$").replace("\\.", ".")
            if _PLAIN.fullmatch(literal):
                plain.setdefault(literal, (place, value))
            else:
                expressions.append((place, _compiled(source, key), value))
        if len(expressions) > _MAX_EXPRESSIONS:
            raise CheckpointError(f"{source} has {len(expressions):,} regular expressions; allowed: {_ALLOWED}.")
        return cls(plain, tuple(expressions))

    def value(self, module: str) -> float | None:
        """The value of the first key that matches; None without one."""
        pieces = module.split(".")
        ends = [".".join(pieces[start:]) for start in range(len(pieces))]
        found = [self.plain[end] for end in (f"^{module}", *ends) if end in self.plain]
        found += [(place, value) for place, expression, value in self.expressions if expression.match(module)]
        return min(found)[1] if found else None


def _compiled(source: str, key: str) -> re.Pattern[str]:
    """raises: CheckpointError"""
    repeats = sum(key.count(sign) for sign in "*+{")
    is_simple = len(key) <= _MAX_LENGTH and repeats <= _MAX_REPEATS and not re.search(r"\)[*+{]", key)
    if not is_simple:
        raise CheckpointError(f"{source} has the key {shown(key)}; allowed: {_ALLOWED}.")
    try:
        return re.compile(rf"(.*\.)?({key})$")
    except (re.error, OverflowError, RecursionError) as problem:
        raise CheckpointError(f"{source}: {shown(key)} is no regular expression: {problem}.") from None
