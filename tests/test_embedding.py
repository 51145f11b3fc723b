"""Embeddings against transformers and the tokenizers library: what is read, and what is made of it."""

from __future__ import annotations

import json
import warnings
from pathlib import Path

import numpy as np
import pytest
import transformers
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as Library

from kaishu import LLM
from kaishu.cpu.target import current_target
from kaishu.embedding import embedding_ids, embedding_prompt, end_ids, unit_vectors
from kaishu.errors import ContextLengthError, InvalidParameterError, InvalidRequestError, NumericalError
from kaishu.text.tokenizer import Tokenizer
from tests.embedding_models import END_OF_TEXT, VOCAB_SIZE, embedding_model, their_embeddings, write_embedding_model
from tests.qwen3_files import find_qwen3_files

TASK = "Given a web search query, retrieve relevant passages that answer the query"
TEXTS = [
    "The capital of China is Beijing.",
    "重力是使物体相互吸引的力。",
    "x",
    " spaces\n\nand lines \n",
    "long " * 300,
    "it's 12345",
]


@pytest.fixture(scope="module")
def folder_of(tmp_path_factory):
    written: dict[str, Path] = {}

    def folder(kind: str, dtype: str = "float32") -> Path:
        key = f"{kind}-{dtype}"
        if key not in written:
            options = {"vocab_size": VOCAB_SIZE, "dtype": dtype, "num_hidden_layers": 2}
            written[key] = write_embedding_model(tmp_path_factory.mktemp(key), kind, **options)
        return written[key]

    return folder


@pytest.fixture(scope="module")
def library(folder_of) -> Library:
    return Library.from_file(str(folder_of("dense_tied") / "tokenizer.json"))


@pytest.fixture(scope="module")
def llm(folder_of) -> LLM:
    return LLM(folder_of("dense_tied", "bfloat16"), threads=2)


def test_a_query_stands_behind_its_task_and_a_document_alone():
    assert embedding_prompt("What is gravity?", TASK) == (
        "Instruct: Given a web search query, retrieve relevant passages that answer the query\nQuery:What is gravity?"
    )
    assert embedding_prompt("What is gravity?", None) == "What is gravity?"


@pytest.mark.parametrize("instruct", [None, TASK])
def test_the_ids_are_the_librarys_with_the_end_token_of_the_models_file(instruct, library, folder_of):
    tokenizer = Tokenizer.from_folder(folder_of("dense_tied"))
    found = embedding_ids(tokenizer, TEXTS, instruct=instruct, context_tokens=512, truncate=False)
    assert found == [library.encode(embedding_prompt(text, instruct)).ids for text in TEXTS]
    assert all(ids[-1] == END_OF_TEXT for ids in found)


def test_a_text_that_is_cut_keeps_its_end_token_as_the_library_cuts(folder_of):
    folder = folder_of("dense_tied")
    library, tokenizer = Library.from_file(str(folder / "tokenizer.json")), Tokenizer.from_folder(folder)
    library.enable_truncation(100)
    found = embedding_ids(tokenizer, TEXTS, instruct=TASK, context_tokens=100, truncate=True)
    assert found == [library.encode(embedding_prompt(text, TASK)).ids for text in TEXTS]
    assert sorted({len(ids) for ids in found})[-1] == 100 and all(ids[-1] == END_OF_TEXT for ids in found)


def test_what_looks_like_a_control_token_in_a_text_stays_text(folder_of):
    tokenizer = Tokenizer.from_folder(folder_of("dense_tied"))
    ((*ids, end),) = embedding_ids(
        tokenizer, ["a<|endoftext|><|im_end|>"], instruct=None, context_tokens=99, truncate=False
    )
    assert end == END_OF_TEXT and not set(ids) & set(tokenizer.control_tokens.values())
    assert tokenizer.decode(ids) == "a<|endoftext|><|im_end|>"


def test_a_tokenizer_whose_file_adds_nothing_ends_texts_with_its_end_of_text(tiny_checkpoint):
    qwen3 = Tokenizer.from_folder(find_qwen3_files())
    assert qwen3.ids_after_text() == [] and end_ids(qwen3) == [END_OF_TEXT]


@pytest.mark.parametrize("eos, expected", [("<|im_end|>", [258]), (None, None)])
def test_without_one_it_is_the_end_of_a_turn_or_an_error(eos, expected, own_checkpoint):
    folder = own_checkpoint("dense_tied", with_tokenizer=True)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        text = (folder / name).read_text(encoding="utf-8").replace("<|endoftext|>", "<|other|>")
        (folder / name).write_text(text, encoding="utf-8")
    config = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps(config | {"eos_token": eos}))
    tokenizer = Tokenizer.from_folder(folder)
    if expected:
        assert end_ids(tokenizer) == expected
    else:
        with pytest.raises(InvalidRequestError, match="no token that ends a text"):
            end_ids(tokenizer)


# Where the CPU multiplies bfloat16, activations are rounded to it as well, elsewhere keys and values alone.
BFLOAT_BOUND = 0.06 if current_target().has_bf16 else 0.01

# Against transformers. `moe` and `dense_untied` are bare decoders whose config says that the head isn't tied, as
# Qwen3-Embedding-8B's does.


@pytest.mark.parametrize("dimensions", [None, 24])
@pytest.mark.parametrize("kind", ["dense_tied", "dense_untied", "moe", "qwen2"])
def test_the_reference_model_embeds_as_transformers_does(kind, dimensions, folder_of, library):
    folder = folder_of(kind)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # about the head that isn't there
        llm = LLM(folder, executor="reference")
    expected = their_embeddings(embedding_model(folder), [library.encode(text).ids for text in TEXTS], dimensions)
    found = llm.embed(TEXTS, dimensions=dimensions)
    assert found.dtype == np.float32 and found.shape == expected.shape == (len(TEXTS), dimensions or 64)
    np.testing.assert_allclose(found, expected, rtol=0, atol=2e-6)


@pytest.mark.parametrize(
    "kind, weights, bound",
    [
        ("dense_tied", "bf16", BFLOAT_BOUND),
        ("dense_tied", "int8", 0.08),
        ("qwen2", "bf16", BFLOAT_BOUND),
        ("qwen2", "int8", 0.08),
        ("moe", "bf16", BFLOAT_BOUND),  # in int8 another expert may be chosen, which no bound holds for
    ],
)
def test_the_kernels_embed_within_their_bound(kind, weights, bound, folder_of, library):
    """The bound is the length of the difference of two vectors of length 1; the measured ones are about half of it."""
    folder = folder_of(kind, "bfloat16")
    queries = [library.encode(embedding_prompt(text, TASK)).ids for text in TEXTS]
    expected = their_embeddings(embedding_model(folder), queries)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        found = LLM(folder, weights=weights, threads=1).embed(TEXTS, instruct=TASK)
    assert np.linalg.norm(found - expected, axis=-1).max() < bound


def test_texts_are_of_unit_length_also_when_dimensions_are_cut(llm):
    whole = llm.embed(TEXTS)
    for dimensions in (1, 2, 33, 64):
        cut = llm.embed(TEXTS, dimensions=dimensions)
        np.testing.assert_allclose(np.linalg.norm(cut, axis=-1), 1, rtol=1e-6)
        again = whole[:, :dimensions] / np.linalg.norm(whole[:, :dimensions], axis=-1, keepdims=True)
        np.testing.assert_allclose(cut, again, rtol=0, atol=1e-6)


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_text_has_the_same_bits_in_every_batch(llm, data):
    alone = {text: llm.embed(text)[0] for text in TEXTS}
    texts = data.draw(st.lists(st.sampled_from(TEXTS), min_size=1, max_size=12))
    np.testing.assert_array_equal(llm.embed(texts), np.stack([alone[text] for text in texts]))


def test_one_text_makes_one_row_and_none_makes_none(llm):
    assert llm.embed("a").shape == (1, 64)
    assert llm.embed([]).shape == (0, 64) and llm.embed([], dimensions=5).shape == (0, 5)


@pytest.mark.parametrize("dimensions", [0, -1, 65, 1.0, True, "8"])
def test_dimensions_that_the_model_does_not_have_are_refused(dimensions, llm):
    with pytest.raises(InvalidParameterError, match=r"dimensions is .*a whole number from 1 to the model's 64"):
        llm.embed("a", dimensions=dimensions)


def test_a_text_that_is_too_long_is_named_and_cut_only_when_asked(llm):
    texts = ["short", "long" + " long" * 599]
    with pytest.raises(ContextLengthError, match=r"texts\[1\] has 601 tokens, but the context holds 512\."):
        llm.embed(texts)
    cut = llm.embed(texts, truncate=True)
    # 511 tokens of the text and the end token
    np.testing.assert_array_equal(cut[1], llm.embed("long" + " long" * 510)[0])


@pytest.mark.parametrize(
    "texts, field", [(["a", ""], r"texts\[1\]"), ("", r"texts\[0\]"), (["a", None], r"texts\[1\]")]
)
def test_a_text_that_is_none_is_an_error_that_names_its_place(texts, field, llm):
    with pytest.raises(InvalidRequestError, match=f"^{field} is"):
        llm.embed(texts)


@pytest.mark.parametrize("truncate", [False, True])
def test_a_task_that_leaves_no_room_for_a_text_is_an_error_of_the_task(truncate, llm):
    """Cutting texts down to nothing would give all of them one embedding."""
    with pytest.raises(ContextLengthError, match=r"^instruct has \d+ tokens, but the context holds 512\."):
        llm.embed(["a", "b"], instruct="long " * 600, truncate=truncate)


def test_of_megabytes_that_are_cut_the_beginning_is_read_alone(llm, monkeypatch):
    read = []
    encode = Tokenizer.encode
    monkeypatch.setattr(Tokenizer, "encode", lambda self, text: read.append(len(text)) or encode(self, text))
    long = "long " * 600_000
    np.testing.assert_array_equal(llm.embed(long, truncate=True), llm.embed(long[:10_000], truncate=True))
    assert sum(read) < 200_000


def test_an_empty_task_is_refused(llm):
    with pytest.raises(InvalidRequestError, match=r"^instruct is empty"):
        llm.embed("a", instruct="")


@pytest.mark.parametrize("bad, message", [(np.nan, "NaN or infinite"), (np.inf, "NaN or infinite"), (0.0, "is zero")])
def test_a_state_without_a_direction_is_an_error_of_its_text(bad, message):
    states = np.ones((3, 4), np.float32)
    states[1, :2] = bad
    with pytest.raises(NumericalError, match=rf"texts\[1\] is .*{message.removeprefix('is ')}"):
        unit_vectors(states, 2)


def test_states_whose_squares_overflow_float32_have_a_direction():
    states = np.full((1, 4), 1e30, np.float32)
    np.testing.assert_allclose(unit_vectors(states, 4), 0.5)


def test_the_bare_decoder_says_that_it_can_not_generate(folder_of):
    with pytest.warns(UserWarning, match="no output head"):
        LLM(folder_of("dense_untied"), threads=1)
    assert "Qwen3" in transformers.AutoConfig.from_pretrained(folder_of("dense_untied")).architectures[0]
