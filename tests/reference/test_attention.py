"""Both forms of attention against the equation written out in float64, one head and one query at a time."""

import numpy as np
import pytest
import torch

from kaishu.reference.attention import attend_explicitly, attend_with_sdpa, visible_keys

FORMS = [attend_explicitly, attend_with_sdpa]


def attention_by_hand(query, keys, values, start, window):
    """softmax(q·k / √d) over the visible keys, in float64, with no matrix product."""
    tokens, heads, head_dim = query.shape
    group = heads // keys.shape[1]
    gathered = np.zeros_like(query)
    for t in range(tokens):
        position = start + t
        first = 0 if window is None else max(0, position + 1 - window)
        for head in range(heads):
            seen = range(first, position + 1)
            scores = np.array([query[t, head] @ keys[s, head // group] / np.sqrt(head_dim) for s in seen])
            shares = np.exp(scores - scores.max()) / np.exp(scores - scores.max()).sum()
            gathered[t, head] = sum(share * values[s, head // group] for share, s in zip(shares, seen, strict=True))
    return gathered


@pytest.mark.parametrize("attend", FORMS)
@pytest.mark.parametrize("heads, kv_heads, head_dim", [(4, 2, 32), (6, 3, 24), (4, 1, 16), (2, 2, 8)])
@pytest.mark.parametrize("tokens, start, window", [(5, 0, None), (1, 11, None), (4, 7, 5), (9, 0, 1), (3, 2, 100)])
def test_attention_equals_the_equation(attend, heads, kv_heads, head_dim, tokens, start, window, rng):
    context = start + tokens
    query = rng.normal(size=(tokens, heads, head_dim))
    keys, values = rng.normal(size=(2, context, kv_heads, head_dim))
    visible = visible_keys(torch.arange(start, context, dtype=torch.int32), context, window)
    found = attend(*(torch.tensor(x).float() for x in (query, keys, values)), visible)
    expected = attention_by_hand(query, keys, values, start, window)
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-4, atol=2e-6)


@pytest.mark.parametrize("attend", FORMS)
def test_scores_far_from_zero_do_not_overflow(attend):
    query, keys = torch.full((1, 2, 8), 300.0), torch.full((3, 2, 8), 300.0)
    values = torch.arange(3.0)[:, None, None].expand(3, 2, 8)
    gathered = attend(query, keys, values, torch.ones(1, 3, dtype=torch.bool))
    torch.testing.assert_close(gathered, torch.ones(1, 2, 8))


def test_a_window_of_three_shows_a_query_itself_and_two_before():
    visible = visible_keys(torch.tensor([3, 4], dtype=torch.int32), 5, 3)
    assert visible.int().tolist() == [[0, 1, 1, 1, 0], [0, 0, 1, 1, 1]]


def test_keys_are_not_copied_for_the_heads_that_share_them():
    """With 64 query heads on one key head, copies of the keys would be 64 times their memory."""
    query, keys = torch.randn(1, 64, 64), torch.randn(4096, 1, 64)
    visible = torch.ones(1, 4096, dtype=torch.bool)
    for attend in FORMS:
        with torch.profiler.profile(profile_memory=True) as profile:
            attend(query, keys, keys, visible)
        largest = max(event.cpu_memory_usage for event in profile.events())
        assert largest <= 2 * keys.nbytes
