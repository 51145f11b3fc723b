"""Compilers of grammars for Qwen3's real tokenizer and for one with a token for each byte."""

from __future__ import annotations

from pathlib import Path

import pytest

from kaishu.engine.grammar import GrammarCompiler
from kaishu.text.tokenizer import Tokenizer
from tests.qwen3_files import find_qwen3_files
from tests.tiny_checkpoints import VOCAB_SIZE, write_byte_tokenizer

QWEN3_ROWS = 151_936
PATIENT = 600.0  # seconds for one grammar: a busy machine must not fail a test


@pytest.fixture(scope="session")
def qwen3() -> Tokenizer:
    return Tokenizer.from_folder(find_qwen3_files())


@pytest.fixture(scope="session")
def qwen3_compiler(qwen3: Tokenizer) -> GrammarCompiler:
    ends = [qwen3.control_tokens["<|im_end|>"], qwen3.control_tokens["<|endoftext|>"]]
    return GrammarCompiler(qwen3, num_rows=QWEN3_ROWS, end_token_ids=ends, compile_seconds=PATIENT)


@pytest.fixture(scope="session")
def byte_tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    folder: Path = tmp_path_factory.mktemp("bytes")
    write_byte_tokenizer(folder)
    return Tokenizer.from_folder(folder)


@pytest.fixture(scope="session")
def byte_compiler(byte_tokenizer: Tokenizer) -> GrammarCompiler:
    return GrammarCompiler(
        byte_tokenizer,
        num_rows=VOCAB_SIZE,
        end_token_ids=[byte_tokenizer.control_tokens["<|im_end|>"]],
        compile_seconds=PATIENT,
    )
