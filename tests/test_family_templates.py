"""Templates of Qwen3's later chat models: Instruct-2507, which never thinks, and Thinking-2507, which always does.

They differ from Qwen3's in what an assistant's turn begins with, so the real template gets their endings here. Whether
the model starts inside a thought follows from the prompt, not from the model's name.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from kaishu import LLM, InvalidParameterError
from kaishu.engine.core import EngineSettings
from tests.qwen3_files import find_qwen3_files
from tests.scripted import Script, ScriptedExecutor
from tests.tiny_checkpoints import IM_END

QWEN3_ENDING = """{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- endif %}
{%- endif %}"""
INSTRUCT_ENDING = "{%- if add_generation_prompt %}\n    {{- '<|im_start|>assistant\\n' }}\n{%- endif %}"
THINKING_ENDING = "{%- if add_generation_prompt %}\n    {{- '<|im_start|>assistant\\n<think>\\n' }}\n{%- endif %}"
HELLO = [{"role": "user", "content": "Hi, do you <think>?"}]
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}


@pytest.fixture
def saying(own_checkpoint):
    """`saying(ending, answers…)`: an LLM with Qwen3's template and another ending, which says the answers in turn."""

    def llm_of(ending: str, *answers: str) -> LLM:
        folder: Path = own_checkpoint("dense_tied", with_tokenizer=True, max_position_embeddings=4096)
        real = json.loads((find_qwen3_files() / "tokenizer_config.json").read_text(encoding="utf-8"))["chat_template"]
        assert real.count(QWEN3_ENDING) == 1
        config = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
        config["chat_template"] = real.replace(QWEN3_ENDING, ending)
        (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
        llm = LLM(folder, threads=1)
        ids = [llm.tokenizer.encode(answer, allow_control=True) for answer in answers]
        executor = ScriptedExecutor(Script(ids, end=IM_END), vocab_size=llm.config.vocab_size)
        settings = EngineSettings(speculation=False)  # a wrong guess would be a new prompt to the script
        return LLM.of(replace(llm.loaded, executor=executor), settings)

    return llm_of


@pytest.mark.parametrize("thinking", [None, False])
def test_instruct_2507_answers_at_once_and_what_it_writes_is_content(thinking, saying):
    llm = saying(INSTRUCT_ENDING, "Paris.")
    assert llm.render(HELLO, thinking=thinking).text.endswith("?<|im_end|>\n<|im_start|>assistant\n")
    answer = llm.chat(HELLO, thinking=thinking)
    assert (answer.content, answer.reasoning) == ("Paris.", "")


def test_instruct_2507_can_not_be_asked_to_think(saying):
    with pytest.raises(InvalidParameterError, match=r"thinking is True; allowed: false, .* has no thinking"):
        saying(INSTRUCT_ENDING).chat(HELLO, thinking=True)


@pytest.mark.parametrize("thinking", [None, True])
def test_thinking_2507_begins_inside_its_thought(thinking, saying):
    """The opening tag is the prompt's, so the output has the closing one alone."""
    llm = saying(THINKING_ENDING, "plan\n</think>\n\nHi.", "plan, and no en")
    assert llm.render(HELLO, thinking=thinking).text.endswith("<|im_start|>assistant\n<think>\n")
    answer = llm.chat(HELLO, thinking=thinking)
    assert (answer.content, answer.reasoning) == ("Hi.", "plan")
    cut = llm.chat([*HELLO, *HELLO], thinking=thinking, max_tokens=9)
    assert (cut.content, cut.reasoning, cut.finish_reason) == ("", "plan, and", "length")


def test_thinking_2507_can_not_be_asked_not_to_think(saying):
    with pytest.raises(InvalidParameterError, match=r"thinking is False; allowed: true, .* always begins"):
        saying(THINKING_ENDING).chat(HELLO, thinking=False)


def test_thinking_2507_calls_tools_after_its_thought_and_drops_earlier_thoughts(saying):
    call = '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>'
    llm = saying(THINKING_ENDING, f"a <tool_call> is due\n</think>\n\n{call}", "done\n</think>\n\nFine.")
    answer = llm.chat(HELLO, tools=[TOOL])
    assert answer.reasoning == "a <tool_call> is due" and answer.finish_reason == "tool_calls"
    assert [(made.name, made.arguments) for made in answer.tool_calls] == [("f", "{}")]
    turns = [
        *HELLO,
        {"role": "assistant", "content": "Hi.", "reasoning_content": "an old thought"},
        {"role": "user", "content": "And now?"},
    ]
    assert "an old thought" not in llm.render(turns).text
    assert llm.chat(turns).content == "Fine."


def test_without_their_endings_it_is_qwen3_which_does_as_it_is_told(saying):
    llm = saying(QWEN3_ENDING, "Paris.", "<think>\nplan\n</think>\n\nHi.")
    assert llm.chat(HELLO, thinking=False).content == "Paris."
    assert llm.chat(HELLO, thinking=True).reasoning == "plan"
