"""Parity with transformers. The numbers behind these limits: python -m tests.reference.parity."""

import pytest

from kaishu.reference.caches import ContiguousCache, PagedCache, RecomputeCache
from kaishu.reference.model import Model
from tests.reference import parity
from tests.tiny_checkpoints import KINDS

LIMIT = 1e-4  # max |Δlogit| in float32


@pytest.mark.parametrize("kind", KINDS)
def test_float32_logits_and_greedy_tokens_equal_transformers(kind, tiny_checkpoint):
    folder = tiny_checkpoint(kind)
    theirs, ours = parity.their_model(folder), parity.our_model(folder)
    ids = parity.random_ids(ours.config.vocab_size, parity.POSITIONS)
    expected = parity.their_logits(theirs, ids)
    assert (parity.our_logits(ours, ids) - expected).abs().max() <= LIMIT
    assert (parity.our_logits(ours.with_attention("sdpa"), ids) - expected).abs().max() <= LIMIT

    tokens = parity.their_greedy_tokens(theirs, ids)
    for cache in (RecomputeCache(), ContiguousCache(ours, capacity_tokens=128), PagedCache(ours, num_pages=8)):
        assert parity.our_greedy_tokens(ours, ids, cache=cache) == tokens


def test_qwen3_0_6bs_exact_shape_equals_transformers():
    theirs, checkpoint = parity.qwen3_0_6b()
    ours = Model.from_checkpoint(checkpoint, attention="explicit")
    ids = parity.random_ids(ours.config.vocab_size, parity.POSITIONS)
    expected = parity.their_logits(theirs, ids)
    assert expected.abs().max() > 1, "logits all near zero would prove little"
    assert (parity.our_logits(ours, ids) - expected).abs().max() <= LIMIT
    tokens = parity.their_greedy_tokens(theirs, ids)
    assert len(set(tokens)) > 3, "a text that repeats itself proves little"
    assert parity.our_greedy_tokens(ours, ids) == tokens


@pytest.mark.parametrize("kind", ["dense_tied", "dense_untied", "odd_head_dim", "qwen2", "llama", "yarn", "moe"])
def test_bfloat16_errors_are_no_larger_than_transformers(kind):
    """Both against float32 on the same bfloat16 weights; four seeds, 64 positions, all logits.

    Both round in the same places, so on the machines we have seen the errors are equal to the last bit. The margin (2 %
    of the mean, 10 % of the largest) is for machines where torch takes another kernel for another shape of matrix.
    """
    errors = parity.bfloat16_errors(kind, range(4))
    assert errors.theirs_mean > 1e-3, "the comparison needs something to compare"
    assert errors.ours_mean <= 1.02 * errors.theirs_mean
    assert errors.ours_max <= 1.10 * errors.theirs_max
