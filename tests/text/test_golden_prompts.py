"""Prompts from Qwen3's real template, against what transformers made of the same conversations."""

from __future__ import annotations

import copy
import json
import unicodedata
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import kaishu
from kaishu.text.template import ChatTemplate, RenderedPrompt
from kaishu.text.tokenizer import Tokenizer
from tests.text.golden_conversations import CONVERSATIONS, TOOL_SETS, cases
from tests.text.make_golden_prompts import GOLDEN

CASES: list[dict[str, Any]] = json.loads(GOLDEN.read_text())["cases"]


def render(template: ChatTemplate, case: dict[str, Any], **more: Any) -> RenderedPrompt:
    options = dict(case["options"])
    thinking = options.pop("enable_thinking", None)
    messages, tools = CONVERSATIONS[case["name"]], TOOL_SETS[case["tools"]]
    return template.render(messages, tools=tools, thinking=thinking, **options, **more)


def title(case: dict[str, Any]) -> str:
    return " ".join([case["name"], case["tools"], *map(str, case["options"].values())])


def test_the_golden_file_holds_every_case_and_no_other():
    assert [{key: case[key] for key in ("name", "tools", "options")} for case in CASES] == cases()
    assert len(CASES) >= 60


@pytest.mark.parametrize("case", CASES, ids=title)
def test_prompts_match_character_for_character(case, template):
    before = copy.deepcopy(CONVERSATIONS[case["name"]])
    assert render(template, case).text == case["prompt"]
    assert CONVERSATIONS[case["name"]] == before


@pytest.mark.parametrize("case", CASES, ids=title)
def test_ids_match_where_control_tokens_in_contents_are_allowed(case, template, tokenizer):
    assert tokenizer.encode_prompt(render(template, case, allow_control_in_content=True)) == case["ids"]


@pytest.mark.parametrize("case", CASES, ids=title)
def test_ids_match_where_no_content_looks_like_a_control_token(case, template, tokenizer):
    messages = json.dumps([CONVERSATIONS[case["name"]], TOOL_SETS[case["tools"]]], ensure_ascii=False)
    ids = tokenizer.encode_prompt(render(template, case))
    # A thought in content is taken apart by the template, which writes the tags anew; elsewhere they stay the user's.
    if not any(token in messages for token in tokenizer.control_tokens):
        assert ids == case["ids"]
    # Qwen3's normaliser also merges what a user wrote after a look-alike, since for it that is one text.
    assert tokenizer.decode(ids) == unicodedata.normalize("NFC", case["prompt"])


# Live comparison: conversations that nobody thought of.

TAGS = ["<think>", "</think>", "<tool_response>", "</tool_response>", "<|im_end|>", "<|im_start|>", "<tool_call>"]
LETTERS = ["\n", "\n\n", " ", "<", "<<", "é", "e\u0301", "👩‍👩‍👧", "中", "'", '"', "&", "\\", "{", "}", "a"]
FRAGMENTS = st.sampled_from(TAGS + LETTERS)
TEXT = st.lists(FRAGMENTS | st.text(st.characters(exclude_categories=["Cs"]), max_size=3), max_size=8).map("".join)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)
NAME = st.sampled_from(["f", "get_weather", "查询", "a<b", "<|im_end|>"])
CALL = st.builds(
    lambda name, arguments: {"type": "function", "function": {"name": name, "arguments": arguments}},
    NAME,
    st.dictionaries(TEXT, JSON, max_size=3),
)
MESSAGE = st.one_of(
    st.builds(lambda role, text: {"role": role, "content": text}, st.sampled_from(["system", "user", "tool"]), TEXT),
    st.builds(lambda text: {"role": "assistant", "content": text}, TEXT),
    st.builds(lambda text, why: {"role": "assistant", "content": text, "reasoning_content": why}, TEXT, TEXT),
    st.builds(
        lambda text, calls: {"role": "assistant", "content": text, "tool_calls": calls},
        TEXT,
        st.lists(CALL, min_size=1, max_size=2),
    ),
)
TOOL = st.builds(
    lambda name, text, schema: {
        "type": "function",
        "function": {"name": name, "description": text, "parameters": schema},
    },
    NAME,
    TEXT,
    st.dictionaries(TEXT, JSON, max_size=3),
)
TOOLS = st.none() | st.lists(TOOL, min_size=1, max_size=3, unique_by=lambda tool: tool["function"]["name"])


@settings(max_examples=250, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(MESSAGE, min_size=1, max_size=5), TOOLS, st.sampled_from([None, True, False]), st.booleans())
def test_any_conversation_renders_as_transformers_renders_it(
    template: ChatTemplate, tokenizer: Tokenizer, transformers_tokenizer, messages, tools, thinking, generation_prompt
):
    options = {} if thinking is None else {"enable_thinking": thinking}
    expected = transformers_tokenizer.apply_chat_template(
        messages, tools=tools, tokenize=False, add_generation_prompt=generation_prompt, **options
    )
    arguments: dict[str, Any] = {
        "tools": tools,
        "thinking": thinking,
        "add_generation_prompt": generation_prompt,
    }
    prompt = template.render(messages, **arguments)
    assert prompt.text == expected
    ids = tokenizer.encode_prompt(template.render(messages, **arguments, allow_control_in_content=True))
    assert ids == transformers_tokenizer.encode(expected, add_special_tokens=False)


@settings(max_examples=200, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(MESSAGE, min_size=1, max_size=5), TOOLS)
def test_control_ids_do_not_depend_on_what_messages_say(template, tokenizer, messages, tools):
    """The same conversation with every `<` in outside text replaced has the same control ids, but for what its
    template decides by the text itself (thoughts in contents, tool responses in user messages)."""
    decided = ("<think>", "</think>", "<tool_response>", "</tool_response>")
    text = json.dumps([messages, tools], ensure_ascii=False)
    if any(tag in text for tag in decided):
        return

    def harmless(value: Any) -> Any:
        if isinstance(value, dict):
            return {harmless(key): harmless(item) for key, item in value.items()}
        if isinstance(value, list):
            return [harmless(item) for item in value]
        return value.replace("<", "(") if isinstance(value, str) else value

    def control_ids(messages: Any, tools: Any) -> list[int]:
        ids = tokenizer.encode_prompt(template.render(messages, tools=tools))
        return [token_id for token_id in ids if token_id in set(tokenizer.control_tokens.values())]

    assert control_ids(messages, tools) == control_ids(harmless(messages), harmless(tools))


# The bundled model has a template of our own, which renders as Qwen3's does.


@pytest.fixture(scope="module")
def bundled() -> tuple[ChatTemplate, Tokenizer]:
    folder = Path(kaishu.__file__).parent / "models" / "tiny"
    tokenizer = Tokenizer.from_folder(folder)
    return ChatTemplate.from_folder(folder, control_tokens=tokenizer.control_tokens), tokenizer


@pytest.mark.parametrize("case", CASES, ids=title)
def test_the_bundled_template_renders_as_qwen3s(case, bundled):
    template, tokenizer = bundled
    prompt = render(template, case)
    assert prompt.text == case["prompt"]
    controls = set(tokenizer.control_tokens.values())
    assert tokenizer.decode(tokenizer.encode_prompt(prompt)) == case["prompt"]  # it has no normaliser
    assert controls.isdisjoint(tokenizer.encode(case["prompt"]))


def test_the_bundled_tokenizer_has_qwen3s_control_tokens(bundled, tokenizer):
    assert list(bundled[1].control_tokens) == list(tokenizer.control_tokens)


@settings(max_examples=150, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(MESSAGE, min_size=1, max_size=5), TOOLS, st.sampled_from([None, True, False]))
def test_the_bundled_template_renders_any_conversation_as_qwen3s(template, bundled, messages, tools, thinking):
    expected = template.render(messages, tools=tools, thinking=thinking)
    assert bundled[0].render(messages, tools=tools, thinking=thinking) == expected
