"""Chat templates from GGUF metadata: the same prompts as from the model's own files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kaishu.errors import TemplateError, TokenizerError
from kaishu.text.gguf_template import template_from_gguf
from kaishu.text.gguf_tokenizer import tokenizer_from_gguf
from kaishu.text.template import ChatTemplate
from tests.text.golden_conversations import TOOL_SETS
from tests.text.test_gguf_tokenizer import small
from tests.text.test_golden_prompts import CASES, render, title

HELLO = {"role": "user", "content": "Hello!"}
NAMES = "{{ bos_token }}|{{ eos_token }}|{{ pad_token }}|{{ messages[0].content }}"


def template_of(**changes: Any) -> ChatTemplate:
    metadata = small(**changes)
    return template_from_gguf(metadata, "x.gguf", tokenizer_from_gguf(metadata, "x.gguf"))


@pytest.fixture(scope="session")
def template(tokenizer, qwen3_tokenizer_folder: Path) -> ChatTemplate:
    config = json.loads((qwen3_tokenizer_folder / "tokenizer_config.json").read_text(encoding="utf-8"))
    return template_from_gguf({"tokenizer.chat_template": config["chat_template"]}, "qwen3.gguf", tokenizer)


@pytest.mark.parametrize("case", CASES, ids=title)
def test_prompts_are_those_of_the_models_own_files(case, template):
    assert render(template, case).text == case["prompt"]


def test_a_template_may_name_the_tokens_that_have_roles():
    template = template_of(padding_token_id=258, **{"tokenizer.chat_template": NAMES})
    prompt = template.render([HELLO | {"content": "<bos>"}])
    assert prompt.text == "<bos>|<bos>|<|eot_id|>|<bos>"
    assert len(prompt.outside) == 1, "the token that the user typed is text"
    without = template_of(bos_token_id=None, **{"tokenizer.chat_template": NAMES})
    assert without.render([HELLO]).text == "|<bos>||Hello!"


def test_named_templates_are_read_beside_the_default():
    named = {"tokenizer.chat_template": "plain", "tokenizer.chat_template.tool_use": "with tools"}
    template = template_of(**named, **{"tokenizer.chat_templates": ["tool_use"]})
    assert template.render([HELLO]).text == "plain"
    assert template.render([HELLO], tools=TOOL_SETS["weather"]).text == "with tools"
    with pytest.raises(TemplateError, match="only named chat templates"):
        template_of(**{"tokenizer.chat_template.rag": "r"}).render([HELLO])


@pytest.mark.parametrize("value", [None, "", " \n"])
def test_a_model_without_a_template_is_an_error_that_says_what_to_do(value):
    with pytest.raises(TemplateError, match=r"x\.gguf has no chat template[\s\S]*raw text"):
        template_of(**{"tokenizer.chat_template": value})


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"tokenizer.chat_template": ["x"]}, r"tokenizer\.chat_template is \['x'\]; allowed: a string"),
        ({"tokenizer.chat_template": "{% if %}"}, "template 'default' fails"),
        ({"tokenizer.chat_template": "x", "tokenizer.chat_template.rag": 5}, r"chat_template\.rag is 5"),
    ],
)
def test_a_template_that_isnt_one_is_an_error(changes, message):
    with pytest.raises(TemplateError, match=message):
        template_of(**changes)


def test_a_role_whose_token_does_not_exist_is_an_error():
    with pytest.raises(TokenizerError, match=r"x\.gguf: tokenizer\.ggml\.unknown_token_id is 999"):
        template_of(unknown_token_id=999, **{"tokenizer.chat_template": "x"})


def test_no_other_value_is_read(tokenizer):
    class Watched(dict):
        def __getitem__(self, key):
            assert key not in ("tokenizer.ggml.tokens", "tokenizer.ggml.merges")
            return super().__getitem__(key)

    watched = Watched(small(**{"tokenizer.chat_template": "x"}))
    assert template_from_gguf(watched, "x.gguf", tokenizer).render([HELLO]).text == "x"
