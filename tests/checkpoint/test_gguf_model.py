"""Whole models: the same config and the same weights as the Hugging Face folder that a GGUF was made from."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from kaishu.checkpoint import open_checkpoint
from kaishu.checkpoint.gguf_blocks import FORMATS
from kaishu.checkpoint.quantised import QuantisedTensor
from kaishu.checkpoint.safetensors import StoredTensor
from kaishu.errors import CheckpointError, ConfigError
from tests.checkpoint.gguf_files import WIDE, as_f32, interleaved, write_gguf
from tests.checkpoint.gguf_scalars import SIZES, random_blocks

Write = Callable[..., Path]
KINDS = [
    *["dense_tied", "dense_untied", "dense_biased", "odd_head_dim", "multi_query", "yarn", "moe", "moe_mixed"],
    *["moe_tied", "qwen2", "llama", "llama_biased", "linear_rope", "llama3_rope"],
]
# What rounding to nearest can move a weight by, as a part of its group's largest magnitude (Q4_0 and Q5_0 reach further
# on one side than on the other) or, with a minimum, of its group's spread.
ROUNDING = {"Q8_0": 0.5 / 127, "Q4_0": 1 / 8, "Q5_0": 1 / 16, "Q4_1": 0.5 / 15, "Q5_1": 0.5 / 31}


def values_of(tensor: StoredTensor | QuantisedTensor) -> np.ndarray:
    if isinstance(tensor, QuantisedTensor):
        return tensor.values(0, tensor.shape[0])
    stored = tensor.read()
    if tensor.dtype == "BF16":
        return (stored.astype(np.uint32) << 16).view(np.float32)
    return stored.astype(np.float32)


@pytest.mark.parametrize("kind", KINDS)
def test_a_gguf_is_the_model_that_it_was_made_from(kind: str, tiny_checkpoint: Write, tmp_path: Path) -> None:
    folder = tiny_checkpoint(kind)
    expected = open_checkpoint(folder)
    path = write_gguf(folder, tmp_path / "model.gguf")
    checkpoint = open_checkpoint(path)
    assert checkpoint.config == expected.config
    assert list(checkpoint.tensors) == list(expected.tensors)
    for name, tensor in checkpoint.tensors.items():
        assert isinstance(tensor, StoredTensor) and tensor.dtype == "F32" and tensor.name == name
        assert np.array_equal(tensor.read(), expected.tensors[name].read()), name
    assert checkpoint.folder == path and checkpoint.gguf is not None and expected.gguf is None
    assert checkpoint.gguf["tokenizer.ggml.model"] == "gpt2"
    assert checkpoint.num_parameters == expected.num_parameters and checkpoint.nbytes == expected.nbytes


def encoder(kind: str, rng: np.random.Generator) -> Callable[[str, np.ndarray], tuple[np.ndarray, str]]:
    """Matrices are stored as `kind`, the rest as F32, as llama.cpp does. Types that the package can't quantise to get
    random blocks."""

    def encode(name: str, values: np.ndarray) -> tuple[np.ndarray, str]:
        if values.ndim == 1 or "ffn_gate_inp" in name:
            return as_f32(name, values)
        if kind == "F16":
            return values.astype(np.float16), kind
        if kind in FORMATS and kind not in ROUNDING:
            *outer, columns = values.shape
            return random_blocks(rng, kind, int(np.prod(outer)), columns).reshape(*outer, -1), kind
        return gguf.quants.quantize(values.astype(np.float32), gguf.GGMLQuantizationType[kind]), kind

    return encode


@pytest.mark.parametrize("family", ["dense_untied", "moe_tied", "qwen2", "llama"])
@pytest.mark.parametrize("kind", ["F32", "F16", "BF16", *FORMATS])
def test_every_type_in_every_family(
    kind: str, family: str, tiny_checkpoint: Write, tmp_path: Path, rng: np.random.Generator
) -> None:
    experts = {"moe_intermediate_size": 256, "num_experts": 3} if family == "moe_tied" else {}
    folder = tiny_checkpoint(family, **WIDE, **experts)
    original = open_checkpoint(folder).tensors
    encode, written = encoder(kind, rng), {}

    def remember(name: str, values: np.ndarray) -> tuple[np.ndarray, str]:
        written[name] = encode(name, values)
        return written[name]

    checkpoint = open_checkpoint(write_gguf(folder, tmp_path / "model.gguf", remember))
    matrices = [
        t for name, t in checkpoint.tensors.items() if len(t.shape) == 2 and not name.endswith("mlp.gate.weight")
    ]
    assert {tensor.dtype for tensor in matrices} == {kind}
    for tensor in checkpoint.tensors.values():
        expected = original[tensor.name].read()
        if tensor.dtype in ROUNDING:
            grouped = expected.reshape(*expected.shape[:-1], -1, 32)
            spread = np.ptp(grouped, axis=-1) if tensor.dtype.endswith("1") else np.abs(grouped).max(-1)
            allowed = np.repeat(spread * (ROUNDING[tensor.dtype] + 2.0**-9), 32, axis=-1)
            assert np.all(np.abs(values_of(tensor) - expected) <= allowed), tensor.name
        elif tensor.dtype in FORMATS:
            continue
        elif tensor.dtype == "BF16":
            assert np.array_equal(values_of(tensor), gguf.quants.dequantize(*bf16(expected))), tensor.name
        else:
            rounded = expected.astype(np.float16 if tensor.dtype == "F16" else np.float32).astype(np.float32)
            assert np.array_equal(values_of(tensor), rounded), tensor.name
    if kind in FORMATS:
        compare_with_the_package(checkpoint.tensors, written, kind, is_llama=family == "llama")


def bf16(values: np.ndarray) -> tuple[np.ndarray, Any]:
    return gguf.quants.quantize(values, gguf.GGMLQuantizationType.BF16), gguf.GGMLQuantizationType.BF16


def compare_with_the_package(found: Any, written: dict[str, Any], kind: str, *, is_llama: bool) -> None:
    """The package's own reading of some of the blocks that were written, put where they belong."""
    names = {"blk.0.attn_q.weight": "model.layers.0.self_attn.q_proj.weight", "token_embd.weight": None}
    names["token_embd.weight"] = "model.embed_tokens.weight"
    if "blk.0.ffn_down_exps.weight" in written:
        stored, _ = written["blk.0.ffn_down_exps.weight"]
        last = gguf.quants.dequantize(stored[-1], gguf.GGMLQuantizationType[kind])
        assert np.array_equal(values_of(found["model.layers.0.mlp.experts.2.down_proj.weight"]), last)
    for theirs, ours in names.items():
        expected = gguf.quants.dequantize(written[theirs][0], gguf.GGMLQuantizationType[kind])
        values = values_of(found[ours])
        if is_llama and "attn_q" in theirs:
            values = interleaved(values, WIDE["num_attention_heads"])
        assert np.array_equal(values, expected), ours


def test_types_are_mixed_in_one_file(tiny_checkpoint: Write, tmp_path: Path, rng: np.random.Generator) -> None:
    folder = tiny_checkpoint("dense_untied", **WIDE)
    kinds = {"token_embd": "Q6_K", "attn_v": "Q5_K", "ffn_down": "Q8_0", "output.weight": "F16"}

    def encode(name: str, values: np.ndarray) -> tuple[np.ndarray, str]:
        kind = next((kind for part, kind in kinds.items() if f".{part}" in f".{name}"), "Q4_K")
        return encoder(kind, rng)(name, values)

    found = open_checkpoint(write_gguf(folder, tmp_path / "model.gguf", encode)).tensors
    dtypes = {name.split(".")[-2]: tensor.dtype for name, tensor in found.items() if len(tensor.shape) == 2}
    assert dtypes == {
        **{"embed_tokens": "Q6_K", "q_proj": "Q4_K", "k_proj": "Q4_K", "v_proj": "Q5_K", "o_proj": "Q4_K"},
        **{"gate_proj": "Q4_K", "up_proj": "Q4_K", "down_proj": "Q8_0", "lm_head": "F16"},
    }


def test_a_split_model_is_the_same_model(tiny_checkpoint: Write, tmp_path: Path) -> None:
    folder = tiny_checkpoint("dense_untied")
    one = open_checkpoint(write_gguf(folder, tmp_path / "model.gguf"))
    (tmp_path / "split").mkdir()
    first = write_gguf(folder, tmp_path / "split" / "model.gguf", split_max_tensors=9)
    parts = sorted(first.parent.iterdir())
    assert len(parts) > 2
    for part in parts:
        many = open_checkpoint(part)
        assert many.folder == parts[0] and many.config == one.config
        for name, tensor in many.tensors.items():
            assert np.array_equal(tensor.read(), one.tensors[name].read())
    assert open_checkpoint(parts[0]).identity == open_checkpoint(parts[-1]).identity != one.identity


# What the metadata say, and what they don't.


class Writer:
    """A GGUF whose metadata and tensors a test changes before they are written."""

    def __init__(self, folder: Path, path: Path) -> None:
        self.folder, self.path = folder, path

    def __call__(self, monkeypatch: pytest.MonkeyPatch, drop: str = "", extra: Any = None, **changed: Any) -> Path:
        """drop: a tensor to leave out · extra: a tensor to add · changed: metadata by key, `__` for dots; None: none"""
        changes = {key.replace("__", "."): value for key, value in changed.items()}
        original = gguf.GGUFWriter.add_key_value

        def add(writer: Any, key: str, value: Any, *arguments: Any, **options: Any) -> None:
            value = changes.get(key, value)
            if value is not None:
                original(writer, key, value, *arguments, **options)

        with monkeypatch.context() as patched:
            patched.setattr(gguf.GGUFWriter, "add_key_value", add)
            if drop:
                add_tensor = gguf.GGUFWriter.add_tensor
                patched.setattr(
                    gguf.GGUFWriter,
                    "add_tensor",
                    lambda writer, name, *rest, **more: (
                        None if name == drop else add_tensor(writer, name, *rest, **more)
                    ),
                )
            return write_gguf(self.folder, self.path)


@pytest.fixture
def write_changed(tiny_checkpoint: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    def write(kind: str, **changes: Any) -> Path:
        return Writer(tiny_checkpoint(kind), tmp_path / "model.gguf")(monkeypatch, **changes)

    return write


def test_without_output_weight_the_head_is_tied(write_changed: Callable[..., Path]) -> None:
    assert not open_checkpoint(write_changed("dense_untied")).config.tie_word_embeddings
    assert open_checkpoint(write_changed("dense_untied", drop="output.weight")).config.tie_word_embeddings


def test_a_mixture_renormalises_unless_it_says_otherwise(write_changed: Callable[..., Path]) -> None:
    experts = open_checkpoint(write_changed("moe")).config.experts
    assert experts is not None and experts.norm_topk_prob
    experts = open_checkpoint(write_changed("moe_mixed")).config.experts
    assert experts is not None and not experts.norm_topk_prob and experts.sparse_layers == (1, 5)


def test_a_head_s_length_is_the_hidden_size_over_the_heads_where_it_isnt_said(
    write_changed: Callable[..., Path],
) -> None:
    unsaid = {"llama__attention__key_length": None, "llama__attention__value_length": None}
    assert open_checkpoint(write_changed("llama", **unsaid)).config.head_dim == 16


def test_a_small_number_is_the_one_that_config_json_says(write_changed: Callable[..., Path]) -> None:
    """1e-06 in float32 is 9.999999974752427e-07 when widened."""
    assert open_checkpoint(write_changed("dense_tied")).config.rms_norm_eps == 1e-6


@pytest.mark.parametrize(
    "kind, changes, words",
    [
        (
            "dense_tied",
            {"general__architecture": "gemma3"},
            'architecture is "gemma3"; allowed: qwen3, qwen3moe, qwen2, llama',
        ),
        ("dense_tied", {"general__architecture": None}, r"general\.architecture is missing"),
        ("dense_tied", {"qwen3__block_count": None}, r"qwen3\.block_count is missing"),
        ("dense_tied", {"qwen3__block_count": 2}, "have 11 tensors that qwen3 doesn't use"),
        ("dense_tied", {"qwen3__block_count": 4}, "lack 11 tensors that qwen3 needs"),
        (
            "dense_tied",
            {"qwen3__block_count": 4_000_000},
            "block_count is 4000000; allowed: an integer from 1 to 10,000",
        ),
        (
            "dense_tied",
            {"qwen3__feed_forward_length": 100},
            "don't have the shape that the metadata of model.gguf gives",
        ),
        ("dense_tied", {"qwen3__rope__freq_base": None}, r"rope\.freq_base is missing"),
        ("dense_tied", {"qwen3__attention__value_length": 16}, "value_length is 16; allowed: the same"),
        ("dense_tied", {"qwen3__attention__head_count_kv": 3}, "num_key_value_heads is 3; allowed: a divisor"),
        ("dense_tied", {"tokenizer__ggml__eos_token_id": 5000}, r"model\.gguf, by config\.json's names: eos_token_id"),
        ("dense_tied", {"tokenizer__ggml__tokens": ["a"] * 321}, "has 321 tokens, but token_embd.weight has 320 rows"),
        ("dense_tied", {"general__sampling__top_p": 2.0}, "top_p is 2.0"),
        ("dense_tied", {"drop": "output_norm.weight"}, r"lack 1 tensors that qwen3 needs: model\.norm\.weight"),
        ("dense_tied", {"drop": "token_embd.weight"}, r"lack 1 tensors that qwen3 needs: model\.embed_tokens\.weight"),
        ("qwen2", {"drop": "blk.0.attn_k.bias"}, r"needs: model\.layers\.0\.self_attn\.k_proj\.bias"),
        ("moe", {"qwen3moe__expert_count": 5}, "have 9 tensors that qwen3_moe doesn't use"),
        ("moe", {"qwen3moe__expert_used_count": 7}, "num_experts_per_tok is 7"),
        ("llama3_rope", {"llama__rope__freq_base": 20_000.0}, r"rope_freqs\.weight divides the frequencies"),
    ],
)
def test_what_is_wrong_is_named(
    kind: str, changes: dict[str, Any], words: str, write_changed: Callable[..., Path]
) -> None:
    with pytest.raises((ConfigError, CheckpointError), match=words):
        open_checkpoint(write_changed(kind, **changes))


@pytest.mark.parametrize(
    "key, value",
    [
        ("qwen3.expert_count", 8),
        ("qwen3.attention.sliding_window", 128),
        ("qwen3.final_logit_softcapping", 30.0),
        ("qwen3.attention.scale", 0.25),
        ("qwen3.logit_scale", 0.0625),
        ("qwen3.rope.scaling.type", "longrope"),
    ],
)
def test_what_would_change_the_arithmetic_is_refused(
    key: str, value: Any, tiny_checkpoint: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_header = gguf.GGUFWriter.write_header_to_file

    def with_key(writer: Any, *arguments: Any) -> None:
        {int: writer.add_uint32, float: writer.add_float32, str: writer.add_string}[type(value)](key, value)
        write_header(writer, *arguments)

    monkeypatch.setattr(gguf.GGUFWriter, "write_header_to_file", with_key)
    path = write_gguf(tiny_checkpoint("dense_tied"), tmp_path / "model.gguf")
    with pytest.raises(ConfigError, match=f"{key.replace('.', '[.]')} is .*; allowed"):
        open_checkpoint(path)


def test_a_quantised_norm_is_refused(tiny_checkpoint: Write, tmp_path: Path) -> None:
    def encode(name: str, values: np.ndarray) -> tuple[np.ndarray, str]:
        if name == "output_norm.weight":
            return gguf.quants.quantize(values, gguf.GGMLQuantizationType.Q8_0), "Q8_0"
        return as_f32(name, values)

    path = write_gguf(tiny_checkpoint("dense_tied"), tmp_path / "model.gguf", encode)
    with pytest.raises(CheckpointError, match=r"'output_norm\.weight' in model\.gguf is Q8_0 of shape \[64\]"):
        open_checkpoint(path)


def test_a_config_of_a_million_experts_is_refused_at_once(write_changed: Callable[..., Path]) -> None:
    changes = {"qwen3moe__expert_count": 65_536, "qwen3moe__block_count": 10_000}
    with pytest.raises(CheckpointError, match="describes 10,000 layers of 65,536 experts"):
        open_checkpoint(write_changed("moe", **changes))


def test_blocks_that_don_t_fill_a_row_are_refused(tiny_checkpoint: Write, tmp_path: Path) -> None:
    """40 numbers a row are no whole number of blocks: such rows can only be described by lying."""
    path = write_gguf(tiny_checkpoint("odd_head_dim"), tmp_path / "model.gguf")
    damaged = bytearray(path.read_bytes())
    at = damaged.index(b"blk.0.attn_k.weight") + len(b"blk.0.attn_k.weight") + 4 + 16
    damaged[at : at + 4] = (8).to_bytes(4, "little")
    path.write_bytes(bytes(damaged))
    assert SIZES["Q8_0"] == (32, 34)
    with pytest.raises(CheckpointError, match="has rows of 40 weights; Q8_0 has blocks of 32"):
        open_checkpoint(path)


def test_a_real_file_has_the_weights_and_the_shape_that_transformers_reads_from_it(smollm2_file: Path) -> None:
    """transformers decodes GGUF with the package `gguf`, gives tensors its own names and puts rows back by itself."""
    import torch
    from transformers import AutoModelForCausalLM

    theirs = AutoModelForCausalLM.from_pretrained(
        smollm2_file.parent, gguf_file=smollm2_file.name, dtype=torch.float32, local_files_only=True
    )
    checkpoint = open_checkpoint(smollm2_file)
    weights = theirs.state_dict()
    assert {tensor.dtype for tensor in checkpoint.tensors.values()} == {"Q4_1", "Q8_0", "F32"}
    for name, tensor in checkpoint.tensors.items():
        assert np.array_equal(values_of(tensor), weights.pop(name).numpy()), name
    assert set(weights) == {"lm_head.weight"} and checkpoint.config.tie_word_embeddings
    ours = checkpoint.config
    assert (ours.num_hidden_layers, ours.num_attention_heads, ours.num_key_value_heads, ours.head_dim) == (30, 9, 3, 64)
    assert ours.rope.theta == theirs.config.rope_parameters["rope_theta"]
    assert ours.rms_norm_eps == pytest.approx(theirs.config.rms_norm_eps, rel=1e-7)
    assert ours.eos_token_ids == (theirs.config.eos_token_id,)


@pytest.mark.parametrize(
    "kind, options",
    [
        ("llama", {}),
        ("llama3_rope", {}),
        ("qwen2", {}),
        ("dense_untied", {"head_dim": 128}),  # it reads neither of the two sizes and assumes these
        ("moe_tied", {"head_dim": 128, "moe_intermediate_size": 768}),
    ],
)
def test_transformers_reads_the_same_weights_from_a_tiny_file(
    kind: str, options: dict[str, int], tiny_checkpoint: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that the writer of these tests isn't wrong in the same way as the reader. It wants as many tokens as rows."""
    import torch
    from transformers import AutoModelForCausalLM

    tokens = [f"token {number}" for number in range(320)]
    writer = Writer(tiny_checkpoint(kind, num_hidden_layers=1, **options), tmp_path / "model.gguf")
    path = writer(monkeypatch, tokenizer__ggml__tokens=tokens)
    theirs = AutoModelForCausalLM.from_pretrained(
        path.parent, gguf_file=path.name, dtype=torch.float32, local_files_only=True
    )
    parameters = {name: tensor.numpy() for name, tensor in theirs.state_dict().items()}
    for name, tensor in open_checkpoint(path).tensors.items():
        if ".experts." in name:  # in memory transformers stacks them
            before, _, after = name.partition(".experts.")
            number, part = after.removesuffix(".weight").split(".")
            kept = "down_proj" if part == "down_proj" else "gate_up_proj"
            stack = parameters[f"{before}.experts.{kept}"][int(number)]
            half = len(stack) // 2
            expected = {"gate_proj": stack[:half], "up_proj": stack[half:], "down_proj": stack}[part]
        else:
            expected = parameters[name]
        assert np.array_equal(tensor.read(), expected), name
