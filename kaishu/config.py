"""ModelConfig: what a checkpoint says about itself.

Owns the meaning of `config.json` and `generation_config.json` in their old and new spellings, for the families that
are one model with different fields: qwen3, qwen3_moe, qwen2, llama. Refuses to guess: a field that changes the
arithmetic and that we don't implement is an error, never ignored. Knows nothing of tensors or devices.
Read by checkpoint/ when a model is opened; used by reference/ and cpu/ to build the same model.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

from kaishu.errors import ConfigError, and_more
from kaishu.json_fields import JsonFields, read_json_object
from kaishu.quantisation_config import QuantisationConfig, quantisation_from_json
from kaishu.rope_config import RopeConfig, rope_from_json

__all__ = ["ExpertsConfig", "GenerationDefaults", "ModelConfig", "RopeConfig", "config_from_json", "folder_contents"]


@dataclass(frozen=True)
class ExpertsConfig:
    """A mixture of experts in place of the feed-forward network, in the layers in `sparse_layers`."""

    num_experts: int
    num_experts_per_tok: int
    moe_intermediate_size: int
    norm_topk_prob: bool
    sparse_layers: tuple[int, ...]


@dataclass(frozen=True)
class GenerationDefaults:
    """What the model's authors recommend for sampling; None where they say nothing."""

    temperature: float | None = None  # 0.0 where the file says do_sample: false
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None


@dataclass(frozen=True)
class ModelConfig:
    """The shape of a decoder and the few switches that tell its families apart. Names are Hugging Face's."""

    model_type: Literal["qwen3", "qwen3_moe", "qwen2", "llama"]
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    max_position_embeddings: int
    rms_norm_eps: float
    rope: RopeConfig
    qk_norm: bool  # RMSNorm over each head of q and k, before RoPE (Qwen3)
    attention_bias: bool  # on q_proj, k_proj, v_proj
    output_bias: bool  # on o_proj
    mlp_bias: bool  # on gate_proj, up_proj, down_proj
    tie_word_embeddings: bool
    dtype: Literal["float32", "float16", "bfloat16"]
    eos_token_ids: tuple[int, ...]
    bos_token_id: int | None = None
    pad_token_id: int | None = None
    experts: ExpertsConfig | None = None
    sliding_windows: tuple[int | None, ...] = ()  # per layer: how many keys a query sees, itself included; None: all
    generation: GenerationDefaults = GenerationDefaults()
    quantisation: QuantisationConfig | None = None  # how weights are stored; the shape of the model is the same without

    @classmethod
    def from_folder(cls, folder: Path) -> ModelConfig:
        """Read `config.json` and, where there is one, `generation_config.json`.

        folder: a Hugging Face model folder
        raises: ConfigError, naming the file, the field, what it says and what is allowed
        """
        path = folder / "config.json"
        if not path.is_file():
            raise ConfigError(
                f"{folder} has no config.json. It holds: {folder_contents(folder)}.", hint=_NO_CONFIG_HINT
            )
        generation = folder / "generation_config.json"
        return config_from_json(
            read_json_object(path, ConfigError),
            read_json_object(generation, ConfigError) if generation.is_file() else None,
        )

    @property
    def query_size(self) -> int:
        """H·d, the width of all query heads together; it need not equal `hidden_size`."""
        return self.num_attention_heads * self.head_dim

    @property
    def key_value_size(self) -> int:
        """K·d, the width of all key heads together, and of all value heads."""
        return self.num_key_value_heads * self.head_dim

    @property
    def queries_per_key(self) -> int:
        """G = H/K, how many query heads share one key/value head."""
        return self.num_attention_heads // self.num_key_value_heads

    def is_sparse(self, layer: int) -> bool:
        """Whether a layer has experts in place of the one feed-forward network."""
        return self.experts is not None and layer in self.experts.sparse_layers

    def sliding_window(self, layer: int) -> int | None:
        """How many keys a query of this layer sees, itself included; None: all."""
        return self.sliding_windows[layer] if self.sliding_windows else None

    def kv_bytes_per_token(self, bytes_per_value: int = 2) -> int:
        """What one more token adds to the cache: a key and a value of K·d numbers in every layer."""
        return 2 * self.num_hidden_layers * self.key_value_size * bytes_per_value


_NO_CONFIG_HINT = "A model folder holds config.json, *.safetensors, tokenizer.json and tokenizer_config.json."
_FAMILIES = ("qwen3", "qwen3_moe", "qwen2", "llama")
# Fields that would change the arithmetic in a way we don't run, with the values under which they change nothing.
_ONLY_HARMLESS: Mapping[str, tuple[tuple[object, ...], str | None]] = {
    "hidden_act": (("silu",), None),
    "pretraining_tp": ((1,), "Set it to 1 where the weights are stored whole, as nearly all are."),
    "partial_rotary_factor": ((1,), None),
    "use_mrope": ((False,), None),
    "is_causal": ((True,), None),
    "attn_logit_softcapping": ((), None),
    "final_logit_softcapping": ((), None),
    "per_layer_config": ((), None),
}


def folder_contents(folder: Path) -> str:
    """The names in a folder as a message shows them."""
    try:
        names = sorted(entry.name + ("/" if entry.is_dir() else "") for entry in folder.iterdir())
    except OSError as problem:
        return f"nothing readable ({problem.strerror})"
    return and_more(names) or "nothing"


def config_from_json(
    config: Mapping[str, Any], generation: Mapping[str, Any] | None = None, *, source: str | None = None
) -> ModelConfig:
    """Give the parsed `config.json` its meaning.

    config:     the object in config.json
    generation: the object in generation_config.json, if there is one
    source:     what messages call the two, where they were made of something else
    return:     the same ModelConfig for every spelling of the same meaning
    raises:     ConfigError
    """
    fields = JsonFields(config, source or "config.json", ConfigError)
    sampling = JsonFields(generation or {}, source or "generation_config.json", ConfigError)
    if not fields.has("model_type") and not fields.has("hidden_size"):
        raise ConfigError("config.json doesn't describe a language model: it has neither model_type nor hidden_size.")
    family = cast(Literal["qwen3", "qwen3_moe", "qwen2", "llama"], fields.one_of("model_type", _FAMILIES))
    _refuse_what_is_not_run(fields)
    heads = fields.integer("num_attention_heads", 1, 65_536)
    key_value_heads = fields.integer("num_key_value_heads", 1, 65_536, default=heads)
    if heads % key_value_heads:
        raise fields.wrong("num_key_value_heads", f"a divisor of num_attention_heads, {heads}")
    num_layers = fields.integer("num_hidden_layers", 1, 10_000)
    vocab_size = fields.integer("vocab_size", 1, 1 << 24)
    attention_bias = family == "qwen2" or fields.boolean("attention_bias", False)
    stored, older = (f.one_of(n, _DTYPES, "") for f, n in ((fields, "dtype"), (fields, "torch_dtype")))
    if stored and older and stored != older:
        raise fields.wrong("dtype", f"the same as torch_dtype, {older}")
    return ModelConfig(
        model_type=family,
        vocab_size=vocab_size,
        hidden_size=fields.integer("hidden_size", 1, 1 << 20),
        intermediate_size=fields.integer("intermediate_size", 1, 1 << 24),
        num_hidden_layers=num_layers,
        num_attention_heads=heads,
        num_key_value_heads=key_value_heads,
        head_dim=_head_dim(fields, family, heads),
        max_position_embeddings=fields.integer("max_position_embeddings", 1, 1 << 31),
        rms_norm_eps=fields.number("rms_norm_eps", 0.0, 1.0),
        rope=rope_from_json(fields),
        qk_norm=family in ("qwen3", "qwen3_moe"),
        attention_bias=attention_bias,
        output_bias=attention_bias and family != "qwen2",
        mlp_bias=family == "llama" and fields.boolean("mlp_bias", False),
        tie_word_embeddings=fields.boolean("tie_word_embeddings", False),
        dtype=cast(Literal["float32", "float16", "bfloat16"], stored or older or "float32"),
        eos_token_ids=_end_tokens(fields, sampling, vocab_size),
        bos_token_id=_token(fields, "bos_token_id", vocab_size),
        pad_token_id=_token(fields, "pad_token_id", vocab_size),
        experts=_experts(fields, num_layers) if family == "qwen3_moe" else None,
        sliding_windows=_sliding_windows(fields, family, num_layers),
        generation=_generation_defaults(sampling),
        quantisation=quantisation_from_json(fields),
    )


_DTYPES = ("float32", "float16", "bfloat16")


def _refuse_what_is_not_run(fields: JsonFields) -> None:
    for name, (harmless, hint) in _ONLY_HARMLESS.items():
        value = fields.values.get(name)
        if value is not None and not any(value == allowed for allowed in harmless):
            allowed = " or ".join([*(repr(v).lower() if isinstance(v, bool) else str(v) for v in harmless), "absent"])
            raise fields.wrong(name, allowed, hint=hint)


def _head_dim(fields: JsonFields, family: str, heads: int) -> int:
    """What each family means when it doesn't say: Qwen3 128; the others hidden_size / num_attention_heads."""
    if not fields.has("head_dim") and family != "qwen3":
        hidden_size = fields.integer("hidden_size", 1, 1 << 20)
        if hidden_size % heads:
            raise fields.wrong("hidden_size", f"a multiple of num_attention_heads, {heads}, as head_dim isn't given")
        head_dim = hidden_size // heads
    else:
        head_dim = fields.integer("head_dim", 1, 16_384, default=128)
    if head_dim % 2:
        raise ConfigError(
            f"{fields.source}: a head has {head_dim} dimensions; allowed: an even number, as RoPE turns pairs."
        )
    return head_dim


def _sliding_windows(fields: JsonFields, family: str, num_layers: int) -> tuple[int | None, ...]:
    """Windows are on only where `use_sliding_window` is; a `sliding_window` beside it says nothing by itself."""
    everywhere: tuple[int | None, ...] = (None,) * num_layers
    if family == "llama":
        return everywhere
    window = None
    if fields.boolean("use_sliding_window", False):
        if "sliding_window" not in fields.values:
            raise fields.missing("sliding_window", hint="use_sliding_window is true: say how many keys a query sees.")
        window = fields.optional_integer("sliding_window", 1, 1 << 31)
    if family == "qwen3_moe":  # it knows no per-layer choice
        return (window,) * num_layers
    if not fields.has("layer_types"):
        if window is None:
            return everywhere
        first = fields.integer("max_window_layers", 0, 10_000)
        return tuple(window if layer >= first else None for layer in range(num_layers))
    kinds = fields.values["layer_types"]
    allowed = ["full_attention"] if window is None else ["full_attention", "sliding_attention"]
    if not isinstance(kinds, list) or len(kinds) != num_layers or any(kind not in allowed for kind in kinds):
        hint = None if window else "Sliding windows need use_sliding_window: true and a sliding_window."
        raise fields.wrong("layer_types", f"{num_layers} times {' or '.join(allowed)}", hint=hint)
    return tuple(window if kind == "sliding_attention" else None for kind in kinds)


def _experts(fields: JsonFields, num_layers: int) -> ExpertsConfig:
    counts = {name: fields.optional_integer(name, 1, 65_536) for name in ("num_experts", "num_local_experts")}
    num_experts = counts["num_experts"] or counts["num_local_experts"]
    if num_experts is None:
        raise fields.missing("num_experts")
    if num_experts != (counts["num_local_experts"] or num_experts):
        raise fields.wrong("num_local_experts", f"the same as num_experts, {num_experts}")
    step = fields.integer("decoder_sparse_step", 1, 10_000, default=1)
    dense = frozenset(fields.integers("mlp_only_layers", 0, num_layers - 1))
    return ExpertsConfig(
        num_experts=num_experts,
        num_experts_per_tok=fields.integer("num_experts_per_tok", 1, num_experts),
        moe_intermediate_size=fields.integer("moe_intermediate_size", 1, 1 << 24),
        norm_topk_prob=fields.boolean("norm_topk_prob", False),
        sparse_layers=tuple(layer for layer in range(num_layers) if (layer + 1) % step == 0 and layer not in dense),
    )


def _token(fields: JsonFields, name: str, vocab_size: int) -> int | None:
    """One token id; older files write -1 for none."""
    return None if fields.values.get(name) == -1 else fields.optional_integer(name, 0, vocab_size - 1)


def _end_tokens(fields: JsonFields, sampling: JsonFields, vocab_size: int) -> tuple[int, ...]:
    """The union of what both files say, in their order; the tokenizer's own is added by loading.py."""
    both = [token for f in (fields, sampling) for token in f.integers("eos_token_id", -1, vocab_size - 1) if token >= 0]
    return tuple(dict.fromkeys(both))


def _generation_defaults(sampling: JsonFields) -> GenerationDefaults:
    greedy = sampling.values.get("do_sample") is not None and not sampling.boolean("do_sample", True)
    return GenerationDefaults(
        temperature=0.0 if greedy else sampling.optional_number("temperature", 0.0, 1e6),
        top_k=sampling.optional_integer("top_k", -1, 1 << 31),
        top_p=sampling.optional_number("top_p", 0.0, 1.0),
        min_p=sampling.optional_number("min_p", 0.0, 1.0),
        repetition_penalty=sampling.optional_number("repetition_penalty", 1e-6, 1e6),
    )
