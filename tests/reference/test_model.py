"""How a model is built: which tensors, how often, in which dtype, on which device; and what an observer sees."""

from pathlib import Path

import pytest
import torch

from kaishu.batch import SequenceTokens, pack
from kaishu.config import ModelConfig
from kaishu.errors import InvalidParameterError
from kaishu.reference.caches import RecomputeCache
from kaishu.reference.model import Model
from tests.memory import run_measured, write_large_checkpoint
from tests.reference.parity import CheckpointInMemory, our_logits, our_model, random_ids, their_logits, their_model


def in_memory(folder: Path) -> CheckpointInMemory:
    from safetensors.torch import load_file

    return CheckpointInMemory(ModelConfig.from_folder(folder), load_file(folder / "model.safetensors"))


@pytest.mark.parametrize("kind", ["dense_tied", "dense_untied", "moe", "qwen2", "llama_biased"])
def test_each_tensor_is_read_exactly_once(kind, tiny_checkpoint):
    checkpoint = in_memory(tiny_checkpoint(kind))
    Model.from_checkpoint(checkpoint)
    assert sorted(checkpoint.reads) == sorted(checkpoint.tensors)


def test_a_tied_head_is_the_embedding_itself(tiny_model):
    assert tiny_model("dense_tied").lm_head.weight is tiny_model("dense_tied").embed_tokens
    untied = tiny_model("dense_untied")
    assert not torch.equal(untied.lm_head.weight, untied.embed_tokens)


@pytest.mark.parametrize("kind", ["dense_tied", "moe_tied"])
@pytest.mark.parametrize("differs", [True, False])
def test_a_tied_model_that_also_stores_a_head_computes_what_transformers_computes(kind, differs, own_checkpoint):
    from safetensors.torch import load_file, save_file

    folder = own_checkpoint(kind)
    tensors = load_file(folder / "model.safetensors")
    embedding = tensors["model.embed_tokens.weight"]
    tensors["lm_head.weight"] = torch.randn(embedding.shape) if differs else embedding.clone()
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    ids = random_ids(320, 9)
    expected = their_logits(their_model(folder), ids)
    torch.testing.assert_close(our_logits(our_model(folder), ids), expected, rtol=0, atol=1e-4)


def test_frequencies_stay_float32_in_a_bfloat16_model(tiny_model):
    low, full = tiny_model("dense_tied", dtype="bfloat16"), tiny_model("dense_tied")
    assert low.rope_frequencies.dtype == torch.float32
    assert torch.equal(low.rope_frequencies, full.rope_frequencies)


@pytest.mark.parametrize(
    "field, value", [("device", "abacus"), ("device", "cuda:977"), ("dtype", "float64"), ("attention", "flash")]
)
def test_a_choice_that_does_not_exist_names_its_field(field, value, tiny_checkpoint):
    with pytest.raises(InvalidParameterError, match=f"{field} is '{value}'; allowed: ") as caught:
        Model.from_checkpoint(in_memory(tiny_checkpoint("dense_tied")), **{field: value})
    assert caught.value.field == field


def test_an_observer_sees_every_stage_in_order_and_changes_nothing(tiny_model):
    model, seen = tiny_model("moe"), {}
    batch = pack([SequenceTokens([1, 2, 3, 4], 0, (), wants_logits=range(4))])
    logits = model.forward(batch, RecomputeCache(), observe=seen.__setitem__)
    layers = [f"layers.{i}{part}" for i in range(3) for part in (".attention", ".feed_forward", "")]
    assert list(seen) == ["embed_tokens", *layers, "norm", "logits"]
    torch.testing.assert_close(
        seen["layers.1"], seen["layers.0"] + seen["layers.1.attention"] + seen["layers.1.feed_forward"]
    )
    assert seen["logits"] is logits and torch.equal(logits, model.forward(batch, RecomputeCache()))


@pytest.mark.parametrize("dtype, bytes_each", [("float32", 4), ("bfloat16", 2)])
def test_loading_takes_the_memory_of_the_weights_and_of_one_tensor(tmp_path, dtype, bytes_each):
    """In a process of its own, against its peak once torch is there: converting all before dropping any shows."""
    write_large_checkpoint(tmp_path)
    program = f"""
import torch
from kaishu.checkpoint import open_checkpoint
from kaishu.reference.model import Model
torch.ones(8, 8, dtype=torch.float16).to(torch.{dtype}).sum()
before = peak_mb()
checkpoint = open_checkpoint(Path({str(tmp_path)!r}))
model = Model.from_checkpoint(checkpoint, dtype={dtype!r})
print(checkpoint.num_parameters, peak_mb() - before)
"""
    # With a threshold of its own malloc keeps no large pieces: else 30 MB of holes would be counted, more or less.
    parameters, grown = run_measured(program, MALLOC_MMAP_THRESHOLD_="500000")
    weights = int(parameters) * bytes_each / 2**20
    assert weights < float(grown) < weights + 20  # MB: a tensor's 4 MB, its copy, and what Python and torch add


def test_no_gradient_is_recorded(tiny_model):
    model = tiny_model("dense_tied")
    assert not model.forward(pack([SequenceTokens([1], 0)]), RecomputeCache()).requires_grad


@pytest.mark.gpu
@pytest.mark.skipif(not (torch.cuda.is_available() or torch.backends.mps.is_available()), reason="needs an accelerator")
@pytest.mark.parametrize("attention", ["explicit", "sdpa"])
@pytest.mark.parametrize("kind", ["dense_tied", "moe", "sliding_window"])
def test_an_accelerator_gives_the_cpus_logits(kind, attention, tiny_checkpoint, tiny_model):
    from kaishu.reference.executor import ReferenceExecutor

    device = "cuda" if torch.cuda.is_available() else "mps"
    executor = ReferenceExecutor(our_model(tiny_checkpoint(kind), device=device, attention=attention), num_pages=4)
    ids = random_ids(320, 40)
    found = executor.step(pack([SequenceTokens(ids, 0, [3, 0, 2], wants_logits=range(40))]))
    torch.testing.assert_close(torch.from_numpy(found), our_logits(tiny_model(kind), ids), rtol=0, atol=1e-3)
