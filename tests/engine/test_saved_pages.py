"""Pages in a file: what is restored goes on bit for bit, and a file that isn't what was written restores nothing."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from kaishu.engine import saved_pages
from kaishu.engine.core import EngineCore
from kaishu.engine.saved_pages import is_saved_pages, restore_pages, save_pages
from kaishu.errors import SavedPagesError
from tests.engine.engine_runs import alone, core_of, job, lively, outcomes

MODEL = b"the model"
TEXT = [*range(100, 123)]  # with pages of 4: five of them, and three tokens


def core(tokenizer: Any, *, tag: bytes = MODEL, **sizes: Any) -> EngineCore:
    return core_of(lively(tokenizer, **sizes), tokenizer, model_tag=tag, speculation=False)


def computed(tokenizer: Any, token_ids: list[int] = TEXT, **options: Any) -> EngineCore:
    """An engine that has computed a text."""
    made = core(tokenizer, **options)
    outcomes(made, [job(token_ids, max_tokens=1)])
    return made


def cached_tokens(one: EngineCore, token_ids: list[int]) -> int:
    [outcome] = outcomes(one, [job(token_ids, max_tokens=1)])
    assert outcome.end is not None
    return outcome.end.usage.cached_tokens


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "saved.pages"


@pytest.fixture
def saved(byte_tokenizer, file) -> Path:
    """A file with the five full pages of TEXT."""
    save_pages(computed(byte_tokenizer), TEXT, file)
    return file


def test_what_is_restored_need_not_be_computed_again_and_goes_on_bit_for_bit(byte_tokenizer, saved):
    other = core(byte_tokenizer)
    found = restore_pages(other, saved)
    other.check_invariants()
    assert (found.saved_tokens, found.ready_tokens, found.num_bytes) == (20, 20, saved.stat().st_size)
    assert other.pool.num_cached == 5
    wanted = job(TEXT, max_tokens=12, logprobs=3, ignore_eos=True)
    [went_on] = outcomes(other, [wanted])
    assert went_on.end.usage.cached_tokens == 20
    assert sum(len(step.token_ids) for step in other.executor.steps) == 3 + 11
    assert went_on.comparable() == alone(wanted, lively(byte_tokenizer), byte_tokenizer).comparable()


def test_the_file_is_one_that_others_can_read(byte_tokenizer, saved):
    tensors = load_file(saved)
    assert tensors["token_ids"].tolist() == TEXT[:20]
    assert tensors["pages"].view(np.int64).ravel().tolist() == TEXT[:20]  # what a scripted executor keeps
    about = json.loads(tensors["about"].tobytes())
    assert about == {"format": "kaishu pages 1", "model": MODEL.hex(), "form": "scripted", "page_tokens": 4}
    content = b"".join(tensors[name].tobytes() for name in ("token_ids", "about", "pages"))
    assert tensors["sha256"].tobytes() == hashlib.sha256(content).digest()
    with safe_open(saved, "numpy") as opened:
        assert set(opened.keys()) == set(tensors)


def test_only_the_longest_computed_beginning_is_saved(byte_tokenizer, file):
    one = computed(byte_tokenizer)
    assert save_pages(one, [*TEXT[:10], 5, 6, 7, 8], file).saved_tokens == 8
    assert load_file(file)["token_ids"].tolist() == TEXT[:8]
    assert save_pages(one, TEXT, file).saved_tokens == 20  # in place of the other


@pytest.mark.parametrize("token_ids", [[], TEXT[:3], [1, *TEXT]])
def test_a_text_of_which_nothing_is_computed_makes_no_file_and_leaves_none(byte_tokenizer, saved, token_ids):
    one = computed(byte_tokenizer)
    assert save_pages(one, token_ids, saved) is None
    assert list(saved.parent.iterdir()) == []
    assert save_pages(one, token_ids, saved) is None


def test_only_a_file_of_saved_pages_is_replaced(byte_tokenizer, tmp_path):
    one = computed(byte_tokenizer)
    note, weights = tmp_path / "note", tmp_path / "weights"
    note.write_text("precious")
    save_file({"pages": np.zeros(3, np.uint8)}, weights)
    for file in (note, weights, tmp_path):
        for token_ids in (TEXT, [5]):
            with pytest.raises(SavedPagesError, match="exists and is no file of saved pages"):
                save_pages(one, token_ids, file)
    assert note.read_text() == "precious"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["note", "weights"]


def test_a_damaged_file_of_saved_pages_may_be_replaced(byte_tokenizer, saved):
    whole = saved.read_bytes()
    saved.write_bytes(whole[:-7])
    assert is_saved_pages(saved)
    save_pages(computed(byte_tokenizer), TEXT, saved)
    assert saved.read_bytes() == whole


def test_a_place_that_cannot_be_written_or_read_is_named(byte_tokenizer, tmp_path):
    one, missing = computed(byte_tokenizer), tmp_path / "missing" / "x"
    with pytest.raises(SavedPagesError, match=r"missing/x can't be written: No such file"):
        save_pages(one, TEXT, missing)
    with pytest.raises(SavedPagesError, match=r"missing/x can't be read: No such file"):
        restore_pages(one, missing)
    with pytest.raises(SavedPagesError, match="is no file"):
        restore_pages(one, tmp_path)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(SavedPagesError, match="is no file"):
        restore_pages(one, tmp_path / "pipe")


def test_a_full_disk_leaves_the_file_that_was_there(byte_tokenizer, saved, monkeypatch):
    before, one = saved.read_bytes(), computed(byte_tokenizer)

    def full(*_: Any) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(SavedPagesError, match="can't be written: No space left"):
        save_pages(one, TEXT, saved)
    assert saved.read_bytes() == before
    assert len(list(saved.parent.iterdir())) == 1


def test_another_model_form_or_page_size_is_refused_by_name(byte_tokenizer, saved):
    with pytest.raises(SavedPagesError, match="was saved with another model"):
        restore_pages(core(byte_tokenizer, tag=b"another"), saved)
    with pytest.raises(SavedPagesError, match="has pages of another size; here they have 8 tokens"):
        restore_pages(core(byte_tokenizer, page_tokens=8), saved)
    other = core(byte_tokenizer)
    other.executor.page_form = "16 lanes"
    with pytest.raises(SavedPagesError, match=r"another version of Kaishu, or on another kind of processor"):
        restore_pages(other, saved)
    assert other.pool.num_available == other.pool.num_pages and other.pool.num_cached == 0


def test_an_executor_whose_pages_stay_where_they_are_is_named(byte_tokenizer, saved):
    one = computed(byte_tokenizer)

    class Closed:
        num_pages, page_tokens, vocab_size = 4, 4, 10

    one.executor = Closed()
    for call in (lambda: save_pages(one, TEXT, saved), lambda: restore_pages(one, saved)):
        with pytest.raises(SavedPagesError, match="can't be taken out"):
            call()


def sealed(path: Path, tensors: dict[str, Any]) -> None:
    """Write a file whose SHA-256 fits, as somebody could who wants it to be believed."""
    order = ("token_ids", "about", "pages")
    if all(name in tensors for name in order):
        content = b"".join(np.ascontiguousarray(tensors[name]).tobytes() for name in order)
        tensors = {"sha256": np.frombuffer(hashlib.sha256(content).digest(), np.uint8), **tensors}
    save_file({name: np.ascontiguousarray(array) for name, array in tensors.items()}, path)


CHANGES: dict[str, tuple[dict[str, Any], str]] = {
    "no tokens": ({"token_ids": np.zeros(0, np.int32)}, "sizes in its header"),
    "half a page of tokens": ({"token_ids": np.arange(22, dtype=np.int32)}, "sizes in its header"),
    "a token too many": ({"token_ids": np.arange(21, dtype=np.int32)}, "sizes in its header"),
    "long tokens": ({"token_ids": np.arange(20)}, "is no file of saved pages"),
    "pages of another length": ({"pages": np.zeros((5, 31), np.uint8)}, "sizes in its header"),
    "pages of no length": ({"pages": np.zeros((1 << 40, 0), np.uint8)}, "sizes in its header"),
    "more pages": ({"pages": np.zeros((6, 32), np.uint8)}, "sizes in its header"),
    "flat pages": ({"pages": np.zeros(160, np.uint8)}, "is no file of saved pages"),
    "one more tensor": ({"more": np.zeros(1, np.uint8)}, "is no file of saved pages"),
    "a short digest": ({"sha256": np.zeros(31, np.uint8)}, "sizes in its header"),
    "another digest": ({"sha256": np.zeros(32, np.uint8)}, "SHA-256"),
    "a long story": ({"about": np.full(70_000, 32, np.uint8)}, "sizes in its header"),
    "no JSON": ({"about": np.frombuffer(b"{", np.uint8)}, "what it says about itself"),
    "a list": ({"about": np.frombuffer(b"[]", np.uint8)}, "what it says about itself"),
    "deep JSON": ({"about": np.frombuffer(b"[" * 60_000, np.uint8)}, "what it says about itself"),
    "says nothing": ({"about": np.frombuffer(b"{}", np.uint8)}, "in another format"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_file_whose_parts_do_not_fit_together_is_refused(byte_tokenizer, saved, change):
    changed, message = CHANGES[change]
    tensors = {name: array for name, array in load_file(saved).items() if name != "sha256"}
    sealed(saved, {**tensors, **changed})
    other = core(byte_tokenizer)
    with pytest.raises(SavedPagesError, match=message):
        restore_pages(other, saved)
    assert other.pool.num_cached == 0 and other.pool.num_available == other.pool.num_pages
    other.check_invariants()


@pytest.mark.parametrize("content", [b"", b"{}", b"\xff" * 100, (1 << 60).to_bytes(8, "little") + b"{" * 99])
def test_anything_else_is_refused(byte_tokenizer, file, content):
    file.write_bytes(content)
    with pytest.raises(SavedPagesError, match="is damaged: it is cut short, or its header doesn't hold"):
        restore_pages(core(byte_tokenizer), file)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_file_with_any_byte_changed_or_any_end_missing_restores_nothing(byte_tokenizer, saved, data):
    whole = saved.read_bytes()
    damaged = saved.with_name("damaged")
    place = data.draw(st.integers(0, len(whole) - 1))
    if data.draw(st.booleans()):
        damaged.write_bytes(whole[:place])
    else:
        other_byte = data.draw(st.integers(1, 255)) ^ whole[place]
        damaged.write_bytes(whole[:place] + bytes([other_byte]) + whole[place + 1 :])
    other = core(byte_tokenizer, num_pages=8)
    try:
        restore_pages(other, damaged)
    except SavedPagesError:
        assert other.pool.num_cached == 0 and other.pool.num_available == 8
    else:  # a byte of the header that means nothing, such as a tensor's letter case in an ignored place
        assert load_file(damaged)["pages"].tobytes() == load_file(saved)["pages"].tobytes()
        assert cached_tokens(other, TEXT) == 20
    other.check_invariants()


@pytest.mark.parametrize("piece_bytes", [1, 64, 96, 1 << 20])
def test_restoring_what_is_there_already_changes_nothing(byte_tokenizer, saved, piece_bytes, monkeypatch):
    whole = saved.read_bytes()
    monkeypatch.setattr(saved_pages, "_PIECE_BYTES", piece_bytes)  # one page, two, three, all at once
    save_pages(computed(byte_tokenizer), TEXT, saved)
    assert saved.read_bytes() == whole
    one = computed(byte_tokenizer)
    before = one.pool.num_cached
    assert restore_pages(one, saved).ready_tokens == 20
    assert one.pool.num_cached == before
    half = computed(byte_tokenizer, TEXT[:9])  # two pages of it
    assert restore_pages(half, saved).ready_tokens == 20
    assert half.pool.num_cached == 5
    wanted = job(TEXT, max_tokens=4, logprobs=2, ignore_eos=True)
    [went_on] = outcomes(half, [wanted])
    assert went_on.end.usage.cached_tokens == 20
    assert went_on.comparable() == alone(wanted, lively(byte_tokenizer), byte_tokenizer).comparable()


def test_with_little_room_the_beginning_is_restored_and_running_requests_are_left_alone(byte_tokenizer, saved):
    other = core(byte_tokenizer, num_pages=8)
    wanted = job([*range(60, 80)], max_tokens=4, logprobs=2, ignore_eos=True)  # five of the eight pages, later six
    stream = other.add(wanted)
    other.step()
    held = other.pool.holders
    found = restore_pages(other, saved)
    other.check_invariants()
    assert other.pool.holders == held
    assert (found.saved_tokens, found.ready_tokens) == (20, 12)
    while other.is_busy:
        other.step()
    *_, end, _usage = stream.take()
    expected = alone(wanted, lively(byte_tokenizer), byte_tokenizer)
    assert end == expected.choices[0]
    assert cached_tokens(other, TEXT) == 8


def test_with_no_room_at_all_nothing_is_restored_and_that_is_said(byte_tokenizer, saved):
    other = core(byte_tokenizer, num_pages=6)
    other.add(job([*range(60, 80)], max_tokens=4))
    other.step()
    other.step()
    assert other.pool.num_available == 0
    assert restore_pages(other, saved).ready_tokens == 0
    other.check_invariants()


def test_pages_of_a_salt_are_not_saved_for_those_without_one(byte_tokenizer, file):
    one = core(byte_tokenizer)
    outcomes(one, [job(TEXT, max_tokens=1, salt="mine")])
    assert save_pages(one, TEXT, file) is None


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    page_tokens=st.sampled_from([1, 2, 4, 16]),
    length=st.integers(1, 60),
    common=st.integers(0, 60),
    num_pages=st.integers(1, 24),
    before=st.lists(st.integers(97, 100), max_size=40),
    seed=st.integers(0, 5),
)
def test_whatever_the_sizes_a_restored_engine_answers_as_a_cold_one(
    byte_tokenizer, tmp_path, page_tokens, length, common, num_pages, before, seed
):
    text = np.random.default_rng(seed).integers(97, 100, length).tolist()
    file = tmp_path / "saved.pages"
    sizes = {"page_tokens": page_tokens, "num_pages": -(-96 // page_tokens)}
    found = save_pages(computed(byte_tokenizer, text, **sizes), text, file)
    assert (found is None) == (length < page_tokens)
    small = max(num_pages, -(-96 // page_tokens) if page_tokens == 16 else 24)
    other = core(byte_tokenizer, page_tokens=page_tokens, num_pages=small)
    room = small * page_tokens
    if 0 < len(before) < room - 2:
        outcomes(other, [job(before, max_tokens=1)])
    if found is not None:
        ready = restore_pages(other, file).ready_tokens
        assert ready == min(found.saved_tokens, room) and ready % page_tokens == 0
        other.check_invariants()
        assert other.pool.num_held == 0
    following = [*text[:common], 98, 97][: room - 9]
    wanted = job(following, max_tokens=6, logprobs=2, ignore_eos=True)
    [went_on] = outcomes(other, [wanted])
    expected = alone(wanted, lively(byte_tokenizer, num_pages=256), byte_tokenizer, context_tokens=min(room, 96))
    assert went_on.comparable() == expected.comparable()
    if found is not None:
        pairs = enumerate(zip(text, following, strict=False))
        same = next((place for place, (one, another) in pairs if one != another), min(length, len(following)))
        least = min(same, ready, len(following) - 1) // page_tokens * page_tokens
        assert went_on.end.usage.cached_tokens >= least
