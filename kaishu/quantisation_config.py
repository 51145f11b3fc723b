"""What `quantization_config` says of weights: which method, how many bits, how many weights share a scale.

Owns the fields of AWQ, GPTQ, FP8 and compressed-tensors that change what the numbers in a file mean. Refuses what isn't
read, by name, and says in a note what may be left out because it isn't about weights. Which modules are quantised is
not its business (`modules_to_not_convert`, `ignore`, `modules_in_block_to_quantize`): the tensors themselves tell.
Read by config.py; checkpoint/quantised_huggingface.py acts on it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, cast

from kaishu.json_fields import JsonFields

Method = Literal["awq", "gptq", "fp8", "compressed-tensors"]
METHODS: tuple[Method, ...] = ("awq", "gptq", "fp8", "compressed-tensors")
WHOLE_ROW = -1
_BITS = (4, 8)
_COMPRESSED_FORMATS = ("pack-quantized", "int-quantized", "float-quantized", "naive-quantized")
_PLAIN_HINT = "Use the plain model (the name without -GPTQ, -AWQ or -FP8), or a GGUF of it."


@dataclass(frozen=True)
class QuantisationConfig:
    """How the quantised weights of a checkpoint are to be read.

    bits:             the sizes of whole numbers that occur; (8,) for FP8
    group_sizes:      how many weights along K may share a scale; WHOLE_ROW stands for all of a row
    zeros_less_one:   whether zeros are stored as zero - 1, as in the first GPTQ format
    is_act_ordered:   whether groups are of inputs that needn't lie side by side, so that each weight's group is stored
    needs_zeros:      whether every weight has zeros beside it; where they are missing, they aren't known to be 0
    block:            how many outputs and inputs share a scale, where scales are of blocks
    notes:            what the file asks for beyond weights, and what becomes of it; one sentence each
    """

    method: Method
    bits: tuple[int, ...]
    group_sizes: tuple[int, ...] = ()
    zeros_less_one: bool = False
    is_act_ordered: bool = False
    needs_zeros: bool = False
    block: tuple[int, int] | None = None
    notes: tuple[str, ...] = ()


def quantisation_from_json(config: JsonFields) -> QuantisationConfig | None:
    """Give `quantization_config` (`compression_config`, in old files) its meaning.

    config: config.json
    return: None where weights are plain
    raises: ConfigError naming a method or a variant that isn't read, and what is
    """
    fields = config.section("quantization_config") or config.section("compression_config")
    if fields is None:
        return None
    other = config.section("compression_config")
    if other is not None and other.values != fields.values:
        raise config.wrong("compression_config", "absent, or the same as quantization_config")
    method = fields.values.get("quant_method")
    if method not in METHODS:
        raise fields.wrong("quant_method", ", ".join(METHODS), hint=_PLAIN_HINT)
    readers = {"awq": _awq, "gptq": _gptq, "fp8": _fp8, "compressed-tensors": _compressed}
    return readers[cast(Method, method)](fields)


def _awq(fields: JsonFields) -> QuantisationConfig:
    _one_of(fields, "bits", (4,))
    for name in ("version", "format", "checkpoint_format"):
        _word(fields, name, ("gemm",))
    if fields.values.get("backend") == "llm-awq":
        raise fields.wrong(
            "backend", "autoawq or another of those whose tensors have the form `gemm`", hint=_PLAIN_HINT
        )
    if not fields.boolean("zero_point", True):
        raise fields.wrong("zero_point", "true", hint=_PLAIN_HINT)
    return QuantisationConfig("awq", (4,), (_group_size(fields),))


def _gptq(fields: JsonFields) -> QuantisationConfig:
    bits, sizes = [_one_of(fields, "bits", _BITS)], [_group_size(fields)]
    forms = {_word(fields, name, ("gptq", "gptq_v2")) for name in ("checkpoint_format", "format")} - {None}
    if len(forms) > 1:
        raise fields.wrong("format", "the same as checkpoint_format")
    if fields.boolean("is_marlin_format", False):
        raise fields.wrong("is_marlin_format", "false", hint=_PLAIN_HINT)
    _word(fields, "pack_dtype", ("int32",))
    _only_absent(fields, "adapter", "rotation")
    fields.boolean("sym", True)
    overrides = fields.section("dynamic")
    for pattern in overrides.values if overrides else ():
        override = None if pattern.startswith("-:") else overrides.section(pattern) if overrides else None
        if override is not None:
            bits += [_one_of(override, "bits", _BITS)] if override.has("bits") else []
            sizes += [_group_size(override)] if override.has("group_size") else []
    return QuantisationConfig(
        "gptq",
        tuple(dict.fromkeys(bits)),
        tuple(dict.fromkeys(sizes)),
        zeros_less_one="gptq_v2" not in forms,
        is_act_ordered=fields.boolean("desc_act", False),
    )


def _fp8(fields: JsonFields) -> QuantisationConfig:
    _word(fields, "fmt", ("e4m3", "float8_e4m3fn"))
    _word(fields, "scale_fmt", ("float", "ue8m0"))
    _word(fields, "expert_dtype", ("fp8",))
    scheme = _word(fields, "activation_scheme", ("dynamic", "static")) or "dynamic"
    return QuantisationConfig(
        "fp8", (8,), block=_block(fields, "weight_block_size"), notes=(_activations_note(f"{scheme} FP8"),)
    )


def _compressed(fields: JsonFields) -> QuantisationConfig:
    form = _word(fields, "format", (*_COMPRESSED_FORMATS, "mixed-precision"))
    groups = fields.section("config_groups")
    if groups is None:
        raise fields.missing("config_groups")
    sparsity, transform = fields.section("sparsity_config"), fields.section("transform_config")
    if sparsity is not None:
        _word(sparsity, "format", ("dense",))
    if transform is not None and transform.section("config_groups") is not None:
        raise transform.wrong("config_groups", "absent or empty", hint=_PLAIN_HINT)
    bits, sizes, blocks, activations, are_symmetric = [], [], [], [], []
    for name in groups.values:
        group = groups.section(name)
        weights = group.section("weights") if group is not None else None
        if group is None or weights is None:
            raise groups.wrong(name, "an object that says how its weights are quantised")
        if _word(group, "format", _COMPRESSED_FORMATS) is None and form in (None, "mixed-precision"):
            raise group.missing("format", hint="It may stand beside config_groups, too, if it is the same for all.")
        kind = weights.one_of("type", ("int", "float"), "int")
        bits.append(_one_of(weights, "num_bits", _BITS if kind == "int" else (8,)))
        are_symmetric.append(weights.boolean("symmetric", True) or kind == "float")
        strategies = ("tensor", "channel", "group") if kind == "int" else ("tensor", "channel", "group", "block")
        strategy = weights.one_of("strategy", strategies)
        sizes.append(_group_size(weights) if strategy == "group" else WHOLE_ROW)
        blocks += [_block(weights, "block_structure", required=True)] if strategy == "block" else []
        inputs = group.section("input_activations")
        activations += [f"{inputs.values.get('num_bits')}-bit {inputs.values.get('type', 'int')}"] if inputs else []
    if len(set(blocks)) > 1:
        raise fields.wrong("config_groups", "one block_structure for all groups")
    notes = [_activations_note(what) for what in dict.fromkeys(activations)]
    if fields.section("kv_cache_scheme") is not None:
        notes.append("config.json also asks for quantised keys and values; how these are kept is chosen by `kv`.")
    return QuantisationConfig(
        "compressed-tensors",
        tuple(dict.fromkeys(bits)),
        tuple(dict.fromkeys(sizes)),
        needs_zeros=not any(are_symmetric),
        block=blocks[0] if blocks else None,
        notes=tuple(notes),
    )


def _activations_note(what: str) -> str:
    return (
        f"config.json asks for activations in {what} too; only the weights are read that way, and activations are "
        "computed as for any other model."
    )


def _one_of(fields: JsonFields, name: str, allowed: tuple[int, ...]) -> int:
    value = fields.integer(name, 1, 64)
    if value not in allowed:
        raise fields.wrong(name, " or ".join(map(str, allowed)), hint=_PLAIN_HINT)
    return value


def _word(fields: JsonFields, name: str, allowed: tuple[str, ...]) -> str | None:
    """One of a few words, in any case; None where the field is absent or null."""
    value = fields.values.get(name)
    if value is None:
        return None
    if not isinstance(value, str) or value.lower() not in allowed:
        raise fields.wrong(name, f"{', '.join(allowed)}, or absent", hint=_PLAIN_HINT)
    return value.lower()


def _only_absent(fields: JsonFields, *names: str) -> None:
    for name in names:
        if fields.has(name):
            raise fields.wrong(name, "absent or null", hint=_PLAIN_HINT)


def _group_size(fields: JsonFields) -> int:
    size = fields.integer("group_size", WHOLE_ROW, 1 << 24)
    if size == 0:
        raise fields.wrong("group_size", "-1 (a whole row), or a number of weights")
    return size


def _block(fields: JsonFields, name: str, *, required: bool = False) -> tuple[int, int] | None:
    sizes = fields.integers(name, 1, 1 << 24)
    if len(sizes) != 2 and (required or fields.has(name)):
        raise fields.wrong(name, "two sizes, [outputs, inputs]")
    return (sizes[0], sizes[1]) if sizes else None
