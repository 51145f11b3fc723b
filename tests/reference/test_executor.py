"""The executor's contract: the same logits and tokens whoever shares the step; a failure stays with its own row."""

import dataclasses

import numpy as np
import pytest
import torch

from kaishu.batch import Executor, KeepsPages, SequenceTokens, pack
from kaishu.reference.executor import ReferenceExecutor
from tests.reference.parity import our_logits, random_ids

PROMPTS = [3, 17, 64]  # shorter than a page, a page and a tail, four whole pages
NEW_TOKENS = 24
CLOSE = {"rtol": 0, "atol": 3e-5}


class Text:
    """A sequence as an engine would keep it: its tokens, how many are computed, its pages."""

    def __init__(self, ids, pages, arrives=0, chunk=1000):
        self.ids, self.pages, self.arrives, self.chunk = list(ids), pages, arrives, chunk
        self.prompt_length, self.computed, self.logits = len(ids), 0, []

    @property
    def is_done(self):
        return len(self.logits) == NEW_TOKENS

    def next_piece(self):
        return SequenceTokens(self.ids[self.computed : self.computed + self.chunk], self.computed, self.pages)


def run_together(executor, texts):
    """Greedy decoding of all texts, each from the step in which it arrives, prompts in chunks."""
    step = 0
    while not all(text.is_done for text in texts):
        present = [text for text in texts if text.arrives <= step and not text.is_done]
        step += 1
        if not present:
            continue
        pieces = [text.next_piece() for text in present]
        for text, piece, logits in zip(present, pieces, executor.step(pack(pieces)), strict=True):
            text.computed += len(piece.token_ids)
            if text.computed == len(text.ids):
                text.logits.append(logits)
                text.ids.append(int(logits.argmax()))
    return [(text.ids[text.prompt_length :], np.stack(text.logits)) for text in texts]


def shuffled_pages(count, page_tokens=16):
    order = np.random.default_rng(1).permutation(32)
    needed = [-(-(n + NEW_TOKENS) // page_tokens) for n in PROMPTS]
    ends = np.cumsum(needed)
    return [order[end - n : end].tolist() for n, end in zip(needed, ends, strict=True)][:count]


@pytest.mark.parametrize("attention", ["explicit", "sdpa"])
@pytest.mark.parametrize("kind", ["dense_untied", "moe", "sliding_window"])
def test_neighbours_chunks_and_arrivals_never_change_a_text(kind, attention, tiny_model):
    model = tiny_model(kind, attention=attention)
    prompts = [random_ids(model.config.vocab_size, n, n) for n in PROMPTS]
    pages = shuffled_pages(3)

    def run(chunks=(1000, 1000, 1000), arrivals=(0, 0, 0), order=(0, 1, 2)):
        executor = ReferenceExecutor(model, num_pages=32)
        texts = [Text(prompts[i], pages[i], arrivals[i], chunks[i]) for i in order]
        return dict(zip(order, run_together(executor, texts), strict=True))

    alone = {i: run(order=(i,))[i] for i in range(3)}
    ways = {
        "together": run(),
        "the other way round": run(order=(2, 1, 0)),
        "arriving midway": run(arrivals=(9, 4, 0)),
        "in chunks": run(chunks=(1, 5, 16)),
        "in chunks of a page and one, arriving midway": run(chunks=(2, 17, 15), arrivals=(3, 0, 7)),
    }
    for i in range(3):
        tokens, logits = alone[i]
        assert len(set(tokens)) > 3, "a text that repeats itself proves little"
        for way, found in ways.items():
            assert found[i][0] == tokens, f"prompt of {PROMPTS[i]}, {way}"
            np.testing.assert_allclose(found[i][1], logits, **CLOSE, err_msg=way)


@pytest.mark.parametrize("kind", ["dense_untied", "moe"])
@pytest.mark.parametrize("attention", ["explicit", "sdpa"])
@pytest.mark.parametrize("poison", [float("nan"), float("inf"), -float("inf")])
def test_a_row_that_is_not_a_number_leaves_its_neighbours_as_they_are_alone(kind, attention, poison, tiny_model):
    model = tiny_model(kind, attention=attention)
    poisoned_id = 300
    embedding = model.embed_tokens.clone()
    embedding[poisoned_id] = poison
    spoilt = dataclasses.replace(model, embed_tokens=embedding)  # the head is not tied: it stays whole
    prompts = [[i % 256 for i in random_ids(256, n, n)] for n in PROMPTS]
    pages = shuffled_pages(3)
    solo = ReferenceExecutor(spoilt, num_pages=32)
    expected = [solo.step(pack([SequenceTokens(prompts[i], 0, pages[i])])) for i in (0, 2)]

    executor = ReferenceExecutor(spoilt, num_pages=32)
    bad = [*prompts[1][:5], poisoned_id, *prompts[1][5:]]
    found = executor.step(
        pack([SequenceTokens(ids, 0, own) for ids, own in zip([prompts[0], bad, prompts[2]], pages, strict=True)])
    )
    assert np.isnan(found[1]).all()
    np.testing.assert_allclose(found[[0, 2]], np.concatenate(expected), **CLOSE)

    # The pages of the failed text go to another, which must not meet what they hold.
    again = executor.step(pack([SequenceTokens(prompts[0], 0, pages[1])]))
    np.testing.assert_allclose(again, expected[0], **CLOSE)


def test_logits_come_for_the_rows_asked_in_the_order_asked(tiny_model):
    model = tiny_model("dense_tied")
    executor = ReferenceExecutor(model, num_pages=8, page_tokens=4)
    first, second = random_ids(320, 6, 1), random_ids(320, 5, 2)
    batch = pack([SequenceTokens(first, 0, [0, 1], wants_logits=(4, 0)), SequenceTokens(second, 0, [2, 3])])
    logits = executor.step(batch)
    expected = torch.cat([our_logits(model, first)[[4, 0]], our_logits(model, second)[[-1]]]).numpy()
    assert logits.dtype == np.float32
    np.testing.assert_allclose(logits, expected, **CLOSE)


@pytest.mark.parametrize("kind", ["dense_untied", "moe", "qwen2"])
def test_the_hidden_state_is_transformers_last_one(kind, tiny_model, tiny_checkpoint):
    import transformers

    executor, ids = ReferenceExecutor(tiny_model(kind), num_pages=8), random_ids(320, 40)
    their_model = transformers.AutoModel.from_pretrained(
        tiny_checkpoint(kind), attn_implementation="eager", experts_implementation="eager"
    )
    with torch.inference_mode():
        expected = their_model(torch.tensor([ids])).last_hidden_state[0, [39, 0, 7]].numpy()
    found = executor.hidden(pack([SequenceTokens(ids, 0, range(3), wants_logits=(-1, 0, 7))]))
    assert found.dtype == np.float32 and np.abs(expected).max() > 1
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-4)
    executor.hidden(pack([SequenceTokens(ids[:25], 0, (4, 6, 5), wants_logits=())]))
    rest = executor.hidden(pack([SequenceTokens([9], 0, [7]), SequenceTokens(ids[25:], 25, (4, 6, 5))]))
    np.testing.assert_allclose(rest[1], expected[0], rtol=0, atol=1e-4)


def test_a_chunk_that_wants_no_logits_gets_none(tiny_model):
    executor = ReferenceExecutor(tiny_model("dense_tied"), num_pages=4)
    assert executor.step(pack([SequenceTokens([1, 2, 3], 0, [1], wants_logits=())])).shape == (0, 320)


def test_it_satisfies_the_executor_protocol(tiny_model):
    executor: Executor = ReferenceExecutor(tiny_model("dense_tied"), num_pages=5, page_tokens=8)
    assert (executor.num_pages, executor.page_tokens, executor.vocab_size) == (5, 8, 320)


def test_bfloat16_logits_arrive_as_float32(tiny_model):
    executor = ReferenceExecutor(tiny_model("dense_tied", dtype="bfloat16"), num_pages=4)
    assert executor.step(pack([SequenceTokens([1, 2, 3], 0, [1])])).dtype == np.float32


def test_threads_are_set_only_when_asked(tiny_model):
    before = torch.get_num_threads()
    ReferenceExecutor(tiny_model("dense_tied"), num_pages=1)
    assert torch.get_num_threads() == before
    ReferenceExecutor(tiny_model("dense_tied"), num_pages=1, threads=1)
    assert torch.get_num_threads() == 1
    torch.set_num_threads(before)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_pages_carried_to_another_executor_go_on_there(dtype, tiny_model):
    model = tiny_model("dense_untied", dtype=dtype)
    here, there = ReferenceExecutor(model, 100), ReferenceExecutor(model, 100)
    assert isinstance(here, KeepsPages)
    ids = random_ids(256, 35, 3)
    here.step(pack([SequenceTokens(ids[:32], 0, [7, 80])]))
    expected = here.step(pack([SequenceTokens(ids[32:], 32, [7, 80, 3])]))
    contents = here.read_pages([7, 80])
    assert contents.shape == (2, here.page_bytes)
    there.write_pages([99, 2], contents)
    np.testing.assert_array_equal(there.read_pages([2, 99]), contents[::-1])
    np.testing.assert_array_equal(there.step(pack([SequenceTokens(ids[32:], 32, [99, 2, 0])])), expected)
