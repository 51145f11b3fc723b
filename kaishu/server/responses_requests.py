"""Bodies of /v1/responses, read: what is to be generated, and what the answer says of the request.

Owns the fields of OpenAI's Responses API, after its reference: each is honoured, or accepted where it asks for nothing,
or refused with its name. The server keeps nothing, so every request holds its whole conversation. What fields mean
that other bodies have too is in openai_requests.py, what items mean in responses_input.py. Pure: knows nothing of HTTP.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kaishu.errors import InvalidParameterError, InvalidRequestError
from kaishu.json_fields import shown
from kaishu.openai_fields import (
    FLAT_RESPONSE_FORMAT,
    STREAM_OPTIONS,
    Field,
    UnknownFields,
    boolean,
    integer,
    model_name,
    priority,
    read_object,
    spelt,
)
from kaishu.openai_requests import Call, read_response_format, read_sampling, read_streaming, read_thinking
from kaishu.prompting import ChatRequest, ToolChoice
from kaishu.sampling import SamplingParams
from kaishu.server.responses_input import Conversation, Json, read_tools, shown_tool

LOGPROBS = "message.output_text.logprobs"
ENCRYPTED = "reasoning.encrypted_content"
INCLUDABLE = (  # all but the first two are of what never is in an answer here, or is there anyway
    LOGPROBS,
    ENCRYPTED,
    "message.input_image.image_url",
    "file_search_call.results",
    "web_search_call.results",
    "web_search_call.action.sources",
    "computer_call_output.output.image_url",
    "code_interpreter_call.outputs",
)

_READ, _OURS = Field("read"), Field("read", is_ours=True)
_TEXT = Field("noted", kind=str)
_STORED = "Nothing is stored here: give the whole conversation as input."

RESPONSE_FIELDS: Mapping[str, Field] = {
    "model": _READ,
    "input": _READ,
    "instructions": _READ,
    "max_output_tokens": _READ,
    "temperature": _READ,
    "top_p": _READ,
    "include": _READ,
    "top_logprobs": _READ,
    "text": _READ,
    "reasoning": _READ,
    "tools": _READ,
    "tool_choice": _READ,
    "parallel_tool_calls": _READ,
    "stream": _READ,
    "stream_options": Field("read", inside=STREAM_OPTIONS),
    "metadata": _READ,
    "prompt_cache_options": _READ,
    "user": _TEXT,
    "safety_identifier": _TEXT,
    "prompt_cache_key": _TEXT,
    "prompt_cache_retention": _TEXT,
    "store": Field("neutral", (False,), instead="Nothing is stored here; keep the answer yourself."),
    "previous_response_id": Field("neutral", instead=_STORED),
    "conversation": Field("neutral", instead=_STORED),
    "prompt": Field("neutral", instead="No prompts are stored here: give its text as instructions."),
    "background": Field("neutral", (False,), instead="Wait for the answer, or stream it."),
    "background_options": Field("neutral", ({}, {"completion_window": "soonest"}), instead="Leave it out."),
    "truncation": Field("neutral", ("disabled",), instead="Nothing is cut here; leave out earlier items yourself."),
    "context_management": Field("neutral", ([],), instead="Leave out or sum up earlier items yourself."),
    "max_tool_calls": Field("neutral", instead="There are no built-in tools here, of which it counts the calls."),
    "service_tier": Field("neutral", ("auto", "default"), instead="Say what is urgent with priority."),
    "moderation": Field("neutral", instead="There is no moderation here."),
    "image": Field("neutral", ({},), instead="The model reads and writes text only."),
    "access_programs": Field("neutral", ({},), instead="There are none here."),
    "top_k": _OURS,
    "min_p": _OURS,
    "repetition_penalty": _OURS,
    "presence_penalty": _OURS,
    "frequency_penalty": _OURS,
    "seed": _OURS,
    "stop": _OURS,
    "stop_token_ids": _OURS,
    "min_tokens": _OURS,
    "ignore_eos": _OURS,
    "logit_bias": _OURS,
    "thinking_budget": _OURS,
    "enable_thinking": _OURS,
    "chat_template_kwargs": _OURS,
    "priority": _OURS,
    # The chat API's names for what is called otherwise here; to leave them unread would change the answer.
    "messages": Field("neutral", instead="Use input.", is_ours=True),
    "max_tokens": Field("neutral", instead="Use max_output_tokens.", is_ours=True),
    "max_completion_tokens": Field("neutral", instead="Use max_output_tokens.", is_ours=True),
    "response_format": Field("neutral", instead="Use text.format.", is_ours=True),
    "reasoning_effort": Field("neutral", instead="Use reasoning.effort.", is_ours=True),
    "logprobs": Field("neutral", (False,), instead=f"Use include, with {LOGPROBS}.", is_ours=True),
    "n": Field("neutral", (1,), instead="Ask several times.", is_ours=True),
}

_LABELS = ("user", "safety_identifier", "prompt_cache_key")
MAX_LABEL_CHARACTERS = 512

REASONING: Mapping[str, Field] = {
    "effort": _READ,
    "summary": _READ,
    "generate_summary": Field("neutral", instead="Use summary."),
    "context": Field("neutral", ("auto",), instead="The model's template says which thoughts it reads again."),
    "mode": Field("neutral", ("standard",), instead="There is no other here."),
}
TEXT_FIELDS: Mapping[str, Field] = {
    "format": Field("read", inside=FLAT_RESPONSE_FORMAT),
    "verbosity": Field("neutral", ("medium",), instead="Say in the instructions how long the answer should be."),
}
CACHE_OPTIONS: Mapping[str, Field] = {
    "mode": _TEXT,
    "ttl": _TEXT,
    "prewarm": Field("neutral", (False,), instead="Ask for one token of output."),
    "comparison_response_id": Field("neutral", instead=_STORED),
}
TOOL_CHOICE: Mapping[str, Mapping[str, Field]] = {  # by type
    "function": {"type": _READ, "name": _READ},
    "allowed_tools": {"type": _READ, "mode": _READ, "tools": _READ},
}


@dataclass(frozen=True)
class ResponseCall(Call):
    """A body of /v1/responses.

    only_first_call: parallel_tool_calls is false, so of several calls the answer has the first
    packs_thoughts:  the answer has its thoughts in encrypted_content, too
    echo:            what the answer repeats of the body
    """

    request: ChatRequest = field(default_factory=lambda: ChatRequest([]))
    params: SamplingParams = field(default_factory=SamplingParams)
    only_first_call: bool = False
    packs_thoughts: bool = False
    echo: Mapping[str, Any] = field(default_factory=dict)


def read_response(body: object, *, allow_unknown: bool = False) -> ResponseCall:
    """Read a body of /v1/responses.

    body:          parsed JSON
    allow_unknown: see read_fields
    raises:        InvalidRequestError and its kinds, naming the field as the body spells it. What needs the model is
                   checked later, by Prompting.chat, for with spelt(call.names)
    """
    unknown = UnknownFields(are_allowed=allow_unknown)
    fields = read_object(body, "", RESPONSE_FIELDS, unknown)
    names = {
        "messages": "input",
        "prompt": "input",
        "max_tokens": "max_output_tokens",
        "logprobs": "top_logprobs",
        "output_format": "text.format",
        "template_arguments": "chat_template_kwargs",
    }
    text, reasoning, _ = (
        read_object(fields.get(name, {}), name, table, unknown)
        for name, table in (("text", TEXT_FIELDS), ("reasoning", REASONING), ("prompt_cache_options", CACHE_OPTIONS))
    )
    params = read_sampling(
        fields,
        names,
        max_tokens=fields.get("max_output_tokens"),
        logprobs=_num_logprobs(fields),
        output_format=read_response_format(text.get("format"), "text.format", is_flat=True),
    )
    streams, include_usage = read_streaming(fields, may_stream=True)
    request = _request(fields, reasoning, names, unknown)
    return ResponseCall(
        model_name(fields),
        streams,
        include_usage,
        tuple(unknown.places),
        names,
        request=request,
        params=params,
        only_first_call=not request.parallel_tool_calls,
        packs_thoughts=ENCRYPTED in fields.get("include", ()),
        echo=_echo(
            body,
            max_output_tokens=params.max_tokens,
            metadata=_metadata(fields),
            parallel_tool_calls=request.parallel_tool_calls,
            reasoning={"effort": reasoning.get("effort"), "summary": _summary(reasoning)},
            text={"format": text.get("format") or {"type": "text"}, "verbosity": "medium"},
            tool_choice=fields.get("tool_choice", "auto"),
            tools=[shown_tool(tool) for tool in fields.get("tools", [])],
            top_logprobs=params.logprobs or 0,
        ),
    )


def _request(fields: Json, reasoning: Json, names: dict[str, str], unknown: UnknownFields) -> ChatRequest:
    """What the model reads. names: get the places of messages and tools"""
    conversation = _conversation(fields, unknown)
    choice, allowed = _tool_choice(fields.get("tool_choice"), unknown)
    tools, tool_names = read_tools(fields.get("tools", []), unknown, allowed)
    names |= conversation.names | tool_names
    thinking, template_arguments = _thinking(fields, reasoning, names)
    return ChatRequest(
        conversation.messages,
        tools or None,
        choice,
        parallel_tool_calls=boolean(fields, "parallel_tool_calls", True),
        thinking=thinking,
        template_arguments=template_arguments,
        priority=priority(fields),
    )


def _echo(body: Any, **read: object) -> Json:
    """What the answer repeats, of the body as it stands and as it was read; so that it is no longer than it need be.

    raises: InvalidParameterError
    """
    for name in _LABELS:
        if len(body.get(name) or "") > MAX_LABEL_CHARACTERS:
            raise InvalidParameterError(name, body[name], f"a string of at most {MAX_LABEL_CHARACTERS} characters")
    return {name: body.get(name) for name in ("instructions", *_LABELS)} | read


def _conversation(fields: Json, unknown: UnknownFields) -> Conversation:
    if "input" not in fields:
        raise InvalidRequestError(
            "input is missing; allowed: a text, or a list of items.", field="input", hint="Begin with a user message."
        )
    conversation = Conversation(unknown)
    if "instructions" in fields:
        conversation.add_instructions(fields["instructions"])
    conversation.add_input(fields["input"])
    return conversation


def _thinking(fields: Json, reasoning: Json, names: dict[str, str]) -> tuple[bool | None, Mapping[str, Any] | None]:
    said = {**fields, "reasoning_effort": reasoning["effort"]} if "effort" in reasoning else fields
    with spelt({"reasoning_effort": "reasoning.effort"}):
        found = read_thinking(said, names)
    if names.get("thinking") == "reasoning_effort":
        names["thinking"] = "reasoning.effort"
    return found


def _summary(reasoning: Json) -> str | None:
    """Whether the thought is to come as a summary, too: the fullest one, which leaves nothing out."""
    summary = reasoning.get("summary")
    if summary not in (None, "auto", "detailed"):
        hint = "Nothing sums the thought up: as a summary it comes whole."
        raise InvalidParameterError("reasoning.summary", summary, '"auto", "detailed", null', hint=hint)
    return summary


def _num_logprobs(fields: Json) -> int | None:
    """How many alternatives each token gets; None where log probabilities aren't asked for."""
    include = fields.get("include", [])
    if not isinstance(include, list):
        raise InvalidParameterError("include", include, "a list of names")
    for index, name in enumerate(include):
        if name not in INCLUDABLE:
            raise InvalidParameterError(f"include[{index}]", name, ", ".join(INCLUDABLE))
    num_top = integer(fields, "top_logprobs", 0, 20) or 0
    if LOGPROBS in include:
        return num_top
    if num_top:
        raise InvalidParameterError("top_logprobs", num_top, f"0 or null, unless include has {shown(LOGPROBS)}")
    return None


def _tool_choice(choice: object, unknown: UnknownFields) -> tuple[ToolChoice, dict[str, str] | None]:
    """return: in the chat API's form; the names of the tools that may be called, each with its place, if not of all"""
    if choice is None or choice in ("auto", "none", "required"):
        return choice, None
    kind = choice.get("type") if isinstance(choice, dict) else None
    said = (
        read_object(choice, "tool_choice", TOOL_CHOICE[kind], unknown) if kind in ("function", "allowed_tools") else {}
    )
    if kind == "function" and isinstance(said.get("name"), str):
        return said, None
    if kind != "allowed_tools":
        allowed = '"auto", "none", "required", {"type": "function", "name": ...} or {"type": "allowed_tools", ...}'
        raise InvalidParameterError("tool_choice", choice, allowed)
    mode, tools = said.get("mode"), said.get("tools")
    if mode not in ("auto", "required"):
        raise InvalidParameterError("tool_choice.mode", mode, "auto, required")
    if not isinstance(tools, list) or not tools:
        raise InvalidParameterError("tool_choice.tools", tools, "a list of at least one function")
    names = {}
    for index, tool in enumerate(tools):
        path = f"tool_choice.tools[{index}]"
        one = read_object(tool, path, TOOL_CHOICE["function"], unknown)
        if one.get("type") != "function" or not isinstance(one.get("name"), str):
            raise InvalidParameterError(path, tool, '{"type": "function", "name": ...}')
        names[one["name"]] = f"{path}.name"
    return mode, names


def _metadata(fields: Json) -> Mapping[str, str]:
    """The caller's own notes, which the answer repeats; OpenAI's limits."""
    metadata = fields.get("metadata", {})
    allowed = "an object of at most 16 strings of 512 characters, with names of 64"
    if not isinstance(metadata, dict) or len(metadata) > 16:
        raise InvalidParameterError("metadata", metadata, allowed)
    for name, value in metadata.items():
        if len(name) > 64 or not isinstance(value, str) or len(value) > 512:
            raise InvalidParameterError(f"metadata.{name[:64]}", value, allowed)
    return metadata
