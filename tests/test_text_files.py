"""The same tokenizer and template, whether a model is a folder or a file, and whether or not it has been opened."""

from __future__ import annotations

import json

import pytest

from kaishu.checkpoint import open_checkpoint
from kaishu.errors import CheckpointError, TemplateError, TokenizerError
from kaishu.text_files import template_of, tokenizer_of
from tests.text.gguf_metadata import metadata_of, write_gguf

TEXT = "Hello, 楷书! <|im_end|> 👍🏽"
MESSAGES = [{"role": "user", "content": TEXT}]


@pytest.fixture
def folder(own_checkpoint):
    """A folder whose tokenizer, like every real one, has merges."""
    folder = own_checkpoint("dense_tied", with_tokenizer=True)
    content = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    vocabulary = content["model"]["vocab"]
    vocabulary.update({token["content"]: token["id"] for token in content["added_tokens"]})
    vocabulary["ll"] = len(vocabulary)
    content["model"]["merges"] = ["l l"]
    (folder / "tokenizer.json").write_text(json.dumps(content), encoding="utf-8")
    return folder


@pytest.fixture
def file(folder, tmp_path):
    """The folder's tokenizer and template in a GGUF file, which has no weights."""
    content = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    config = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
    ids = {token["content"]: token["id"] for token in content["added_tokens"]}
    metadata = metadata_of(content, pre="qwen2", eos_token_id=ids["<|im_end|>"], padding_token_id=ids["<|endoftext|>"])
    return write_gguf(tmp_path / "text.gguf", metadata | {"tokenizer.chat_template": config["chat_template"]})


def test_a_file_and_a_folder_give_the_same(folder, file):
    from_folder, from_file = tokenizer_of(folder), tokenizer_of(file)
    assert from_file.encode(TEXT) == from_folder.encode(TEXT)
    assert from_file.control_tokens == from_folder.control_tokens
    assert from_file.eos_token_ids >= from_folder.eos_token_ids
    prompt = template_of(file, from_file).render(MESSAGES)
    assert prompt == template_of(folder, from_folder).render(MESSAGES)
    assert from_file.encode_prompt(prompt) == from_folder.encode_prompt(prompt)


def test_an_open_checkpoint_gives_what_its_folder_does(folder):
    checkpoint = open_checkpoint(folder)
    tokenizer = tokenizer_of(checkpoint)
    assert tokenizer.encode(TEXT) == tokenizer_of(folder).encode(TEXT)
    assert template_of(checkpoint, tokenizer).render(MESSAGES) == template_of(folder, tokenizer).render(MESSAGES)


def test_what_is_missing_is_the_same_kind_of_error_for_both(folder, file, tmp_path):
    with pytest.raises(TokenizerError, match=r"has no tokenizer\.json"):
        tokenizer_of(tmp_path)
    bare = write_gguf(tmp_path / "bare.gguf", {"general.architecture": "qwen3"})
    with pytest.raises(TokenizerError, match=r"bare\.gguf: tokenizer\.ggml\.model is missing"):
        tokenizer_of(bare)
    for model in (tmp_path, bare):
        with pytest.raises(TemplateError, match="has no chat template"):
            template_of(model, tokenizer_of(folder))


def test_a_file_that_is_no_gguf_is_an_error(tmp_path):
    (tmp_path / "x.gguf").write_bytes(b"PK\x03\x04" + bytes(100))
    with pytest.raises(CheckpointError, match=r"x\.gguf"):
        tokenizer_of(tmp_path / "x.gguf")
