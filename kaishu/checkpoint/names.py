"""Which tensors a model needs, what each is for and why it has its shape; complete, or refused.

Owns the Hugging Face names of a decoder's weights and the short list of names that may be left over. Knows nothing of
files. Its input is a ModelConfig and the tensors found; open.py makes a Checkpoint of the answer, and `kaishu inspect`
shows the meanings. D hidden size, F feed-forward size, E experts, V vocabulary, as everywhere.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from kaishu.checkpoint.quantised import QuantisedTensor
from kaishu.checkpoint.safetensors import StoredTensor
from kaishu.config import ModelConfig
from kaishu.errors import CheckpointError, and_more

EMBEDDING = "model.embed_tokens.weight"
HEAD = "lm_head.weight"
FLOATS = ("F32", "F16", "BF16")
_MAX_EXPERTS = 65_536
_MAX_NEEDED = 100_000  # the largest honest models need 50,000; bounds what a hostile config can cost

# Names that older exporters wrote although they can be computed from the config; nothing is lost without them.
HARMLESS = re.compile(r"(^|\.)(rotary_emb\.(inv_freq|cos_cached|sin_cached)|masked_bias)$")
_PARTIAL_QUANTIZED = re.compile(r"\.(qweight|qzeros|scales|g_idx|weight_scale(_inv)?|weight_packed|SCB|absmax)$")


@dataclass(frozen=True)
class NeededTensor:
    """A tensor that the model can't do without."""

    name: str
    shape: tuple[int, ...]
    meaning: str  # one line: what it is, and why it has this shape


def needed_tensors(config: ModelConfig) -> dict[str, NeededTensor]:
    """All tensors of a model, by name, in the order in which a token meets them."""
    c = config
    needed = [
        NeededTensor(
            EMBEDDING,
            (c.vocab_size, c.hidden_size),
            f"a row of D = {c.hidden_size:,} for each of V = {c.vocab_size:,} tokens: what it means before any context"
            + ("; also the output head (tied)" if c.tie_word_embeddings else ""),
        )
    ]
    for layer in range(c.num_hidden_layers):
        needed += _layer(c, layer)
    needed.append(_norm("model.norm", c.hidden_size, "before the head, after the last layer"))
    if not c.tie_word_embeddings:
        meaning = f"the output head: a score for each of V = {c.vocab_size:,} tokens, from D = {c.hidden_size:,}"
        needed.append(NeededTensor(HEAD, (c.vocab_size, c.hidden_size), meaning))
    return {tensor.name: tensor for tensor in needed}


def _norm(name: str, size: int, where: str) -> NeededTensor:
    return NeededTensor(f"{name}.weight", (size,), f"RMSNorm {where}: one learned scale for each of {size:,} numbers")


def _linear(name: str, outputs: int, inputs: int, meaning: str, *, bias: bool) -> Iterator[NeededTensor]:
    """A linear layer as PyTorch stores it: a row for each output."""
    yield NeededTensor(f"{name}.weight", (outputs, inputs), meaning)
    if bias:
        what = name.rpartition(".")[2]
        yield NeededTensor(f"{name}.bias", (outputs,), f"added to what {what} yields, one number an output")


def _layer(c: ModelConfig, layer: int) -> Iterator[NeededTensor]:
    prefix, attention = f"model.layers.{layer}", f"model.layers.{layer}.self_attn"
    from_hidden = f"from D = {c.hidden_size:,}"
    heads = f"{c.num_attention_heads} heads × {c.head_dim}"
    kv_heads = f"{c.num_key_value_heads} heads × {c.head_dim}"
    shared = f"each shared by {c.queries_per_key} query heads"
    yield _norm(f"{prefix}.input_layernorm", c.hidden_size, "before attention")
    queries, keys, values = (
        f"queries: {heads}, {from_hidden}",
        f"keys: {kv_heads}, {shared}",
        f"values: {kv_heads}, {shared}",
    )
    yield from _linear(f"{attention}.q_proj", c.query_size, c.hidden_size, queries, bias=c.attention_bias)
    yield from _linear(f"{attention}.k_proj", c.key_value_size, c.hidden_size, keys, bias=c.attention_bias)
    yield from _linear(f"{attention}.v_proj", c.key_value_size, c.hidden_size, values, bias=c.attention_bias)
    if c.qk_norm:
        yield _norm(f"{attention}.q_norm", c.head_dim, "of each query head, before RoPE; all heads share it")
        yield _norm(f"{attention}.k_norm", c.head_dim, "of each key head, before RoPE; all heads share it")
    back = f"back to D = {c.hidden_size:,}, from {heads}"
    yield from _linear(f"{attention}.o_proj", c.hidden_size, c.query_size, back, bias=c.output_bias)
    yield _norm(f"{prefix}.post_attention_layernorm", c.hidden_size, "before the feed-forward network")
    if c.experts is None or not c.is_sparse(layer):
        yield from _feed_forward(f"{prefix}.mlp", c.hidden_size, c.intermediate_size, "", bias=c.mlp_bias)
        return
    e = c.experts
    router = f"the router: a score for each of E = {e.num_experts} experts; the best {e.num_experts_per_tok} run"
    yield NeededTensor(f"{prefix}.mlp.gate.weight", (e.num_experts, c.hidden_size), router)
    for expert in range(e.num_experts):
        name, whose = f"{prefix}.mlp.experts.{expert}", f"expert {expert}, "
        yield from _feed_forward(name, c.hidden_size, e.moe_intermediate_size, whose, bias=False)


def _feed_forward(name: str, hidden: int, inner: int, whose: str, *, bias: bool) -> Iterator[NeededTensor]:
    gate = f"{whose}SwiGLU's gate: F = {inner:,} switches, from D = {hidden:,}"
    up = f"{whose}SwiGLU's values: F = {inner:,}, from D = {hidden:,}, multiplied by silu(gate)"
    yield from _linear(f"{name}.gate_proj", inner, hidden, gate, bias=bias)
    yield from _linear(f"{name}.up_proj", inner, hidden, up, bias=bias)
    down = f"{whose}back to D = {hidden:,}, from F = {inner:,}"
    yield from _linear(f"{name}.down_proj", hidden, inner, down, bias=bias)


def standard_names(tensors: Mapping[str, StoredTensor]) -> dict[str, StoredTensor]:
    """Give tensors the names of a whole language model, however they were saved.

    A bare decoder (as embedding models are saved) has no `model.` in front. Experts may be stacked into
    `experts.gate_up_proj` [E, 2F, D] and `experts.down_proj` [E, D, F]; each expert becomes a part of the stack.
    """
    named = dict(tensors)
    if EMBEDDING not in named and EMBEDDING.removeprefix("model.") in named:
        named = {name if name == HEAD else f"model.{name}": tensor for name, tensor in named.items()}
    for name in [n for n in named if n.endswith((".mlp.experts.gate_up_proj", ".mlp.experts.down_proj"))]:
        stack = named[name]
        if len(stack.shape) != 3 or stack.shape[0] > _MAX_EXPERTS:
            raise CheckpointError(f"{name} has shape {list(stack.shape)}; allowed: [experts, outputs, inputs].")
        del named[name]
        prefix, _, kind = name.rpartition(".")
        num_experts, rows, _ = stack.shape
        pieces = {"down_proj": (0, rows)}
        if kind == "gate_up_proj":
            pieces = {"gate_proj": (0, rows // 2), "up_proj": (rows // 2, rows)}
        for expert in range(num_experts):
            for piece, (start, stop) in pieces.items():
                part = f"{prefix}.{expert}.{piece}.weight"
                if part in named:
                    raise CheckpointError(f"{part} is stored twice: alone and as a part of {name}; allowed: once.")
                named[part] = stack.part(part, expert, start, stop)
    return {name: tensor if tensor.name == name else replace(tensor, name=name) for name, tensor in named.items()}


def select(
    config: ModelConfig, found: Mapping[str, StoredTensor | QuantisedTensor], *, source: str = "config.json"
) -> dict[str, StoredTensor | QuantisedTensor]:
    """Pick exactly the needed tensors out of what was found.

    config: the model; with an untied head when the checkpoint stores one of its own
    found:  tensors under standard names
    source: what messages call the place that the config is from
    return: the needed tensors, in the order of needed_tensors; quantised ones only where they are matrices
    raises: CheckpointError naming the tensors that are missing, unused, of the wrong shape or of a type for no weights
    """
    _check_count(config, source)
    needed = needed_tensors(config)
    missing = [name for name in needed if name not in found]
    unused = [name for name in found if name not in needed and not HARMLESS.search(name)]
    if missing or unused:
        raise _incomplete(config, missing, unused, source)
    wrong = [
        f"{name}{_place(found[name])} is {list(found[name].shape)}, not {list(tensor.shape)} ({tensor.meaning})"
        for name, tensor in needed.items()
        if found[name].shape != tensor.shape
    ]
    if wrong:
        raise CheckpointError(
            f"{len(wrong):,} tensors don't have the shape that {source} gives them: {and_more(wrong, shown=3)}.",
            hint=f"{source} and the weights are of different models or versions.",
        )
    foreign = [
        f"{name} ({found[name].dtype})"
        for name, tensor in needed.items()
        if found[name].dtype not in FLOATS and (len(tensor.shape) != 2 or isinstance(found[name], StoredTensor))
    ]
    if foreign:
        raise CheckpointError(
            f"{len(foreign):,} tensors have a type that they aren't read in: {and_more(foreign)}; "
            f"allowed: {', '.join(FLOATS)}, and for matrices quantised formats."
        )
    return {name: found[name] for name in needed}


def _check_count(config: ModelConfig, source: str) -> None:
    """Refuse a config that describes more tensors than any model has, before they are listed."""
    e = config.experts
    about = 10 * config.num_hidden_layers + (3 * e.num_experts * len(e.sparse_layers) if e else 0)
    if about > _MAX_NEEDED:
        what = f"{config.num_hidden_layers:,} layers" + (f" of {e.num_experts:,} experts" if e else "")
        raise CheckpointError(f"{source} describes {what}, some {about:,} tensors; allowed: {_MAX_NEEDED:,}.")


def _place(tensor: StoredTensor | QuantisedTensor) -> str:
    return f" in {tensor.file.name}" if isinstance(tensor, StoredTensor) else f" ({tensor.dtype})"


def _incomplete(config: ModelConfig, missing: list[str], unused: list[str], source: str) -> CheckpointError:
    said = []
    if missing:
        said.append(f"lack {len(missing):,} tensors that {config.model_type} needs: {and_more(missing)}")
    if unused:
        said.append(f"have {len(unused):,} tensors that {config.model_type} doesn't use: {and_more(unused)}")
    hint = f"{source} and the weights don't belong together, or the weights are of a kind that isn't read yet."
    if missing == [HEAD]:
        hint = "config.json says tie_word_embeddings is false, so the output head must be stored."
    elif any(_PARTIAL_QUANTIZED.search(name) for name in unused):
        hint = (
            f"These are parts of quantised weights, but {source} has no quantization_config that tells how to read "
            "them, or one for another method: use the config.json that came with the weights."
        )
    return CheckpointError(f"The weights {'; they '.join(said)}.", hint=hint)
