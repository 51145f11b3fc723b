"""Bodies of Anthropic's Messages API, read: what is to be generated, and how it is to be answered.

Owns what each field means here. Each is honoured, or accepted where it asks for nothing, or refused with its name
(messages_fields.py has the tables, messages_history.py the conversation). Knows nothing of HTTP or the model:
prompting.py makes jobs of what comes out, messages_events.py answers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from kaishu.errors import InvalidParameterError, InvalidRequestError
from kaishu.openai_fields import UnknownFields, boolean, integer, model_name, read_object, spelt
from kaishu.output_format import OutputFormat
from kaishu.prompting import ChatRequest, ToolChoice
from kaishu.sampling import SamplingParams
from kaishu.server.messages_fields import (
    COUNT_FIELDS,
    MESSAGE_FIELDS,
    METADATA,
    OUTPUT_CONFIG,
    OUTPUT_FORMAT,
    THINKING,
    TOOL,
    TOOL_CHOICE,
    check_cache_control,
    kind_of,
    members,
)
from kaishu.server.messages_history import History, Json, system_text
from kaishu.text.messages import MAX_TOOLS

Made = TypeVar("Made")
MAX_TOKENS = 2**31 - 1
_SAMPLING = ("temperature", "top_p", "top_k")
# Tokens of thought for each effort, where the thought adapts; None: as many as it likes.
THOUGHT_OF_EFFORT = {"low": 1024, "medium": 4096, "high": None, "xhigh": None, "max": None}


@dataclass(frozen=True)
class MessageCall:
    """A body of /v1/messages, or of its token counting.

    model:           the name that it asks for; whether that is the model here is the caller's to check
    max_tokens:      of the answer
    streams:         whether the answer comes in pieces
    only_first_call: of several calls the answer has the first
    shows_thought:   the answer has its text, not only a sign that there was one
    says_thinking:   the body says whether the model thinks
    names:           our names → the body's, for errors that come later: with spelt(call.names)
    unknown_fields:  to be warned of
    """

    model: str
    request: ChatRequest
    params: SamplingParams
    names: Mapping[str, str]
    unknown_fields: tuple[str, ...]
    max_tokens: int = 1
    streams: bool = False
    only_first_call: bool = False
    shows_thought: bool = True
    says_thinking: bool = False

    def with_thinking(self, make: Callable[[ChatRequest], Made]) -> Made:
        """What is made of the request. Where nothing is said of thinking there is none, but for a model that can't
        answer without.

        raises: what `make` raises
        """
        try:
            return make(self.request)
        except InvalidParameterError as error:
            if self.says_thinking or error.field != "thinking":
                raise
            return make(replace(self.request, thinking=None))


def read_messages(body: object, *, most_messages: int, allow_unknown: bool = False) -> MessageCall:
    """Read a body of /v1/messages.

    body:          parsed JSON
    most_messages: that a conversation may have
    allow_unknown: see read_fields
    raises:        InvalidRequestError and its kinds, naming the field as the body spells it
    """
    unknown = UnknownFields(are_allowed=allow_unknown)
    fields = read_object(body, "", MESSAGE_FIELDS, unknown)
    max_tokens = integer(fields, "max_tokens", 1, MAX_TOKENS)
    if max_tokens is None:
        raise InvalidRequestError(
            "max_tokens is missing; allowed: a whole number of at least 1.",
            field="max_tokens",
            hint="Say how many tokens the answer may have at most.",
        )
    if "metadata" in fields:
        members(fields["metadata"], "metadata", METADATA, unknown)
    stops = fields.get("stop_sequences", [])
    if not isinstance(stops, list):
        raise InvalidParameterError("stop_sequences", stops, "a list of strings")
    output_format, effort = _output_config(fields.get("output_config"), unknown)
    call, thinking = _read_prompt(fields, unknown, most_messages)
    if thinking.budget is not None and thinking.budget >= max_tokens:
        allowed = f"a whole number below max_tokens, which is {max_tokens}, since the answer has to have room, too"
        raise InvalidParameterError("thinking.budget_tokens", thinking.budget, allowed)
    with spelt(call.names):
        params = SamplingParams(
            **{name: fields[name] for name in _SAMPLING if name in fields},
            max_tokens=max_tokens,
            stop=stops,
            thinking_budget=effort if thinking.wanted is None else thinking.budget,
            output_format=output_format,
        )
    return replace(call, params=params, max_tokens=max_tokens, streams=boolean(fields, "stream", False))


def read_count(body: object, *, most_messages: int, allow_unknown: bool = False) -> MessageCall:
    """Read a body of /v1/messages/count_tokens; arguments and errors as for read_messages."""
    unknown = UnknownFields(are_allowed=allow_unknown)
    fields = read_object(body, "", COUNT_FIELDS, unknown)
    _output_config(fields.get("output_config"), unknown)
    return _read_prompt(fields, unknown, most_messages)[0]


@dataclass(frozen=True)
class _Thinking:
    """wanted: None where it is the model's choice"""

    wanted: bool | None
    budget: int | None = None
    is_shown: bool = True


def _read_prompt(
    fields: Mapping[str, Any], unknown: UnknownFields, most_messages: int
) -> tuple[MessageCall, _Thinking]:
    """What both routes read; the last to be read."""
    if "cache_control" in fields:
        check_cache_control(fields["cache_control"], "cache_control", unknown)
    messages = fields.get("messages")
    if isinstance(messages, list) and len(messages) > most_messages:
        allowed = f"at most {most_messages:,} messages"
        raise InvalidParameterError("messages", f"a list of {len(messages):,}", allowed)
    history = History(messages, unknown)
    if len(history.messages) > most_messages:
        allowed = f"at most {most_messages:,} messages and results of calls together"
        raise InvalidParameterError("messages", f"{len(history.messages):,} of them", allowed)
    told = system_text(fields["system"], unknown) if "system" in fields else ""
    before = [{"role": "system", "content": told}] if told else []
    thinking = _thinking(fields.get("thinking"), unknown)
    if thinking.wanted and history.ends_with_assistant:
        raise InvalidRequestError(
            "thinking is enabled, but the last message is the assistant's, so the answer has begun already.",
            field="thinking",
            hint="Leave one of them out.",
        )
    tools = _tools(fields.get("tools"), unknown)
    choice, parallel = _tool_choice(fields.get("tool_choice"), unknown)
    _check_strict(fields.get("tools") or [], choice)
    places = ["system"] * len(before) + history.places
    names = {f"messages[{index}]": place for index, place in enumerate(places)}
    for index in range(len(tools)):
        names[f"tools[{index}].function.parameters"] = f"tools[{index}].input_schema"
        names[f"tools[{index}].function"] = f"tools[{index}]"
    names |= {"stop": "stop_sequences", "thinking_budget": "thinking.budget_tokens", "prompt": "messages"}
    names["output_format"] = "output_config.format"
    request = ChatRequest(
        [*before, *history.messages],
        tools or None,
        choice,
        parallel_tool_calls=parallel,
        thinking=thinking.wanted,
        continue_final_message=history.ends_with_assistant,
    )
    call = MessageCall(
        model_name(fields),
        request,
        SamplingParams(),
        names,
        tuple(unknown.places),
        only_first_call=not parallel,
        shows_thought=thinking.is_shown,
        says_thinking="thinking" in fields,
    )
    return call, thinking


def _thinking(value: object, unknown: UnknownFields) -> _Thinking:
    if value is None:
        return _Thinking(wanted=False)
    kind = kind_of(value, "thinking", tuple(THINKING))
    found = members(value, "thinking", THINKING[kind], unknown)
    display = found.get("display", "summarized")
    if display not in ("summarized", "omitted"):
        raise InvalidParameterError("thinking.display", display, "summarized, omitted")
    if kind != "enabled":
        return _Thinking(wanted=None if kind == "adaptive" else False, is_shown=display != "omitted")
    budget = found.get("budget_tokens")
    if not isinstance(budget, int) or isinstance(budget, bool) or budget < 1:
        raise InvalidParameterError("thinking.budget_tokens", budget, "a whole number of at least 1")
    return _Thinking(wanted=True, budget=budget, is_shown=display != "omitted")


def _tools(value: object, unknown: UnknownFields) -> list[Json]:
    """Tools in OpenAI's form. raises: InvalidRequestError and its kinds"""
    if value is None:
        return []
    if not isinstance(value, list) or len(value) > MAX_TOOLS:
        raise InvalidParameterError("tools", value, f"a list of at most {MAX_TOOLS:,} tools")
    return [_tool(tool, f"tools[{index}]", unknown) for index, tool in enumerate(value)]


def _tool(tool: object, path: str, unknown: UnknownFields) -> Json:
    if isinstance(tool, Mapping) and tool.get("type") is not None:
        kind_of(tool, path, ("custom",), hint="Of tools that run elsewhere, give a function of your own instead.")
    found = members(tool, path, TOOL, unknown)
    schema, examples = found.get("input_schema"), found.get("input_examples")
    if not isinstance(schema, Mapping):
        raise InvalidParameterError(f"{path}.input_schema", schema, "a JSON schema of type object")
    if not isinstance(found.get("strict", False), bool):
        raise InvalidParameterError(f"{path}.strict", found["strict"], "true or false")
    if not isinstance(examples, list | None) or not all(isinstance(one, Mapping) for one in examples or []):
        raise InvalidParameterError(f"{path}.input_examples", examples, "a list of objects")
    function = {"name": found.get("name"), "description": found.get("description"), "parameters": schema}
    if examples:
        function["input_examples"] = examples
    return {"type": "function", "function": {key: value for key, value in function.items() if value is not None}}


def _check_strict(tools: list[Json], choice: ToolChoice) -> None:
    """Only calls that have to be made are held to their schema."""
    for index, tool in enumerate(tools):
        if tool.get("strict") and choice in (None, "auto"):
            raise InvalidParameterError(
                f"tools[{index}].strict",
                True,
                "false, unless tool_choice is any or tool",
                hint="With these two, input is always valid under its schema.",
            )


def _tool_choice(value: object, unknown: UnknownFields) -> tuple[ToolChoice, bool]:
    """return: in OpenAI's form; whether there may be several calls"""
    if value is None:
        return None, True
    kind = kind_of(value, "tool_choice", tuple(TOOL_CHOICE))
    found = members(value, "tool_choice", TOOL_CHOICE[kind], unknown)
    is_single = found.get("disable_parallel_tool_use", False)
    if not isinstance(is_single, bool):
        raise InvalidParameterError("tool_choice.disable_parallel_tool_use", is_single, "true or false")
    if kind != "tool":
        return {"auto": "auto", "any": "required", "none": "none"}[kind], not is_single
    name = found.get("name")
    if not isinstance(name, str):
        raise InvalidParameterError("tool_choice.name", name, "the name of one of the tools")
    return {"type": "function", "function": {"name": name}}, not is_single


def _output_config(config: object, unknown: UnknownFields) -> tuple[OutputFormat | None, int | None]:
    """return: the form of the answer; for how many tokens it may think first where that is its own choice"""
    found = {} if config is None else members(config, "output_config", OUTPUT_CONFIG, unknown)
    effort, wanted = found.get("effort", "high"), found.get("format")
    if not isinstance(effort, str) or effort not in THOUGHT_OF_EFFORT:
        raise InvalidParameterError("output_config.effort", effort, ", ".join(THOUGHT_OF_EFFORT))
    if wanted is None:
        return None, THOUGHT_OF_EFFORT[effort]
    schema = members(wanted, "output_config.format", OUTPUT_FORMAT, unknown).get("schema")
    form = OutputFormat.json_schema(schema, field_name="output_config.format.schema")  # type: ignore[arg-type]
    return form, THOUGHT_OF_EFFORT[effort]
