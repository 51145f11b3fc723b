"""What goes along with quantised weights, from a folder and from a GGUF file."""

from __future__ import annotations

import json

import pytest

from kaishu.checkpoint import open_checkpoint
from kaishu.config import ModelConfig
from kaishu.errors import CheckpointError
from kaishu.quantiser.folder import write_beside
from kaishu.text_files import template_of, tokenizer_of

SAID = {"quant_method": "compressed-tensors"}


def written(checkpoint, folder):
    folder.mkdir()
    write_beside(checkpoint, SAID, folder)
    return json.loads((folder / "config.json").read_text(encoding="utf-8"))


def test_the_config_is_the_source_s_with_one_thing_said_in_addition(own_checkpoint, tmp_path):
    source = own_checkpoint("dense_tied", with_tokenizer=True)
    config = written(open_checkpoint(source), tmp_path / "out")
    assert config.pop("quantization_config") == SAID
    assert config == json.loads((source / "config.json").read_text())


def test_tokenizer_template_generation_and_licence_go_along_and_nothing_else(own_checkpoint, tmp_path):
    source = own_checkpoint("dense_tied", with_tokenizer=True)
    (source / "additional_chat_templates").mkdir()
    (source / "additional_chat_templates" / "tool_use.jinja").write_text("tools")
    for name in ("LICENSE", "chat_template.jinja", "README.md", "optimizer.pt", "vocab.json"):
        (source / name).write_text(name)
    written(open_checkpoint(source), tmp_path / "out")
    found = {str(path.relative_to(tmp_path / "out")) for path in (tmp_path / "out").rglob("*") if path.is_file()}
    assert found == {
        "config.json",
        "generation_config.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "LICENSE",
        "chat_template.jinja",
        "vocab.json",
        "additional_chat_templates/tool_use.jinja",
    }
    assert (tmp_path / "out" / "tokenizer.json").read_bytes() == (source / "tokenizer.json").read_bytes()


def test_a_link_out_of_the_source_is_not_followed(own_checkpoint, tmp_path):
    source = own_checkpoint("dense_tied", with_tokenizer=True)
    (tmp_path / "secret").write_text("secret")
    (source / "LICENSE").symlink_to(tmp_path / "secret")
    with pytest.raises(CheckpointError, match="outside the folder"):
        written(open_checkpoint(source), tmp_path / "out")


def test_a_head_that_wins_over_its_tie_is_said_in_the_config(own_checkpoint, tmp_path):
    source = own_checkpoint("dense_untied", with_tokenizer=True)
    config = json.loads((source / "config.json").read_text())
    (source / "config.json").write_text(json.dumps({**config, "tie_word_embeddings": True}))
    assert written(open_checkpoint(source), tmp_path / "out")["tie_word_embeddings"] is False


def test_a_gguf_s_metadata_become_files_that_say_the_same(smollm2_file, tmp_path):
    checkpoint = open_checkpoint(smollm2_file)
    folder = tmp_path / "out"
    config = written(checkpoint, folder)
    config.pop("quantization_config")
    (folder / "config.json").write_text(json.dumps(config))
    ours, theirs = ModelConfig.from_folder(folder), checkpoint.config
    ends = tokenizer_of(checkpoint).eos_token_ids | set(theirs.eos_token_ids)
    assert set(ours.eos_token_ids) == ends
    assert {**vars(ours), "eos_token_ids": ()} == {**vars(theirs), "eos_token_ids": ()}
    texts = ["Hello, world! 12345", "中文 and\n\n  spaces\t", "def f(x):\n    return x**2 # ½"]
    one, other = tokenizer_of(folder), tokenizer_of(checkpoint)
    assert [one.encode(text) for text in texts] == [other.encode(text) for text in texts]
    assert one.control_tokens == other.control_tokens
    messages = [{"role": "user", "content": "Hi!"}]
    renderings = [template_of(place, one).render(messages).text for place in (folder, checkpoint)]
    assert renderings[0] == renderings[1]
