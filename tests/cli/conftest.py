"""A model that says what a test tells it to: the real LLM over a scripted executor."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest

from kaishu.llm import LLM
from tests.scripted import Script, ScriptedExecutor
from tests.tiny_checkpoints import IM_END

ScriptedLLM = Callable[..., LLM]


@pytest.fixture(scope="session")
def loaded_llm(tiny_checkpoint) -> LLM:
    return LLM(tiny_checkpoint("dense_tied", with_tokenizer=True), threads=1)


@pytest.fixture
def scripted_llm(loaded_llm) -> ScriptedLLM:
    """`scripted_llm("first answer", …)`: one answer a prompt; control tokens in them are control tokens."""

    def of(*answers: str) -> LLM:
        llm = copy.copy(loaded_llm)
        ids = [llm.tokenizer.encode(answer, allow_control=True) for answer in answers]
        llm.executor = ScriptedExecutor(Script(ids, end=IM_END), vocab_size=llm.config.vocab_size)
        return llm

    return of
