"""How a GGUF says which RoPE its model has, in config.json's words.

Owns the keys under `rope.` and the one thing that has no key: llama3's stretching is stored as what it comes to, a
divisor for each frequency, and is turned back into the four numbers that it was made from. Knows nothing of tensors'
places. Called by gguf_model.py; what it returns is read and checked by rope_config.py.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kaishu.errors import ConfigError, and_more, shown
from kaishu.json_fields import JsonFields

_KINDS = ("none", "linear", "yarn")
_READ = {
    *{"type", "factor", "original_context_length", "finetuned", "attn_factor"},
    *{"yarn_attn_factor", "yarn_ext_factor", "yarn_log_multiplier", "yarn_beta_fast", "yarn_beta_slow"},
}
_LLAMA3_POSITIONS = 8192  # of all Llama 3.1, 3.2 and 3.3
_LOW, _HIGH = 1.0, 4.0  # llama3's low_freq_factor and high_freq_factor, likewise
_TOLERANCE = 1e-4  # relative, of divisors that were computed and stored as float32


def rope_json(fields: JsonFields, arch: str, head_dim: int, divisors: NDArray[np.float32] | None) -> dict[str, Any]:
    """The fields of a config.json that say the same.

    fields:   the metadata
    arch:     what their keys begin with
    divisors: [d/2] float32, the tensor rope_freqs.weight; None where there is none
    return:   rope_theta, and rope_scaling where the context was stretched
    raises:   ConfigError for a stretching that isn't run
    """
    prefix = f"{arch}.rope"
    if fields.integer(f"{prefix}.dimension_count", 1, 1 << 20, default=head_dim) != head_dim:
        raise fields.wrong(f"{prefix}.dimension_count", f"{head_dim}, the whole head, or absent")
    theta = fields.optional_number(f"{prefix}.freq_base", 1e-3, 1e15)
    if theta is None:
        raise fields.missing(f"{prefix}.freq_base", hint="Convert the model anew: without it positions mean nothing.")
    scaling = _scaling(fields, prefix)
    if divisors is not None and not np.all(divisors == 1.0):
        if scaling is not None:
            raise fields.wrong(f"{prefix}.scaling.type", "none or absent, as there is a tensor rope_freqs.weight")
        original = fields.optional_integer(f"{prefix}.scaling.original_context_length", 1, 1 << 31)
        scaling = llama3_json(divisors, theta, head_dim, original)
    return {"rope_theta": theta} | ({} if scaling is None else {"rope_scaling": scaling})


def _scaling(fields: JsonFields, prefix: str) -> dict[str, Any] | None:
    prefix = f"{prefix}.scaling."
    foreign = [key for key in fields.values if key.startswith(prefix) and key.removeprefix(prefix) not in _READ]
    if foreign:
        raise ConfigError(f"{fields.source} has {and_more(foreign)}, which isn't run.")
    factor = fields.optional_number(f"{prefix}factor", 0.0, 1e6) or 1.0  # 0 is an older way to say none
    # llama.cpp takes a factor without a type for a linear one.
    kind = fields.one_of(f"{prefix}type", _KINDS, default="linear" if factor != 1.0 else "none")
    if kind == "none" or (kind == "linear" and factor == 1.0):
        return None
    if kind == "linear":
        return {"rope_type": "linear", "factor": factor}
    for key in ("attn_factor", "yarn_attn_factor", "yarn_ext_factor"):
        if fields.number(f"{prefix}{key}", -1e6, 1e6, default=1.0) != 1.0:
            raise fields.wrong(f"{prefix}{key}", "1 or absent")
    if fields.number(f"{prefix}yarn_log_multiplier", -1e6, 1e6, default=0.0) != 0.0:
        raise fields.wrong(f"{prefix}yarn_log_multiplier", "0 or absent")
    said: dict[str, Any] = {
        "original_max_position_embeddings": fields.optional_integer(f"{prefix}original_context_length", 1, 1 << 31),
        "beta_fast": fields.optional_number(f"{prefix}yarn_beta_fast", 1e-3, 1e6),
        "beta_slow": fields.optional_number(f"{prefix}yarn_beta_slow", 1e-3, 1e6),
    }
    return {"rope_type": "yarn", "factor": factor} | {key: value for key, value in said.items() if value is not None}


def llama3_json(divisors: NDArray[np.float32], theta: float, head_dim: int, original: int | None) -> dict[str, Any]:
    """Find the llama3 stretching that divides each frequency by what is stored.

    Long waves are divided by the factor, short ones by nothing, and those between by a mixture that depends on how
    often the wave fits the original context. One wave of the mixture tells that context, if Llama's own two bounds
    hold; with none, every context that sorts the waves the same way is the same model.

    divisors: [d/2] float32
    original: the original context length, where it is known
    return:   rope_scaling, which gives these divisors to within float32's rounding
    raises:   ConfigError where there is none
    """
    if divisors.shape != (head_dim // 2,) or not np.isfinite(divisors).all():
        raise ConfigError(
            f"rope_freqs.weight has shape {list(divisors.shape)} or isn't finite; allowed: {head_dim // 2} numbers."
        )
    waves = 2 * math.pi * theta ** (np.arange(0, head_dim, 2, dtype=np.float64) / head_dim)  # [d/2]
    wanted = divisors.astype(np.float64)
    factor = float(wanted.max())
    if abs(factor - round(factor)) < _TOLERANCE * factor:
        factor = float(round(factor))
    candidates = _candidates(wanted, waves, factor, original) if wanted.min() > 1.0 - _TOLERANCE else ()
    for positions in candidates:
        if np.allclose(_llama3_divisors(waves, factor, positions), wanted, rtol=_TOLERANCE, atol=0.0):
            return {
                "rope_type": "llama3",
                "factor": factor,
                "original_max_position_embeddings": positions,
                "low_freq_factor": _LOW,
                "high_freq_factor": _HIGH,
            }
    raise ConfigError(
        f"rope_freqs.weight divides the frequencies by {shown(wanted.round(4).tolist())}; allowed: what llama3's "
        f"stretching divides them by, with low_freq_factor {_LOW:g} and high_freq_factor {_HIGH:g}.",
        hint="Use the model's safetensors folder, whose config.json says how its context was stretched.",
    )


def _candidates(
    wanted: NDArray[np.float64], waves: NDArray[np.float64], factor: float, original: int | None
) -> Iterator[int]:
    yield from (positions for positions in (original, _LLAMA3_POSITIONS) if positions is not None)
    if factor <= 1.0:
        return
    mixed = (wanted > 1.0 + _TOLERANCE) & (wanted < factor * (1.0 - _TOLERANCE))
    # 1 / divisor = (1 - smooth) / factor + smooth, and smooth = (positions / wave - low) / (high - low)
    smooth = (1.0 / wanted[mixed] - 1.0 / factor) / (1.0 - 1.0 / factor)
    fitted = waves[mixed] * (smooth * (_HIGH - _LOW) + _LOW)
    yield from (round(float(positions)) for positions in fitted if 1.0 <= positions <= 1 << 31)
    undivided = waves[wanted <= 1.0 + _TOLERANCE]
    if undivided.size:  # no wave between: any context of which the longest undivided wave is a quarter or less
        yield math.ceil(_HIGH * float(undivided.max())) + 1


def _llama3_divisors(waves: NDArray[np.float64], factor: float, positions: int) -> NDArray[np.float64]:
    """What llama3's stretching divides each frequency by, given the lengths of their waves in tokens."""
    smooth = np.clip((positions / waves - _LOW) / (_HIGH - _LOW), 0.0, 1.0)
    divisors: NDArray[np.float64] = 1.0 / ((1.0 - smooth) / factor + smooth)
    return divisors
