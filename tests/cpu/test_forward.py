"""The whole step against the reference model with the same weights, for every family and kind of weights.

Three claims, from the strictest to the widest:
- With the executor's roundings written into the reference (rounded_reference.py), nothing but float32 rounding is left,
  until that rounding pushes an activation over the middle between two int8 or bfloat16 numbers. So most of many short
  texts agree to float32 rounding, and the rest differ by less than the roundings themselves cost.
- What int8 activations cost altogether is what the rounded reference says that they cost.
- With bfloat16 weights the error against float32 is less than that of torch in bfloat16.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

from kaishu.batch import SequenceTokens, pack
from kaishu.checkpoint import open_checkpoint
from kaishu.cpu.layout import ROUNDED, WHOLE
from kaishu.reference.caches import RecomputeCache
from kaishu.reference.model import Model
from tests.cpu.packed_models import PackedModel, logits_of, packed_model
from tests.cpu.rounded_reference import Bfloat16Cache, attend_by_segments, rounding_model
from tests.cpu.stored_groups import stored_model
from tests.reference.parity import our_logits, our_model, random_ids
from tests.tiny_checkpoints import KINDS

WEIGHTS = ["bf16", "int8", "int4", "int4_minimum"]
SHORT_TEXTS = [random_ids(320, 1 + seed % 3, seed) for seed in range(96)]


@torch.inference_mode()
def reference_logits(model, texts, cache):
    """[all tokens, V] float32: every text's positions, one text after another."""
    pieces = [SequenceTokens(ids, 0, wants_logits=range(len(ids))) for ids in texts]
    return model.forward(pack(pieces), cache).as_subclass(torch.Tensor).numpy()


def exact_and_rounded(model, texts, monkeypatch):
    """The reference's logits in float32, and with the executor's roundings."""
    reference = model.reference()
    exact = reference_logits(reference, texts, RecomputeCache())
    with monkeypatch.context() as rounding:
        rounding.setattr("kaishu.reference.attention.attend_explicitly", attend_by_segments)
        return exact, reference_logits(rounding_model(reference, model.kinds), texts, Bfloat16Cache())


def root_mean_square(values):
    return float(np.sqrt(np.square(values, dtype=np.float64).mean()))


def assert_close(found, exact, rounded):
    """Most rows differ by float32 rounding; measured: the median by 1e-6 to 5e-6, 77 to 100 % by less than 5e-5."""
    assert np.quantile(np.abs(found - rounded).max(-1), 0.6) < 2e-5
    assert root_mean_square(found - rounded) < 0.8 * root_mean_square(rounded - exact)


@pytest.mark.parametrize("weights", WEIGHTS)
@pytest.mark.parametrize("kind", KINDS)
def test_short_texts_agree_with_the_rounded_reference_to_float32_rounding(kind, weights, packed, start, monkeypatch):
    model = packed(kind, weights, dtype="bfloat16")
    executor = start(model, num_pages=len(SHORT_TEXTS))
    pieces = [SequenceTokens(ids, 0, (page,), range(len(ids))) for page, ids in enumerate(SHORT_TEXTS)]
    found = executor.step(pack(pieces))
    exact, rounded = exact_and_rounded(model, SHORT_TEXTS, monkeypatch)
    assert_close(found, exact, rounded)


LONG = pytest.mark.parametrize(
    "kind, options",
    [
        ("dense_untied", {}),
        ("sliding_window", {"sliding_window": 300, "max_window_layers": 0}),
        ("sliding_window", {"max_window_layers": 0}),
        ("yarn", {"max_position_embeddings": 2048}),
        ("moe", {}),
        ("qwen2", {}),
    ],
    ids=str,
)


@pytest.mark.parametrize("weights", WEIGHTS)
@LONG
def test_contexts_of_several_segments_agree_in_one_layer(kind, options, weights, packed, start, monkeypatch):
    """In one, because what passes a middle in the first of several changes all that follows. With int8 activations one
    key of another rounding is enough to change some of every later row's; what is left then is its cost, not more."""
    options = {"max_position_embeddings": 1024, "num_hidden_layers": 1, **options}
    model, ids = packed(kind, weights, dtype="bfloat16", **options), random_ids(320, 600)
    found = logits_of(start(model, threads=2), ids)
    exact, rounded = exact_and_rounded(model, [ids], monkeypatch)
    cost = root_mean_square(rounded - exact)
    assert weights != "bf16" or np.quantile(np.abs(found - rounded).max(-1), 0.6) < 0.02 * cost
    assert root_mean_square(found - rounded) < 0.75 * cost


@pytest.mark.parametrize("weights", WEIGHTS)
@LONG
def test_contexts_of_several_segments_cost_what_their_roundings_cost(
    kind, options, weights, packed, start, monkeypatch
):
    options = {"max_position_embeddings": 1024, **options}
    model, ids = packed(kind, weights, dtype="bfloat16", **options), random_ids(320, 600)
    found = logits_of(start(model, threads=2), ids)
    exact, rounded = exact_and_rounded(model, [ids], monkeypatch)
    cost = root_mean_square(rounded - exact)
    assert 0.8 * cost < root_mean_square(found - exact) < 1.2 * cost
    assert root_mean_square(found - rounded) < cost


@pytest.mark.parametrize(
    "plain_ends", [(), ("0.self_attn.q_proj.weight", "o_proj.weight", "0.up_proj.weight")], ids=str
)
@pytest.mark.parametrize("kind", ["dense_tied", "dense_untied", "moe", "qwen2"])
def test_a_model_that_is_stored_in_several_formats_agrees_with_the_reference_of_the_same(
    kind, plain_ends, tiny_checkpoint, kernels, rng, monkeypatch
):
    """The reference reads the same tensors by itself, as float32. An untied embedding is kept in bfloat16, so that is
    what it is here; and so may be other matrices, beside quantised ones that read the same activations."""
    sizes = {"moe_intermediate_size": 64} if kind == "moe" else {}  # whole groups
    checkpoint = open_checkpoint(tiny_checkpoint(kind, dtype="bfloat16", **sizes))
    plain = [] if checkpoint.config.tie_word_embeddings else ["model.embed_tokens.weight"]
    plain += [name for name in checkpoint.tensors if name.endswith(plain_ends)]
    checkpoint = stored_model(checkpoint, rng, plain=plain)
    model = packed_model(checkpoint, kernels, "stored")
    assert {linear.kind for linear in model.layout.packed} >= {"int8", "int4", "int4_minimum"}
    assert model.layout.forms_read == (WHOLE | ROUNDED if plain_ends else WHOLE)
    executor = model.executor(num_pages=len(SHORT_TEXTS))
    pieces = [SequenceTokens(ids, 0, (page,), range(len(ids))) for page, ids in enumerate(SHORT_TEXTS)]
    found = executor.step(pack(pieces))
    executor.close()
    monkeypatch.setattr(PackedModel, "reference", lambda _: Model.from_checkpoint(checkpoint, attention="explicit"))
    assert_close(found, *exact_and_rounded(model, SHORT_TEXTS, monkeypatch))


def divergence(exact, found):
    """KL, the mean over all rows, in nats."""
    true, other = (torch.from_numpy(logits).double().log_softmax(-1) for logits in (exact, found))
    return float(torch.nn.functional.kl_div(other, true, log_target=True, reduction="batchmean"))


@pytest.mark.parametrize("kind", KINDS)
def test_bfloat16_weights_are_closer_to_float32_than_torch_in_bfloat16(kind, packed, start, tiny_checkpoint):
    model, ids = packed(kind, dtype="bfloat16"), random_ids(320, 120)
    exact = our_logits(model.reference(), ids).numpy()
    torch_s = our_logits(our_model(tiny_checkpoint(kind, dtype="bfloat16"), dtype="bfloat16"), ids).numpy()
    found = logits_of(start(model), ids)
    assert np.abs(found - exact).mean() < 0.8 * np.abs(torch_s - exact).mean()
    assert divergence(exact, found) < 0.8 * divergence(exact, torch_s)


@pytest.mark.parametrize("head", WEIGHTS)
@pytest.mark.parametrize("kind", ["dense_tied", "dense_untied"])
def test_the_head_may_be_of_another_kind_and_feeds_the_embedding_where_tied(kind, head, packed, start, monkeypatch):
    model = packed(kind, "int8" if head == "bf16" else "bf16", head, dtype="bfloat16")
    executor = start(model, num_pages=len(SHORT_TEXTS))
    pieces = [SequenceTokens(ids, 0, (page,), range(len(ids))) for page, ids in enumerate(SHORT_TEXTS)]
    found = executor.step(pack(pieces))
    exact, rounded = exact_and_rounded(model, SHORT_TEXTS, monkeypatch)
    assert_close(found, exact, rounded)


@pytest.mark.parametrize("weights", ["bf16", "int8"])
def test_sizes_that_fill_no_block_are_padded_where_nobody_sees_it(weights, packed, start, monkeypatch):
    sizes = {"vocab_size": 301, "hidden_size": 44, "intermediate_size": 70, "num_attention_heads": 5}
    model = packed("dense_untied", weights, dtype="bfloat16", **sizes, num_key_value_heads=1, head_dim=20)
    texts = [[token % 301 for token in ids] for ids in SHORT_TEXTS]
    executor = start(model, threads=2, num_pages=len(texts))
    pieces = [SequenceTokens(ids, 0, (page,), range(len(ids))) for page, ids in enumerate(texts)]
    found = executor.step(pack(pieces))
    assert found.shape == (sum(map(len, texts)), 301)
    exact, rounded = exact_and_rounded(model, texts, monkeypatch)
    assert_close(found, exact, rounded)


def test_the_stored_checkpoint_in_float32_is_as_close_as_its_rounding_to_bfloat16_allows(
    packed, start, tiny_checkpoint
):
    """From the file to the logits, with nothing of ours in between: float32 weights, transformers' model."""
    from tests.reference.parity import their_logits, their_model

    ids = random_ids(320, 60)
    theirs = their_logits(their_model(tiny_checkpoint("dense_biased")), ids).numpy()
    found = logits_of(start(packed("dense_biased")), ids)
    rounded = our_logits(our_model(tiny_checkpoint("dense_biased"), dtype="bfloat16"), ids).numpy()
    assert np.abs(found - theirs).mean() < np.abs(rounded - theirs).mean()
    assert (found.argmax(-1) == theirs.argmax(-1)).mean() > 0.9
