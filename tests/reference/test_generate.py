"""The reference loop: the same text with every cache, an end where it should be."""

import pytest

from kaishu.reference.caches import ContiguousCache, PagedCache, RecomputeCache
from kaishu.reference.generate import generate
from tests.reference.parity import our_logits, random_ids

CACHES = {
    "recompute": lambda model: RecomputeCache(),
    "contiguous": lambda model: ContiguousCache(model, capacity_tokens=64),
    "paged": lambda model: PagedCache(model, num_pages=8, page_tokens=8),
}


@pytest.mark.parametrize("cache", CACHES)
def test_each_token_is_the_likeliest_after_the_text_so_far(cache, tiny_model):
    model = tiny_model("dense_untied")
    text = random_ids(320, 7)
    for token in generate(model, tuple(text), CACHES[cache](model), max_tokens=30, end_tokens=()):
        assert token == our_logits(model, text)[-1].argmax()
        text.append(token)
    assert len(text) == 37


@pytest.mark.parametrize("cache", CACHES)
def test_any_end_token_stops_and_is_not_yielded(cache, tiny_model):
    model = tiny_model("dense_untied")
    prompt = random_ids(320, 7)
    free = list(generate(model, prompt, CACHES[cache](model), max_tokens=20, end_tokens=()))
    end = free[6]
    found = list(generate(model, prompt, CACHES[cache](model), max_tokens=20, end_tokens={9999, end}))
    assert found == free[: free.index(end)]


def test_the_models_own_end_tokens_are_the_default(tiny_model):
    model = tiny_model("dense_untied")
    answers = iter([5, 6, model.config.eos_token_ids[-1], 7])
    found = generate(model, [1, 2], RecomputeCache(), max_tokens=9, choose=lambda logits: next(answers))
    assert list(found) == [5, 6]


def test_choose_sees_the_logits_of_the_last_token(tiny_model):
    model = tiny_model("dense_untied")
    seen = []

    def least_likely(logits):
        seen.append(logits)
        return int(logits.argmin())

    [token] = generate(model, [1, 2, 3], RecomputeCache(), max_tokens=1, choose=least_likely)
    assert token == our_logits(model, [1, 2, 3])[-1].argmin() and seen[0].shape == (320,)


def test_tokens_are_computed_only_as_they_are_taken(tiny_model):
    calls = []
    text = generate(
        tiny_model("dense_untied"), [1], RecomputeCache(), max_tokens=9, choose=lambda logits: calls.append(1) or 3
    )
    next(text), next(text)
    assert len(calls) == 2


@pytest.mark.parametrize(
    "cache, fed", [("recompute", [7, 8, 9, 10]), ("contiguous", [7, 1, 1, 1]), ("paged", [7, 1, 1, 1])]
)
def test_a_cache_that_remembers_is_fed_each_token_once(cache, fed, tiny_model, monkeypatch):
    model = tiny_model("dense_untied")
    kept, rows = CACHES[cache](model), []
    append = kept.append

    def counting(layer, batch, keys, values):
        if layer == 0:
            rows.append(len(keys))
        return append(layer, batch, keys, values)

    monkeypatch.setattr(kept, "append", counting)
    list(generate(model, random_ids(320, 7), kept, max_tokens=4, end_tokens=()))
    assert rows == fed
