"""How a ragged batch is cut into pieces: every cut gives the same bits, and every sequence its own pieces."""

from __future__ import annotations

import numpy as np
import pytest

from kaishu.batch import SequenceTokens, pack
from kaishu.cpu.pages import SEGMENT
from kaishu.cpu.target import current_target
from tests.cpu.packed_models import activations_after, assert_same_bits, logits_of
from tests.reference.parity import random_ids

ONE_LAYER = {"dtype": "bfloat16", "num_hidden_layers": 1, "max_position_embeddings": 1024}


def attended(executor, ids, start, pages):
    """[t, H·d]: one layer's attended rows of the tokens from `start` on."""
    executor.step(pack([SequenceTokens(ids, start, pages, ())]))
    return activations_after(executor, "attended", len(ids), executor._layout.config.query_size)


@pytest.mark.parametrize(
    "kind, options",
    [
        ("dense_untied", {}),
        ("dense_untied", {"num_attention_heads": 6}),
        ("multi_query", {}),
        ("sliding_window", {"max_window_layers": 0, "sliding_window": 300}),
        ("sliding_window", {"max_window_layers": 0}),
    ],
    ids=str,
)
def test_segments_joined_afterwards_are_the_tile_that_walked_them(kind, options, packed, start):
    """The last new tokens, few enough to be cut by segments or too many for that, up to the edges of segments."""
    executor = start(packed(kind, **ONE_LAYER, **options), threads=2)
    pages, ids = range(20), random_ids(256, 600)
    for end in (SEGMENT - 1, SEGMENT, SEGMENT + 1, 2 * SEGMENT, 2 * SEGMENT + 1, 600):
        whole = attended(executor, ids[:end], 0, pages)
        for count in range(1, current_target().tokens + 2):
            own = attended(executor, ids[end - count : end], end - count, pages)
            assert_same_bits(own, whole[-count:], f"the last {count} of {end}:")


@pytest.mark.parametrize("threads", [1, 3])
def test_many_sequences_of_every_shape_share_a_step_and_none_sees_another(threads, packed, start):
    """Sixty in one step: prompts from the beginning, chunks and single tokens in the midst of a text."""
    model = packed("dense_untied", dtype="bfloat16", num_hidden_layers=2, max_position_embeddings=1024)
    generator = np.random.default_rng(5)
    lengths = [*generator.integers(1, 80, 50), *generator.integers(250, 530, 10)]
    texts = [random_ids(256, int(length), seed) for seed, length in enumerate(lengths)]
    alone = start(model, num_pages=20)
    expected = [logits_of(alone, ids)[-1] for ids in texts]

    executor = start(model, threads=threads, num_pages=400)
    free = generator.permutation(400).tolist()
    held = [[free.pop() for _ in range(-(-len(ids) // 32))] for ids in texts]
    done = [int(generator.choice([0, len(ids) - 1, len(ids) // 2])) for ids in texts]
    before = [SequenceTokens(ids[:n], 0, own, ()) for ids, n, own in zip(texts, done, held, strict=True) if n]
    executor.step(pack(before))
    order = generator.permutation(len(texts)).tolist()
    logits = executor.step(pack([SequenceTokens(texts[i][done[i] :], done[i], held[i]) for i in order]))
    assert_same_bits(logits, np.stack([expected[i] for i in order]))


def test_segments_outside_the_window_leave_no_trace(packed, start):
    """Whatever is in pages that no query sees any more, a whole segment of them: NaN, to be sure."""
    model = packed("sliding_window", **ONE_LAYER, max_window_layers=0, sliding_window=40)
    executor, pages, ids = start(model), range(20), random_ids(256, 600)
    whole = attended(executor, ids, 0, pages)
    attended(executor, ids[:560], 0, pages)
    executor._page_memory[: SEGMENT // 32 * int(executor._pages["page_size"])] = 0x7FC1
    assert_same_bits(attended(executor, ids[560:], 560, pages), whole[560:], "tiles:")
    assert_same_bits(attended(executor, ids[599:], 599, pages), whole[599:], "segments:")
