"""A Checkpoint and a LoRA adapter's folder → a Checkpoint in which the adapter is merged.

Owns which of the adapter's tensors belongs to which of the model's, as PEFT names them, and that all are used or
named. What the config means is lora_config.py's, the arithmetic lora_tensors.py's. Called by loading.py after open.py,
once for each adapter, in the order in which they are given.

    base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight     A [r, K], and lora_B.weight, B [N, r]
    base_model.model.model.embed_tokens.lora_embedding_A               A [r, V], and lora_embedding_B, B [D, r]
    base_model.model.model.layers.0.mlp.experts.lora_A.weight          of stacked experts; `.base_layer` for the inner
    base_model.model.lm_head.weight                                    of modules_to_save, in place of the model's own
"""

from __future__ import annotations

import hashlib
import os
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from kaishu.checkpoint.lora_config import LoraConfig, lora_config_from_json
from kaishu.checkpoint.lora_tensors import Change, EmbeddingChange, ExpertChange, LinearChange, MergedTensor
from kaishu.checkpoint.names import EMBEDDING, FLOATS, HEAD
from kaishu.checkpoint.open import Checkpoint
from kaishu.checkpoint.quantised import QuantisedTensor
from kaishu.checkpoint.safetensors import StoredTensor, open_safetensors
from kaishu.checkpoint.shards import PICKLE_HINT, path_inside
from kaishu.config import ModelConfig, folder_contents
from kaishu.errors import CheckpointError, InvalidParameterError, ModelNotFoundError, and_more
from kaishu.json_fields import read_json_object, shown

ADAPTER_CONFIG = "adapter_config.json"
ADAPTER_WEIGHTS = "adapter_model.safetensors"
_FACTOR = re.compile(r"(.+)\.(?:(lora_[AB])(?:\.default)?\.weight|(lora_embedding_[AB])(?:\.default)?)")
_OPTIONAL = re.compile(r"\.mlp\.(experts\.\d+\.\w+|gate)$")  # see _check_targets
Tensor = StoredTensor | QuantisedTensor


@dataclass(frozen=True)
class _Adapter:
    """An adapter's file, sorted.

    factors:  module → "lora_A", "lora_B", "lora_embedding_A" or "lora_embedding_B" → the tensor
    replaced: the model's name of a tensor → what stands in its place
    """

    name: str
    config: LoraConfig
    factors: Mapping[str, Mapping[str, StoredTensor]]
    replaced: Mapping[str, StoredTensor]
    identity: str

    def error(self, message: str) -> CheckpointError:
        """What is wrong with it, and for which model it was made."""
        made_for = f" It says that it was made for {shown(self.config.base)}." if self.config.base else ""
        return CheckpointError(
            f"The adapter {self.name} {message}.",
            hint=f"An adapter fits only the model that it was trained on.{made_for}",
        )


def with_adapters(checkpoint: Checkpoint, lora: str | Path | Sequence[str | Path] | None) -> Checkpoint:
    """Merge one adapter after another.

    lora:   the folder of one, or several folders; None for none
    raises: InvalidParameterError for anything else; as with_adapter
    """
    folders = [] if lora is None else [lora] if isinstance(lora, str | Path) else lora
    if not isinstance(folders, list | tuple) or not all(isinstance(folder, str | Path) for folder in folders):
        raise InvalidParameterError("lora", lora, "an adapter's folder, or a list of such folders")
    for folder in folders:
        # Unlike Path's, this expanduser never fails.
        checkpoint = with_adapter(checkpoint, Path(os.path.expanduser(folder)))  # noqa: PTH111
    return checkpoint


def with_adapter(checkpoint: Checkpoint, folder: Path) -> Checkpoint:
    """Merge an adapter into a model, without reading any weight yet.

    What is computed is what was trained: an adapter of only the embedding of a model with a tied head leaves the head
    as it was, and so the model is no longer tied.

    folder: adapter_config.json beside adapter_model.safetensors, as PEFT's save_pretrained leaves them
    return: the model with MergedTensors where the adapter changes something, and an identity of its own
    raises: ModelNotFoundError if there is no adapter; CheckpointError naming the file, field or tensors that are wrong
    """
    adapter = _open(folder)
    tensors, config = dict(checkpoint.tensors), checkpoint.config
    changes = dict(_changes(adapter, config))
    touched = {*adapter.replaced, *(f"{module}.weight" for module in changes)}
    if config.tie_word_embeddings and touched & {EMBEDDING, HEAD}:
        config = replace(config, tie_word_embeddings=False)
        tensors[HEAD] = tensors[EMBEDDING]
    _check_names(adapter, touched, tensors)
    _check_targets(adapter, changes, tensors)
    _check_replaced(adapter, {*tensors, HEAD})
    for name, tensor in adapter.replaced.items():
        _check_shape(adapter, name, tensor.shape, tensors[name].shape)
        tensors[name] = replace(tensor, name=name)
    for module, change in changes.items():
        name = f"{module}.weight"
        _check_shape(adapter, name, change.shape, tensors[name].shape)
        tensors[name] = MergedTensor(name, tensors[name], change, adapter.config.scale_of(module))
    identity = hashlib.sha256(f"{checkpoint.identity}\n{adapter.identity}".encode()).hexdigest()
    return replace(checkpoint, config=config, tensors=tensors, identity=identity)


def _open(folder: Path) -> _Adapter:
    """raises: ModelNotFoundError, CheckpointError"""
    if not (folder / ADAPTER_CONFIG).exists():
        found = f"It holds: {folder_contents(folder)}." if folder.is_dir() else "It is no folder."
        raise ModelNotFoundError(
            f"{folder} has no {ADAPTER_CONFIG}, so it is no adapter. {found}",
            hint="An adapter is a folder that PEFT's `save_pretrained` has written, on this machine.",
        )
    path = path_inside(folder, ADAPTER_CONFIG)
    values = read_json_object(path, CheckpointError)
    config = lora_config_from_json(values, f"{folder.name}/{ADAPTER_CONFIG}")
    weights = path_inside(folder, ADAPTER_WEIGHTS)
    if not weights.exists() and (folder / "adapter_model.bin").exists():
        raise CheckpointError(f"{folder} has only pickled weights, adapter_model.bin.", hint=PICKLE_HINT)
    file = open_safetensors(weights)
    described = f"{sorted(values.items())!r}\n{weights.resolve()} {file.num_bytes} {file.modified_ns}"
    identity = f"{described} {file.header_digest}"
    return _sorted(_Adapter(folder.name, config, {}, {}, identity), file.tensors)


def _sorted(adapter: _Adapter, tensors: Mapping[str, StoredTensor]) -> _Adapter:
    """raises: CheckpointError naming tensors that are of no use, there twice, or of a type that weights haven't"""
    factors: defaultdict[str, dict[str, StoredTensor]] = defaultdict(dict)
    replaced: dict[str, StoredTensor] = {}
    useless, twice = list[str](), list[str]()
    for name, tensor in tensors.items():
        found = _FACTOR.fullmatch(name)
        if found:
            place, kind = factors[_standard(found[1])], found[2] or found[3]
            (twice if kind in place else []).append(name)
            place[kind] = tensor
            continue
        target = _standard(name.replace(".base_layer.", "."))
        if target not in (EMBEDDING, HEAD) and not adapter.config.is_replaced(target.rpartition(".")[0]):
            useless.append(name)
        (twice if target in replaced else []).append(name)
        replaced[target] = tensor
    if useless:
        raise adapter.error(f"has {len(useless):,} tensors that plain LoRA doesn't have: {and_more(sorted(useless))}")
    if twice:
        raise adapter.error(f"has {len(twice):,} tensors twice: {and_more(sorted(twice))}")
    foreign = [f"{name} ({tensor.dtype})" for name, tensor in tensors.items() if tensor.dtype not in FLOATS]
    if foreign:
        raise adapter.error(f"has tensors of a type that weights aren't read in: {and_more(foreign)}")
    return replace(adapter, factors=dict(factors), replaced=replaced)


def _standard(name: str) -> str:
    """A name in the whole language model; of a bare decoder's adapter, without `model.` in front, too."""
    bare = name.removeprefix("base_model.model.")
    return bare if bare.startswith(("model.", "lm_head.")) or bare == "lm_head" else f"model.{bare}"


def _changes(adapter: _Adapter, config: ModelConfig) -> Iterator[tuple[str, Change]]:
    """What is added to which module.

    raises: CheckpointError for a matrix without its other, or with another rank
    """
    for module, found in adapter.factors.items():
        kinds = set(found)
        change: type[LinearChange | EmbeddingChange]
        if kinds == {"lora_A", "lora_B"}:
            a, b, change = found["lora_A"], found["lora_B"], LinearChange
        elif kinds == {"lora_embedding_A", "lora_embedding_B"}:
            a, b, change = found["lora_embedding_A"], found["lora_embedding_B"], EmbeddingChange
        else:
            raise adapter.error(f"has {', '.join(sorted(kinds))} of {module}; allowed: an A with its B")
        if len(a.shape) != 2 or len(b.shape) != 2 or 0 in (*a.shape, *b.shape) or a.dtype != b.dtype:
            described = f"A {a.dtype} {list(a.shape)} and B {b.dtype} {list(b.shape)}"
            raise adapter.error(f"has {module} with {described}; allowed: two matrices of one type")
        if module.removesuffix(".base_layer").endswith(".mlp.experts"):
            yield from _expert_changes(adapter, config, module, a, b)
            continue
        _check_rank(adapter, module, a, b, 1)
        yield module, change(a, b)


def _expert_changes(
    adapter: _Adapter, config: ModelConfig, module: str, a: StoredTensor, b: StoredTensor
) -> Iterator[tuple[str, Change]]:
    """The changes of a layer's stacked experts: of `gate_up_proj` or of `down_proj`.

    Where both are changed, PEFT wraps the second around the first, which is then called `base_layer`.
    """
    experts = config.experts
    if experts is None:
        raise adapter.error(f"changes {module}, but the model has no experts")
    stack = module.removesuffix(".base_layer")
    stacked = [part for part in ("gate_up_proj", "down_proj") if adapter.config.is_parameter(f"{stack}.{part}")]
    if len(stacked) != (2 if f"{stack}.base_layer" in adapter.factors else 1):
        said = ", ".join(adapter.config.parameters) or "nothing"
        raise adapter.error(f"changes {module}, but its target_parameters name {said}")
    kind = stacked[0] if module != stack else stacked[-1]
    count, inner = experts.num_experts, experts.moe_intermediate_size
    _check_rank(adapter, f"{stack}.{kind}", a, b, count)
    pieces = {"gate_proj": (0, inner), "up_proj": (inner, inner)}
    if kind == "down_proj":
        pieces = {"down_proj": (0, config.hidden_size)}
    outputs = sum(rows for _, rows in pieces.values())
    inputs = inner if kind == "down_proj" else config.hidden_size
    found = b.shape[0], a.shape[1]
    is_transposed = found == (inputs, outputs) and inputs != outputs
    if not is_transposed:
        _check_shape(adapter, f"{stack}.{kind}", found, (outputs, inputs))
    for expert in range(count):
        for piece, (first, rows) in pieces.items():
            yield f"{stack}.{expert}.{piece}", ExpertChange(a, b, expert, count, first, rows, is_transposed)


def _check_rank(adapter: _Adapter, module: str, a: StoredTensor, b: StoredTensor, copies: int) -> None:
    rank = adapter.config.rank_of(module)
    if a.shape[0] != rank * copies or b.shape[1] != rank * copies:
        raise adapter.error(
            f"has {module} with A {list(a.shape)} and B {list(b.shape)}, but its config gives them rank {rank:,}"
            + (f" for each of {copies:,} experts" if copies > 1 else "")
        )


def _check_names(adapter: _Adapter, touched: set[str], tensors: Mapping[str, Tensor]) -> None:
    absent = sorted(name for name in touched if name not in tensors)
    if absent:
        raise adapter.error(f"changes {len(absent):,} tensors that the model doesn't have: {and_more(absent)}")


def _check_shape(adapter: _Adapter, name: str, found: tuple[int, ...], needed: tuple[int, ...]) -> None:
    if found != needed:
        raise adapter.error(f"changes {name} as {list(found)}, but the model's is {list(needed)}")


def _check_replaced(adapter: _Adapter, names: set[str]) -> None:
    """What the config says is saved whole, is: else the model's own weights would silently stand in its place."""
    wanted = {name for name in names if adapter.config.is_replaced(name.rpartition(".")[0])}
    missing = sorted(wanted - set(adapter.replaced))
    if missing:
        raise adapter.error(
            f"has no tensors for {len(missing):,} that its config says are saved (modules_to_save): {and_more(missing)}"
        )


def _check_targets(adapter: _Adapter, changes: Mapping[str, Change], tensors: Mapping[str, Tensor]) -> None:
    """Where the config lists its targets: they are in the file, and nothing else is.

    Experts and routers may be missing, because for newer versions of transformers they are no linear modules, and
    `target_modules` doesn't reach them.
    """
    if adapter.config.targets is None:
        return
    matrices = [name.removesuffix(".weight") for name, tensor in tensors.items() if len(tensor.shape) == 2]
    targets = {module for module in matrices if adapter.config.is_target(module)}
    missing = sorted(module for module in targets - set(changes) if not _OPTIONAL.search(module))
    if missing:
        raise adapter.error(f"has no tensors for {len(missing):,} modules that its config targets: {and_more(missing)}")
    stacked = {name for name, change in changes.items() if isinstance(change, ExpertChange)}
    surplus = sorted(set(changes) - targets - stacked)
    if surplus:
        raise adapter.error(f"changes {len(surplus):,} modules that its config doesn't target: {and_more(surplus)}")
