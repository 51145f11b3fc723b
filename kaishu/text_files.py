"""A model's tokenizer and chat template, wherever its files keep them: in a folder, or in a GGUF file's metadata.

Owns the choice between the two, so that nobody else makes it. The reading is text/'s.
Used by loading.py with the checkpoint that it has opened, and by commands that need no weights with the model's path.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kaishu.text.template import ChatTemplate
from kaishu.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from kaishu.checkpoint import Checkpoint


def tokenizer_of(model: Checkpoint | Path) -> Tokenizer:
    """Read a model's tokenizer.

    model:  an open checkpoint; or a folder or GGUF file, of which no tensor is looked at
    raises: TokenizerError; CheckpointError where a GGUF file can't be read
    """
    place, metadata = _opened(model)
    if metadata is None:
        return Tokenizer.from_folder(place)
    from kaishu.text.gguf_tokenizer import tokenizer_from_gguf

    return tokenizer_from_gguf(metadata, place.name)


def template_of(model: Checkpoint | Path, tokenizer: Tokenizer) -> ChatTemplate:
    """Read a model's chat template.

    model:     as for tokenizer_of
    tokenizer: the model's; its control tokens are the template's
    raises:    TemplateError, also where there is none; TokenizerError; CheckpointError
    """
    place, metadata = _opened(model)
    if metadata is None:
        return ChatTemplate.from_folder(place, control_tokens=tokenizer.control_tokens)
    from kaishu.text.gguf_template import template_from_gguf

    return template_from_gguf(metadata, place.name, tokenizer)


def _opened(model: Checkpoint | Path) -> tuple[Path, Mapping[str, Any] | None]:
    """Where the model is, and the metadata if it is GGUF."""
    if not isinstance(model, Path):
        return model.folder, model.gguf
    if not model.is_file():
        return model, None
    from kaishu.checkpoint.gguf import open_gguf

    return model, open_gguf(model).metadata
