"""The chat template that a GGUF file carries in its metadata.

Owns the keys tokenizer.chat_template (the default) and tokenizer.chat_template.NAME (named ones, such as tool_use), and
by which names a template calls the tokens to which the file gives roles. What a template may do and how it is rendered
is template.py's, as for any other model.
Metadata comes from checkpoint/gguf.py, by way of text_files.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kaishu.errors import TemplateError, TokenizerError, shown
from kaishu.json_fields import JsonFields
from kaishu.text.template import ChatTemplate
from kaishu.text.tokenizer import Tokenizer

KEY = "tokenizer.chat_template"
# GGUF's words for roles, of which one is misspelt, by the names that templates use.
ROLES: Mapping[str, str] = {
    "bos_token": "bos",
    "eos_token": "eos",
    "pad_token": "padding",
    "unk_token": "unknown",
    "sep_token": "seperator",
    "mask_token": "mask",
}


def template_from_gguf(metadata: Mapping[str, Any], where: str, tokenizer: Tokenizer) -> ChatTemplate:
    """Compile the templates in the metadata.

    metadata:  keys and values of a GGUF file
    where:     the file, for messages
    tokenizer: the file's
    raises:    TemplateError when there is no template, or one isn't valid; TokenizerError when it may name a token that
               doesn't exist
    """
    sources: dict[str, str] = {}
    for key in metadata:  # the values of other keys may be long to read
        if key != KEY and not key.startswith(f"{KEY}."):
            continue
        value = metadata[key]
        if not isinstance(value, str):
            raise TemplateError(f"{where}: {key} is {shown(value)}; allowed: a string.")
        if value.strip():  # some programs write an empty one where there is none
            sources["default" if key == KEY else key.removeprefix(f"{KEY}.")] = value
    if not sources:
        raise TemplateError(
            f"{where} has no chat template.",
            hint=f"Use a chat model (its metadata hold {KEY}), or complete raw text with generate.",
        )
    special_tokens = _special_tokens(JsonFields(metadata, where, TokenizerError), tokenizer)
    return ChatTemplate(sources, control_tokens=tokenizer.control_tokens, special_tokens=special_tokens)


def _special_tokens(fields: JsonFields, tokenizer: Tokenizer) -> dict[str, str]:
    ids = {
        name: fields.optional_integer(f"tokenizer.ggml.{role}_token_id", 0, tokenizer.vocab_size - 1)
        for name, role in ROLES.items()
    }
    return {name: tokenizer.decode([token_id]) for name, token_id in ids.items() if token_id is not None}
