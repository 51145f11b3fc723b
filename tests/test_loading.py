"""A model put together: what is refused before anything is loaded, and what an engine is told about it."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from kaishu import LLM
from kaishu.engine.core import EngineSettings
from kaishu.errors import InvalidParameterError, ModelNotFoundError, OutOfMemoryError, TemplateError
from kaishu.loading import MAX_THREADS, WARM_BYTES, LoadedModel, load_model
from tests.embedding_models import write_embedding_model
from tests.scripted import ScriptedExecutor
from tests.tiny_checkpoints import END_OF_TEXT, IM_END


@pytest.fixture(scope="module")
def folder(tiny_checkpoint):
    return tiny_checkpoint("dense_tied", with_tokenizer=True)


@pytest.fixture(scope="module")
def loaded(folder) -> LoadedModel:
    return load_model(folder, threads=1)


def test_the_parts_are_those_of_the_folder(loaded, folder):
    assert loaded.checkpoint.folder == folder and loaded.config is loaded.checkpoint.config
    assert loaded.executor.vocab_size == loaded.config.vocab_size
    assert loaded.context_tokens == loaded.config.max_position_embeddings == 512
    assert loaded.notes == () and loaded.description.startswith("CPU kernels")
    assert loaded.tokenizer.decode(loaded.tokenizer.encode("ok")) == "ok"


def test_limits_say_which_tokens_end_and_which_ids_have_none(loaded):
    limits = loaded.limits
    assert limits.end_token_ids == {IM_END, END_OF_TEXT}
    assert limits.num_token_ids == loaded.tokenizer.vocab_size < loaded.config.vocab_size
    assert limits.context_tokens == 512
    assert limits.absent_token_ids == set(loaded.tokenizer.ids_without_token(limits.num_token_ids))


@pytest.mark.parametrize("value", [0, -1, MAX_THREADS + 1, 1.0, True, "2"])
def test_threads_are_checked_before_the_model_is_looked_for(value):
    with pytest.raises(InvalidParameterError, match=r"threads is .*a whole number from 1 to 1,024"):
        load_model("no-such-model", threads=value)


@pytest.mark.parametrize("value", [0, 1, 513, 64.0, True, "64"])
def test_the_context_is_one_that_the_model_has(value, folder):
    with pytest.raises(InvalidParameterError, match=r"context_tokens is .*from 2 to the model's own limit of 512"):
        load_model(folder, context_tokens=value)


def test_a_smaller_context_is_kept_and_takes_no_more_pages(folder):
    small = load_model(folder, threads=1, context_tokens=20)
    assert small.context_tokens == small.limits.context_tokens == 20
    pages = -(-20 // small.executor.page_tokens)
    assert pages <= small.executor.num_pages


def test_a_name_that_is_nothing_is_an_error(tmp_path):
    with pytest.raises(ModelNotFoundError):
        load_model(tmp_path / "nowhere")


def test_without_a_template_the_reason_is_kept(own_checkpoint):
    folder = own_checkpoint("dense_tied", with_tokenizer=True)
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    del settings["chat_template"]
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    assert isinstance(load_model(folder, threads=1).template, TemplateError)


def test_notes_are_warned_of_where_the_llm_is_made(tmp_path):
    folder = write_embedding_model(tmp_path / "bare", "dense_untied", num_hidden_layers=1)
    with pytest.warns(UserWarning, match="no output head") as caught:
        llm = LLM(folder, executor="reference")
    assert [(warning.filename, str(warning.message)) for warning in caught] == [(__file__, note) for note in llm.notes]


def test_what_pages_depend_on_has_another_identity(folder, tiny_checkpoint, loaded):
    def identity(**options) -> bytes:
        return load_model(options.pop("folder", folder), **{"threads": 1, **options}).identity

    assert identity() == identity(context_tokens=64) == identity(threads=2) == loaded.identity
    other_weights = tiny_checkpoint("dense_tied", with_tokenizer=True, seed=5)
    others = [
        identity(weights="int8"),
        identity(kv="int8"),
        identity(executor="reference", weights="float32"),
        identity(folder=other_weights),
    ]
    assert len({loaded.identity, *others}) == 5


def test_an_engine_keeps_so_many_bytes_of_pages_warm(loaded):
    settings = loaded.start_engine().settings
    per_page = loaded.executor.kv_bytes_per_token * loaded.executor.page_tokens
    assert settings.warm_pages == WARM_BYTES // per_page and settings.model_tag == loaded.identity
    own = EngineSettings(max_waiting=3)
    assert loaded.start_engine(own).settings == replace(own, model_tag=loaded.identity)


def test_an_executor_that_says_nothing_of_its_pages_has_no_limit(loaded):
    executor = ScriptedExecutor(lambda _: 0, vocab_size=loaded.config.vocab_size)
    core = replace(loaded, executor=executor).start_engine()
    assert core.settings.warm_pages is None and core.executor is executor


def test_pages_that_do_not_hold_the_context_are_a_mistake_in_the_assembly(loaded):
    executor = ScriptedExecutor(lambda _: 0, vocab_size=loaded.config.vocab_size, num_pages=31)
    with pytest.raises(AssertionError, match="the longest request fits"):
        replace(loaded, executor=executor).start_engine()


@pytest.mark.parametrize("executor", ["cpu", "reference"])
def test_there_are_pages_for_as_many_sequences_as_are_asked_for(tiny_checkpoint, executor):
    folder = tiny_checkpoint("dense_tied", with_tokenizer=True)
    made = load_model(folder, executor=executor, threads=1, context_tokens=64, sequences=3)
    assert made.executor.num_pages * made.executor.page_tokens == 3 * 64 and made.context_tokens == 64


@pytest.mark.parametrize("sequences", [0, 1025, True, 2.0])
def test_a_number_of_sequences_that_makes_no_sense_is_refused(tiny_checkpoint, sequences):
    with pytest.raises(InvalidParameterError, match=r"sequences is .*; allowed: a whole number from 1 to 1,024"):
        load_model(tiny_checkpoint("dense_tied", with_tokenizer=True), sequences=sequences)


def test_a_bound_on_memory_counts_all_sequences(tiny_checkpoint):
    folder = tiny_checkpoint("dense_tied", with_tokenizer=True)
    one = load_model(folder, threads=1, max_memory="400MB")
    with pytest.raises(OutOfMemoryError, match="With 1,024 contexts of"):
        load_model(folder, threads=1, context_tokens=one.context_tokens, sequences=1024, max_memory="400MB")
