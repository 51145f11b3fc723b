"""A model that says what a test tells it to: the real LLM over a scripted executor."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from kaishu.engine.core import EngineSettings
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
        ids = [loaded_llm.tokenizer.encode(answer, allow_control=True) for answer in answers]
        executor = ScriptedExecutor(Script(ids, end=IM_END), vocab_size=loaded_llm.config.vocab_size)
        settings = EngineSettings(speculation=False)  # a wrong guess would be a new prompt to the script
        return LLM.of(replace(loaded_llm.loaded, executor=executor), settings)

    return of
