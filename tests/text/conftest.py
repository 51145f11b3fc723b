"""Qwen3's real tokenizer and template, loaded once, and transformers' reading of the same files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kaishu.text.template import ChatTemplate
from kaishu.text.tokenizer import Tokenizer
from tests.qwen3_files import find_qwen3_files


@pytest.fixture(scope="session")
def qwen3_tokenizer_folder() -> Path:
    return find_qwen3_files()


@pytest.fixture(scope="session")
def tokenizer(qwen3_tokenizer_folder: Path) -> Tokenizer:
    return Tokenizer.from_folder(qwen3_tokenizer_folder)


@pytest.fixture(scope="session")
def template(qwen3_tokenizer_folder: Path, tokenizer: Tokenizer) -> ChatTemplate:
    return ChatTemplate.from_folder(qwen3_tokenizer_folder, control_tokens=tokenizer.control_tokens)


@pytest.fixture(scope="session")
def library(qwen3_tokenizer_folder: Path) -> Any:
    """The oracle for ids and text: the tokenizers library itself."""
    from tokenizers import Tokenizer as Library

    return Library.from_file(str(qwen3_tokenizer_folder / "tokenizer.json"))


@pytest.fixture(scope="session")
def transformers_tokenizer(qwen3_tokenizer_folder: Path) -> Any:
    """The oracle for prompts."""
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(str(qwen3_tokenizer_folder))
