"""RopeConfig: how positions are turned into rotations, and how the two spellings of it in config.json are read.

Owns the kinds of RoPE that we run and the names of their fields. Knows nothing of the tables themselves: those are
reference/rope.py and cpu/rope.py. Part of config.py, which is where everyone else imports it from.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, cast

from kaishu.errors import ConfigError, and_more
from kaishu.json_fields import JsonFields


@dataclass(frozen=True)
class RopeConfig:
    """Rotary position embedding: the base and, where the context was stretched, how.

    Fields that a `kind` doesn't use keep their defaults. `original_positions` is the context length before stretching.
    """

    theta: float
    kind: Literal["default", "linear", "yarn", "llama3"] = "default"
    factor: float = 1.0
    original_positions: int | None = None
    attention_factor: float | None = None  # yarn: None means 0.1 ln(factor) + 1 (or from mscale, mscale_all_dim)
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    mscale: float | None = None
    mscale_all_dim: float | None = None
    truncate: bool = True  # yarn: round the correction range to whole dimensions
    low_freq_factor: float = 1.0  # llama3
    high_freq_factor: float = 4.0  # llama3


_STRETCHED = {"factor", "original_max_position_embeddings"}
_ROPE_FIELDS: Mapping[str, set[str]] = {
    "default": {"original_max_position_embeddings"},  # sometimes left over; says nothing here
    "linear": _STRETCHED,
    "yarn": _STRETCHED | {"attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim", "truncate"},
    "llama3": _STRETCHED | {"low_freq_factor", "high_freq_factor"},
}


def rope_from_json(fields: JsonFields) -> RopeConfig:
    """Read RoPE in its old spelling (rope_theta, rope_scaling) or its new one (rope_parameters).

    fields: the whole of config.json
    return: the same RopeConfig for every spelling of the same meaning
    raises: ConfigError on an unknown type, a missing base, or two spellings that disagree
    """
    sections = [s for s in (fields.section("rope_parameters"), fields.section("rope_scaling")) if s is not None]
    readings = [_rope_section(fields, section) for section in sections or [JsonFields({}, fields.source, ConfigError)]]
    if readings[0] != readings[-1]:
        raise fields.wrong("rope_scaling", "the same meaning as rope_parameters, or one of the two")
    return readings[0]


def _rope_section(fields: JsonFields, section: JsonFields) -> RopeConfig:
    if section.has("type") and section.has("rope_type") and section.values["type"] != section.values["rope_type"]:
        raise section.wrong("type", "the same as rope_type, or one of the two")
    spelling = "type" if section.has("type") else "rope_type"
    kind = cast(Any, section.one_of(spelling, tuple(_ROPE_FIELDS), default="default"))
    known = {"type", "rope_type", "rope_theta", "partial_rotary_factor"} | _ROPE_FIELDS[kind]
    foreign = sorted(name for name in section.values if name not in known and section.has(name))
    if foreign:
        raise ConfigError(
            f"{section.source} has {and_more(foreign)}, which RoPE of type {kind!r} doesn't use; "
            f"allowed: {', '.join(sorted(known))}."
        )
    if section.number("partial_rotary_factor", 0.0, 1.0, default=1.0) != 1.0:
        raise section.wrong("partial_rotary_factor", "1 or absent")
    theta = _same_in_both(fields, section, "rope_theta", 1e-3, 1e15)
    if theta is None:
        raise fields.missing("rope_theta", hint="It is written there, or as rope_theta inside rope_parameters.")
    if kind == "default":
        return RopeConfig(theta=theta)
    factor = section.number("factor", 1.0, 1e6)
    if kind == "linear":
        return RopeConfig(theta=theta, kind=kind, factor=factor)
    positions = _same_in_both(fields, section, "original_max_position_embeddings", 1, 1 << 31)
    original = int(positions or fields.integer("max_position_embeddings", 1, 1 << 31))
    if kind == "llama3":
        low = section.number("low_freq_factor", 1e-3, 1e6)
        high = section.number("high_freq_factor", 1e-3, 1e6)
        if high <= low:
            raise section.wrong("high_freq_factor", f"more than low_freq_factor, {low:g}")
        return RopeConfig(theta, kind, factor, original, low_freq_factor=low, high_freq_factor=high)
    fast, slow = section.number("beta_fast", 1e-3, 1e6, 32.0), section.number("beta_slow", 1e-3, 1e6, 1.0)
    if fast < slow:
        raise section.wrong("beta_fast", f"at least beta_slow, {slow:g}")
    mscale, all_dim = section.optional_number("mscale", 0, 1e6), section.optional_number("mscale_all_dim", 0, 1e6)
    both = bool(mscale and all_dim)  # one alone has no effect
    return RopeConfig(
        theta=theta,
        kind=kind,
        factor=factor,
        original_positions=original,
        attention_factor=section.optional_number("attention_factor", 1e-3, 1e6),
        beta_fast=fast,
        beta_slow=slow,
        mscale=mscale if both else None,
        mscale_all_dim=all_dim if both else None,
        truncate=section.boolean("truncate", True),
    )


def _same_in_both(fields: JsonFields, section: JsonFields, name: str, low: float, high: float) -> float | None:
    """A number that may stand in the section or beside it; in both only if it is the same."""
    inside, beside = section.optional_number(name, low, high), fields.optional_number(name, low, high)
    if inside is not None and beside is not None and inside != beside:
        raise section.wrong(name, f"the same as {name} outside, {beside:g}, or one of the two")
    return beside if inside is None else inside
