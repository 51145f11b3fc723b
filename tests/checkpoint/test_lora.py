"""Adapters that PEFT itself has saved, merged by us and by PEFT; and adapters that don't fit, named."""

from __future__ import annotations

import json
import os
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from kaishu import LLM
from kaishu.batch import SequenceTokens, pack
from kaishu.checkpoint import Checkpoint, open_checkpoint
from kaishu.checkpoint.lora import ADAPTER_CONFIG, ADAPTER_WEIGHTS, with_adapter, with_adapters
from kaishu.checkpoint.lora_tensors import MergedTensor
from kaishu.checkpoint.names import EMBEDDING, HEAD
from kaishu.errors import CheckpointError, InvalidParameterError, KaishuError, ModelNotFoundError
from kaishu.reference.model import Model
from tests.reference import parity

ATTENTION = ["q_proj", "k_proj", "v_proj", "o_proj"]
ALL = [*ATTENTION, "gate_proj", "up_proj", "down_proj"]
IDS = [(37 * i + 11) % 256 for i in range(24)]
Train = Callable[..., Path]


@pytest.fixture
def train(tiny_checkpoint, tmp_path) -> Train:
    """`train(kind, **fields of LoraConfig)`: an adapter that PEFT has saved, with random matrices, and PEFT's model."""

    def make(kind: str, *, name: str = "adapter", seed: int = 1, **fields: Any) -> tuple[Path, Any]:
        import peft

        torch.manual_seed(seed)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of tied heads; what then happens is what is tested
            config = peft.LoraConfig(**{"r": 4, "lora_alpha": 12, "task_type": "CAUSAL_LM", **fields})
            model = peft.get_peft_model(parity.their_model(tiny_checkpoint(kind)), config).eval()
            _draw(model)
            model.save_pretrained(tmp_path / name)
        return tmp_path / name, model

    return make


def _draw(model: Any) -> None:
    """Fill what is trained, so that each matrix matters: B begins as zeros."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_" in name:
                parameter.copy_(0.3 * torch.randn(parameter.shape))
            elif "modules_to_save" in name:
                parameter.add_(0.1 * torch.randn(parameter.shape))


def our_logits(checkpoint: Checkpoint) -> np.ndarray:
    return parity.our_logits(Model.from_checkpoint(checkpoint, attention="explicit"), IDS).numpy()


def their_logits(model: Any) -> np.ndarray:
    return parity.their_logits(model, IDS).numpy()


def assert_the_same(ours: np.ndarray, theirs: np.ndarray) -> None:
    np.testing.assert_allclose(ours, theirs, atol=2e-4 * np.abs(theirs).max())


CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "attention": ("dense_tied", {"target_modules": ATTENTION}),
    "all modules": ("dense_untied", {"target_modules": ALL, "r": 7, "lora_alpha": 5}),
    "all-linear": ("dense_tied", {"target_modules": "all-linear"}),
    "an expression": ("dense_tied", {"target_modules": r".*\.layers\.[12]\..*\.(q|up)_proj"}),
    "a stabilised rank": ("dense_tied", {"target_modules": ALL, "use_rslora": True, "r": 9}),
    "some layers": ("dense_tied", {"target_modules": ALL, "layers_to_transform": [0, 2]}),
    "one layer": ("dense_tied", {"target_modules": ALL, "layers_to_transform": 1, "layers_pattern": "layers"}),
    "but some": ("dense_tied", {"target_modules": ALL, "exclude_modules": ["layers.1.self_attn.q_proj", "up_proj"]}),
    "patterns": (
        "dense_tied",
        {
            "target_modules": ALL,
            "rank_pattern": {"layers.1.mlp.up_proj": 2, r".*\.2\.self_attn\..*": 6, "^model.layers.0.mlp.up_proj": 3},
            "alpha_pattern": {"q_proj": 3, r"layers\.[01]\.mlp\.\w+": 40},
        },
    ),
    "patterns, stabilised": (
        "dense_tied",
        {
            "target_modules": ["q_proj"],
            "use_rslora": True,
            "rank_pattern": {"q_proj": 2},
            "alpha_pattern": {"q_proj": 5},
        },
    ),
    "biases": ("llama_biased", {"target_modules": ALL}),
    "qwen2": ("qwen2", {"target_modules": ALL}),
    "an untied embedding": ("dense_untied", {"target_modules": ["embed_tokens", "q_proj"]}),
    "an untied head": ("dense_untied", {"target_modules": ["lm_head", "embed_tokens"], "rank_pattern": {"lm_head": 2}}),
    "a tied embedding": ("dense_tied", {"target_modules": ["embed_tokens", "q_proj"]}),
    "a tied head": ("dense_tied", {"target_modules": ["lm_head", "q_proj"]}),
    "both of a tied model": ("dense_tied", {"target_modules": ["lm_head", "embed_tokens"]}),
    "tied changes": ("dense_tied", {"target_modules": ["embed_tokens", "q_proj"], "ensure_weight_tying": True}),
    "tied changes of the head": ("dense_tied", {"target_modules": ["lm_head", "q_proj"], "ensure_weight_tying": True}),
    "a saved embedding, tied": (
        "dense_tied",
        {"target_modules": ["q_proj"], "modules_to_save": ["embed_tokens"], "ensure_weight_tying": True},
    ),
    "a saved embedding of a tied model": (
        "dense_tied",
        {"target_modules": ["q_proj"], "modules_to_save": ["embed_tokens"]},
    ),
    "a saved head of a tied model": ("dense_tied", {"target_modules": ["q_proj"], "modules_to_save": ["lm_head"]}),
    "saved modules within": ("dense_untied", {"target_modules": ["q_proj"], "modules_to_save": ["layers.1.mlp"]}),
    "a saved head": ("dense_untied", {"target_modules": ["q_proj"], "modules_to_save": ["lm_head"]}),
    "a saved embedding": ("dense_untied", {"target_modules": ["q_proj"], "modules_to_save": ["embed_tokens"]}),
    "saved norms": ("dense_tied", {"target_modules": ["q_proj"], "modules_to_save": ["input_layernorm", "q_norm"]}),
    "experts": (
        "moe",
        {"target_modules": ["q_proj"], "target_parameters": ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]},
    ),
    "half of the experts": ("moe", {"target_modules": ["q_proj"], "target_parameters": ["experts.down_proj"]}),
    "the other half": ("moe_mixed", {"target_modules": ["q_proj"], "target_parameters": ["experts.gate_up_proj"]}),
    "a router": ("moe", {"target_modules": ["q_proj"], "target_parameters": ["mlp.gate.weight"]}),
    "attention beside experts": ("moe_tied", {"target_modules": ATTENTION}),
}


@pytest.mark.parametrize("case", CASES)
def test_the_merged_model_computes_what_the_adapted_one_does(case, train, tiny_checkpoint):
    kind, fields = CASES[case]
    folder, theirs = train(kind, **fields)
    base = open_checkpoint(tiny_checkpoint(kind))
    merged = with_adapter(base, folder)
    ours = our_logits(merged)
    assert np.abs(ours - our_logits(base)).max() > 0.01 * np.abs(ours).max(), "the adapter matters"
    assert_the_same(ours, their_logits(theirs))


@pytest.mark.parametrize("case", [name for name in CASES if "tied" not in name or "untied" in name])
def test_it_equals_peft_s_own_merged_model(case, train, tiny_checkpoint):
    kind, fields = CASES[case]
    folder, theirs = train(kind, **fields)
    merged = with_adapter(open_checkpoint(tiny_checkpoint(kind)), folder)
    assert_the_same(our_logits(merged), their_logits(theirs.merge_and_unload()))


def test_several_adapters_are_merged_in_order(train, tiny_checkpoint):
    one, _ = train("dense_tied", name="one", target_modules=["q_proj", "up_proj"])
    two, theirs = train("dense_tied", name="two", seed=2, target_modules=["up_proj", "embed_tokens"], r=2)
    theirs.load_adapter(str(one), "one")
    theirs.base_model.set_adapter(["default", "one"])
    base = open_checkpoint(tiny_checkpoint("dense_tied"))
    both = with_adapters(base, [one, two])
    assert_the_same(our_logits(both), their_logits(theirs.eval()))
    assert both.tensors["model.layers.0.mlp.up_proj.weight"].dtype == "F32 + LoRA r=4 + LoRA r=2"
    assert with_adapters(base, str(one)) == with_adapters(base, [one]) == with_adapter(base, one)
    assert with_adapters(base, []) is base and with_adapters(base, None) is base


def test_an_adapter_of_single_experts_is_merged_as_its_names_say(tiny_checkpoint, tmp_path):
    """As versions of transformers before 5 had it trained: each expert is three linear modules."""
    base = open_checkpoint(tiny_checkpoint("moe"))
    random = torch.Generator().manual_seed(3)
    fields = {"peft_type": "LORA", "r": 2, "lora_alpha": 6, "target_modules": ["gate_proj", "down_proj", "gate"]}
    names = [n for n in base.tensors if n.endswith(("gate_proj.weight", "down_proj.weight", "mlp.gate.weight"))]
    tensors, expected = {}, {}
    for name in names:
        rows, columns = base.tensors[name].shape
        a, b = torch.randn(2, columns, generator=random), torch.randn(rows, 2, generator=random)
        prefix = "base_model.model." + name.removesuffix(".weight")
        tensors |= {f"{prefix}.lora_A.weight": a, f"{prefix}.lora_B.weight": b}
        expected[name] = base.tensors[name].read() + 3 * (b @ a).numpy()
    merged = with_adapter(base, write(tmp_path / "adapter", tensors, fields))
    assert len(names) == 3 * (2 * 6 + 1)
    for name, tensor in merged.tensors.items():
        if name in expected:
            np.testing.assert_allclose(tensor.values(0, tensor.shape[0]), expected[name], rtol=1e-5, atol=1e-5)
        else:
            assert tensor == base.tensors[name]


def write(folder: Path, tensors: dict[str, torch.Tensor], fields: dict[str, Any]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / ADAPTER_WEIGHTS)
    (folder / ADAPTER_CONFIG).write_text(json.dumps(fields))
    return folder


Edit = Callable[[dict[str, torch.Tensor], dict[str, Any]], object]


@pytest.fixture
def edited(train, tmp_path):
    """`edited(edit)`: an adapter of q_proj and v_proj after `edit(tensors, fields)`."""

    def make(edit: Edit = lambda tensors, fields: None) -> Path:
        folder, _ = train("dense_tied", target_modules=["q_proj", "v_proj"], r=4)
        tensors, fields = load_file(folder / ADAPTER_WEIGHTS), json.loads((folder / ADAPTER_CONFIG).read_text())
        edit(tensors, fields)
        return write(tmp_path / "adapter", tensors, fields)

    return make


def rename(old: str, new: str) -> Edit:
    def edit(tensors: dict[str, torch.Tensor], fields: dict[str, Any]) -> None:
        for name in [name for name in tensors if old in name]:
            tensors[name.replace(old, new)] = tensors.pop(name)

    return edit


@pytest.mark.parametrize(
    "edit",
    [
        rename(".weight", ".default.weight"),
        rename("base_model.model.", ""),
        rename("base_model.model.model.", "base_model.model."),  # a bare decoder's adapter
        lambda tensors, fields: fields.update(base_model_name_or_path=None),
    ],
)
def test_other_spellings_are_the_same_adapter(edit, edited, tiny_checkpoint):
    base = open_checkpoint(tiny_checkpoint("dense_tied"))
    expected = our_logits(with_adapter(base, edited()))
    assert np.array_equal(our_logits(with_adapter(base, edited(edit))), expected)


Q0 = "base_model.model.model.layers.0.self_attn.q_proj"


@pytest.mark.parametrize(
    "edit, said",
    [
        (lambda t, f: t.pop(f"{Q0}.lora_A.weight"), r"has lora_B of model\.layers\.0\.self_attn\.q_proj; allowed"),
        (
            lambda t, f: [t.pop(f"{Q0}.lora_{x}.weight") for x in "AB"],
            r"has no tensors for 1 modules that its config targets: model\.layers\.0\.self_attn\.q_proj\.",
        ),
        (
            lambda t, f: f.update(target_modules=["q_proj"]),
            r"changes 3 modules that its config doesn't target: model\.layers\.0\.self_attn\.v_proj",
        ),
        (lambda t, f: f.update(r=8), r"has .*q_proj with A \[4, 64\] and B \[128, 4\], but .* them rank 8"),
        (lambda t, f: f.update(rank_pattern={"v_proj": 2}), r"has .*v_proj with A .* but its config gives them rank 2"),
        (
            rename("layers.2.", "layers.9."),
            r"changes 2 tensors that the model doesn't have: model\.layers\.9\.self_attn\.q_proj\.weight, model",
        ),
        (
            lambda t, f: t.update({f"{Q0}.lora_A.weight": torch.ones(4, 65)}),
            r"changes model\.layers\.0\.self_attn\.q_proj\.weight as \[128, 65\], but the model's is \[128, 64\]",
        ),
        (
            lambda t, f: t.update({f"{Q0}.lora_B.weight": torch.ones(127, 4)}),
            r"changes .*q_proj\.weight as \[127, 64\], but the model's is \[128, 64\]",
        ),
        (lambda t, f: t.update({f"{Q0}.lora_A.weight": torch.ones(256)}), r".* A F32 \[256\] and B .*; allowed: two"),
        (
            lambda t, f: t.update({f"{Q0}.lora_A.weight": torch.ones(4, 64, dtype=torch.float16)}),
            "has .* with A F16 .* and B F32 .*; allowed: two matrices of one type",
        ),
        (
            lambda t, f: t.update({f"{Q0}.lora_A.weight": torch.ones(4, 64, dtype=torch.int32)}),
            r"has tensors of a type that weights aren't read in: base_model\..*lora_A\.weight \(I32\)",
        ),
        (
            lambda t, f: t.update({f"{Q0}.lora_magnitude_vector": torch.ones(128), "x": torch.ones(1)}),
            r"has 2 tensors that plain LoRA doesn't have: base_model.*q_proj\.lora_magnitude_vector, x\.",
        ),
        (
            lambda t, f: t.update({f"{Q0}.weight": torch.ones(128, 64)}),
            r"has 1 tensors that plain LoRA doesn't have: base_model.*q_proj\.weight",
        ),
        (
            lambda t, f: t.update({f"{Q0}.lora_A.default.weight": torch.ones(4, 64)}),
            r"has 1 tensors twice: base_model.*q_proj\.lora_A\.",
        ),
        (
            lambda t, f: t.update({"base_model.model.lm_head.weight": torch.ones(319, 64)}),
            r"changes lm_head\.weight as \[319, 64\], but the model's is \[320, 64\]",
        ),
        (
            lambda t, f: t.update({"base_model.model.model.layers.0.mlp.experts.lora_A.weight": torch.ones(4, 64),
                                   "base_model.model.model.layers.0.mlp.experts.lora_B.weight": torch.ones(4, 4)}),
            r"changes model\.layers\.0\.mlp\.experts, but the model has no experts",
        ),
        (
            lambda t, f: f.update(modules_to_save=["lm_head"]),
            r"has no tensors for 1 that its config says are saved \(modules_to_save\): lm_head\.weight",
        ),
        (
            lambda t, f: f.update(modules_to_save=["layers.1.mlp"]),
            r"has no tensors for 3 that its config says .*: model\.layers\.1\.mlp\.down_proj\.weight, .*gate_proj",
        ),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_named(edit, said, edited, tiny_checkpoint):
    base = open_checkpoint(tiny_checkpoint("dense_tied"))
    with pytest.raises(CheckpointError, match=f"^The adapter adapter {said}"):
        with_adapter(base, edited(edit))


def test_an_adapter_of_another_model_says_which(edited, tiny_checkpoint):
    folder = edited(lambda tensors, fields: fields.update(base_model_name_or_path="Qwen/Qwen3-1.7B"))
    with pytest.raises(CheckpointError, match=r"but the model's is \[144, 40\]") as caught:
        with_adapter(open_checkpoint(tiny_checkpoint("odd_head_dim")), folder)
    assert 'made for "Qwen/Qwen3-1.7B"' in str(caught.value)
    longer = open_checkpoint(tiny_checkpoint("dense_tied", num_hidden_layers=4))
    with pytest.raises(CheckpointError, match=r"has no tensors for 2 modules .*: model\.layers\.3\.self_attn\.q_proj"):
        with_adapter(longer, folder)


@pytest.mark.parametrize(
    "fields, said",
    [
        ({"target_parameters": []}, "but its target_parameters name nothing"),
        ({"target_parameters": ["experts.gate_up_proj"]}, "but its target_parameters name experts.gate_up_proj"),
        ({"r": 3}, r"but its config gives them rank 3 for each of 6 experts"),
    ],
)
def test_stacked_experts_that_are_not_what_the_config_says_are_refused(fields, said, train, tiny_checkpoint):
    both = ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]
    folder, _ = train("moe", target_modules=["q_proj"], target_parameters=both)
    path = folder / ADAPTER_CONFIG
    path.write_text(json.dumps(json.loads(path.read_text()) | {"rank_pattern": {"q_proj": 4}} | fields))
    with pytest.raises(CheckpointError, match=said):
        with_adapter(open_checkpoint(tiny_checkpoint("moe")), folder)


def test_a_folder_that_is_no_adapter_says_what_it_is(tiny_checkpoint, tmp_path, edited):
    base = open_checkpoint(tiny_checkpoint("dense_tied"))
    for folder, said in ((base.folder, "config.json"), (tmp_path / "absent", "It is no folder")):
        with pytest.raises(ModelNotFoundError, match=f"has no adapter_config.json, so it is no adapter. .*{said}"):
            with_adapter(base, folder)
    folder = edited()
    (folder / ADAPTER_WEIGHTS).rename(folder / "adapter_model.bin")
    with pytest.raises(CheckpointError, match=r"has only pickled weights, adapter_model\.bin"):
        with_adapter(base, folder)
    for wrong in (5, [5], b"x", {"a": 1}, [None]):
        with pytest.raises(InvalidParameterError, match=r"lora is .*; allowed: an adapter's folder"):
            with_adapters(base, wrong)


@pytest.mark.parametrize("name", [ADAPTER_CONFIG, ADAPTER_WEIGHTS])
def test_nothing_outside_the_folder_is_read(name, edited, tiny_checkpoint, tmp_path):
    folder = edited()
    (folder / name).rename(tmp_path / name)
    (folder / name).symlink_to(tmp_path / name)
    with pytest.raises(CheckpointError, match="outside the folder; it is not opened"):
        with_adapter(open_checkpoint(tiny_checkpoint("dense_tied")), folder)


def test_the_identity_is_of_both_the_model_and_the_adapter(edited, tiny_checkpoint, train):
    base, folder = open_checkpoint(tiny_checkpoint("dense_tied")), edited()
    seen = {base.identity, with_adapter(base, folder).identity}
    assert with_adapter(base, folder).identity in seen and len(seen) == 2
    config = folder / ADAPTER_CONFIG
    config.write_text(json.dumps(json.loads(config.read_text()) | {"lora_alpha": 13}))
    seen.add(with_adapter(base, folder).identity)
    status = (folder / ADAPTER_WEIGHTS).stat()
    os.utime(folder / ADAPTER_WEIGHTS, ns=(status.st_atime_ns, status.st_mtime_ns + 1_000_000_000))
    seen.add(with_adapter(base, folder).identity)
    copy = Path(shutil.copytree(folder, folder.parent / "copy"))
    seen.add(with_adapters(base, [folder, copy]).identity)
    seen.add(with_adapters(base, [copy, folder]).identity)
    assert len(seen) == 6


def test_a_tied_head_stays_what_it_was_when_only_the_embedding_is_changed(train, tiny_checkpoint):
    base = open_checkpoint(tiny_checkpoint("dense_tied"))
    folder, _ = train("dense_tied", target_modules=["embed_tokens"])
    merged = with_adapter(base, folder)
    assert not merged.config.tie_word_embeddings and list(merged.tensors)[-1] == HEAD
    assert np.array_equal(merged.tensors[HEAD].read(), base.tensors[EMBEDDING].read())
    assert isinstance(merged.tensors[EMBEDDING], MergedTensor)


def test_nothing_is_read_until_a_weight_is(edited, tiny_checkpoint):
    folder = edited()
    merged = with_adapter(open_checkpoint(tiny_checkpoint("dense_tied")), folder)
    (folder / ADAPTER_WEIGHTS).write_bytes(b"")
    with pytest.raises(CheckpointError, match="has shrunk to 0 bytes"):
        merged.tensors["model.layers.0.self_attn.q_proj.weight"].values(0, 4)


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_damaged_adapter_is_an_error_of_ours_or_still_an_adapter(data, damaged):
    base, folder, originals = damaged
    for name, original in originals.items():
        damage = bytearray(original)
        for _ in range(data.draw(st.integers(0, 3))):
            at = data.draw(st.integers(0, min(len(damage), 3000) - 1))
            damage[at : at + data.draw(st.integers(0, 2))] = data.draw(st.binary(max_size=3))
        (folder / name).write_bytes(damage)
    try:
        for tensor in with_adapter(base, folder).tensors.values():
            if isinstance(tensor, MergedTensor):
                tensor.values(0, 1)
    except KaishuError:
        pass


@pytest.fixture
def damaged(edited, tiny_checkpoint):
    folder = edited()
    originals = {name: (folder / name).read_bytes() for name in (ADAPTER_CONFIG, ADAPTER_WEIGHTS)}
    return open_checkpoint(tiny_checkpoint("dense_tied")), folder, originals


# Through LLM, on the CPU kernels.


@pytest.mark.parametrize("weights", ["auto", "int8"])
@pytest.mark.parametrize("case", ["all modules", "an untied embedding", "experts", "a router"])
def test_the_kernels_compute_what_they_do_with_the_model_that_peft_has_merged_and_saved(case, weights, train, tmp_path):
    from tests.tiny_checkpoints import write_byte_tokenizer

    kind, fields = CASES[case]
    folder, theirs = train(kind, **fields)
    base = Path(shutil.copytree(theirs.peft_config["default"].base_model_name_or_path, tmp_path / "base"))
    theirs.merge_and_unload().save_pretrained(tmp_path / "merged")
    for place in (base, tmp_path / "merged"):
        write_byte_tokenizer(place)
    plain = LLM(base, weights=weights, threads=1).logits(IDS)
    expected = LLM(tmp_path / "merged", weights=weights, threads=1).logits(IDS)
    llm = LLM(base, lora=folder, weights=weights, threads=1)
    difference = np.abs(llm.logits(IDS) - expected)  # sums in another order, which may be rounded to the next bfloat16
    assert difference.mean() < 0.002 * np.abs(expected).max() < 0.1 * np.abs(plain - expected).mean()
    assert ("LoRA r=" in llm.description) == (weights == "auto")


def test_an_adapted_model_has_packed_weights_of_its_own(train, tiny_checkpoint, tmp_path, monkeypatch):
    from kaishu.cpu.executor import CpuExecutor

    base = open_checkpoint(tiny_checkpoint("dense_tied"))
    folder, _ = train("dense_tied", target_modules=["q_proj"])
    batch = pack([SequenceTokens(IDS, 0, range(4), (-1,))])
    rows = []
    for checkpoint in (base, with_adapter(base, folder), base):
        made = CpuExecutor.from_checkpoint(
            checkpoint, weights="stored", threads=1, context_tokens=64, packed_folder=tmp_path / "packed"
        )
        rows.append(made.step(batch))
        made.close()
    assert np.array_equal(rows[0], rows[2]) and not np.array_equal(rows[0], rows[1])
    assert len(list((tmp_path / "packed").iterdir())) == 2
