"""LoraConfig: what an adapter's `adapter_config.json` says, as PEFT writes it.

Owns the meaning of its fields and refuses what would change the arithmetic in a way that lora.py doesn't compute: an
unknown field that says something is an error, too. Knows nothing of tensors. Read by lora.py.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from kaishu.checkpoint.module_patterns import ModulePatterns
from kaishu.errors import CheckpointError
from kaishu.json_fields import JsonFields, shown

_MAX_RANK = 65_536
_MAX_NAMES = 10_000
_LAYER = re.compile(r"\.layers\.(\d+)\.")

# Fields that say how the adapter was trained or is kept, and nothing about the arithmetic once it is.
_WITHOUT_MEANING = (
    "peft_type",
    "auto_mapping",
    "peft_version",
    "base_model_name_or_path",
    "revision",
    "task_type",
    "inference_mode",
    "lora_dropout",
    "megatron_core",
    "loftq_config",
    "eva_config",
    "corda_config",
    "lora_ga_config",
    "runtime_config",
    "qalora_group_size",
)
_READ = (
    "r",
    "lora_alpha",
    "use_rslora",
    "rank_pattern",
    "alpha_pattern",
    "target_modules",
    "exclude_modules",
    "target_parameters",
    "layers_to_transform",
    "layers_pattern",
    "modules_to_save",
    "init_lora_weights",
    "ensure_weight_tying",
    "bias",
    "fan_in_fan_out",
)
_CONVERT = (
    "Save it anew in PEFT, with `save_pretrained(folder, path_initial_model_for_weight_conversion=…)`, or merge it "
    "there (`merge_and_unload`) and use the merged model."
)
_MERGE = "Merge it in PEFT (`merge_and_unload`, then `save_pretrained`) and use the merged model."
# How the adapter's own numbers were drawn; other ways changed the base's weights, too.
_HARMLESS_STARTS = (True, False, "gaussian", "eva", "orthogonal")
_EMPTY: Mapping[str, float] = MappingProxyType({})


@dataclass(frozen=True)
class LoraConfig:
    """Which modules of a model an adapter changes, and by how much.

    base:       the model that it was made for, by the name its maker gave it; may be empty
    targets:    names, or ends of names, of modules; None where the file alone says what is changed
    excluded:   likewise, of modules that are not
    parameters: ends of names of stacked experts
    layers:     the layers in which `targets` are; None for all
    replaced:   names of modules that are saved whole
    """

    base: str
    rank: int
    alpha: float
    is_rank_stabilised: bool
    ranks: ModulePatterns
    alphas: ModulePatterns
    targets: tuple[str, ...] | None
    excluded: tuple[str, ...]
    parameters: tuple[str, ...]
    layers: tuple[int, ...] | None
    replaced: tuple[str, ...]

    def rank_of(self, module: str) -> int:
        """r, the rank of what is added to a module."""
        found = self.ranks.value(module)
        return self.rank if found is None else int(found)

    def scale_of(self, module: str) -> float:
        """What B·A is multiplied with: alpha/r (Hu et al., 2021, arXiv:2106.09685), or alpha/√r where the rank is
        stabilised (Kalajdzievski, 2023, arXiv:2312.03732)."""
        found, rank = self.alphas.value(module), self.rank_of(module)
        alpha = self.alpha if found is None else found
        return alpha / (math.sqrt(rank) if self.is_rank_stabilised else rank)

    def is_target(self, module: str) -> bool:
        """Whether the adapter should have tensors for a module, as far as the config can tell."""
        if self.targets is None or _ends_with(module, self.excluded) or self.is_replaced(module):
            return False
        if module in self.targets:
            return True
        if not _ends_with(module, self.targets) or self.layers is None:
            return _ends_with(module, self.targets)
        layer = _LAYER.search(module)
        return layer is not None and int(layer[1]) in self.layers

    def is_replaced(self, module: str) -> bool:
        """Whether the adapter may have whole weights for this module, or for one that it is in."""
        return any(f".{name}." in f".{module}." for name in self.replaced)

    def is_parameter(self, name: str) -> bool:
        """Whether these stacked experts are changed."""
        return _ends_with(name, self.parameters)


def _ends_with(module: str, names: tuple[str, ...]) -> bool:
    return any(module == name or module.endswith(f".{name}") for name in names)


# Every linear module but the head; `gate` is the router, which newer versions of transformers don't count as one.
_ALL_LINEAR = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj", "gate")


def lora_config_from_json(values: Mapping[str, Any], source: str) -> LoraConfig:
    """Give a parsed adapter_config.json its meaning.

    source: what to call it in messages
    raises: CheckpointError, naming the field, what it says and what is allowed
    """
    fields = JsonFields(values, source, CheckpointError)
    fields.one_of("peft_type", ("LORA",))
    _refuse_what_is_not_merged(fields)
    targets = fields.values.get("target_modules")
    is_all_linear = isinstance(targets, str) and targets.lower() == "all-linear"
    excluded = fields.values.get("exclude_modules")
    parameters = _names(fields, "target_parameters")
    whole_parameters = tuple(name.removesuffix(".weight") for name in parameters if name.endswith(".weight"))
    names: tuple[str, ...] | None = _ALL_LINEAR
    if not is_all_linear:
        # Any other text is a regular expression, which may take forever to match. What it matched is in the file.
        names = None if isinstance(targets, str) else _names(fields, "target_modules") + whole_parameters
    if not names and not parameters:
        names = None
    if fields.boolean("ensure_weight_tying", False) and names and _ends_with("model.embed_tokens", names):
        names += ("lm_head",)  # which then has the embedding's change, transposed, in the file
    if isinstance(excluded, str):
        names = None
    ranks, alphas = (_numbers(fields, name) for name in ("rank_pattern", "alpha_pattern"))
    if not all(float(rank).is_integer() and 1 <= rank <= _MAX_RANK for rank in ranks.values()):
        raise fields.wrong("rank_pattern", f"whole numbers from 1 to {_MAX_RANK:,}")
    base = fields.values.get("base_model_name_or_path")
    return LoraConfig(
        base=base if isinstance(base, str) else "",
        rank=fields.integer("r", 1, _MAX_RANK),
        alpha=fields.number("lora_alpha", -1e9, 1e9, default=8.0),
        is_rank_stabilised=fields.boolean("use_rslora", False),
        ranks=ModulePatterns.from_mapping(f"{source}: rank_pattern", ranks),
        alphas=ModulePatterns.from_mapping(f"{source}: alpha_pattern", alphas),
        targets=names,
        excluded=() if isinstance(excluded, str) else _names(fields, "exclude_modules"),
        parameters=tuple(name for name in parameters if not name.endswith(".weight")),
        layers=_layers(fields),
        replaced=_names(fields, "modules_to_save"),
    )


def _refuse_what_is_not_merged(fields: JsonFields) -> None:
    if fields.boolean("fan_in_fan_out", False):
        raise fields.wrong("fan_in_fan_out", "false: these models keep a row for each output")
    fields.one_of("bias", ("none",), default="none")
    start = fields.values.get("init_lora_weights")
    if start is not None and start not in _HARMLESS_STARTS:
        allowed = "true, false, gaussian, eva or orthogonal: starts that leave the base's weights as they were"
        raise fields.wrong("init_lora_weights", allowed, hint=_CONVERT)
    for name, value in fields.values.items():
        says_nothing = value is None or value is False or value in ({}, [], "")
        if not says_nothing and name not in _READ and name not in _WITHOUT_MEANING:
            raise fields.wrong(name, "false, null or absent: only plain LoRA is merged at load", hint=_MERGE)


def _names(fields: JsonFields, name: str) -> tuple[str, ...]:
    """A list of names of modules; absent or null as none."""
    value = fields.values.get(name)
    entries = [] if value is None else value
    if not isinstance(entries, list) or not all(isinstance(entry, str) and entry for entry in entries):
        raise fields.wrong(name, "a list of names of modules")
    if len(entries) > _MAX_NAMES:
        raise CheckpointError(f"{fields.source}: {name} has {len(entries):,} names; allowed: {_MAX_NAMES:,}.")
    return tuple(dict.fromkeys(entries))


def _layers(fields: JsonFields) -> tuple[int, ...] | None:
    pattern = fields.values.get("layers_pattern")
    if pattern not in (None, [], "", "layers", ["layers"]):
        raise fields.wrong("layers_pattern", "layers, which is what these models call theirs, or absent")
    return fields.integers("layers_to_transform", 0, 10_000) or None


def _numbers(fields: JsonFields, name: str) -> Mapping[str, float]:
    section = fields.section(name)
    if section is None:
        return _EMPTY
    for key, value in section.values.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= 1e9:
            raise CheckpointError(f"{section.source}: {shown(key)} is {shown(value)}; allowed: a number up to 10^9.")
    return section.values
