"""Bodies of OpenAI's chat and completion requests, read: what is to be generated, and how it is to be answered.

Owns what each field means here. Each is honoured, or accepted where it asks for nothing, or refused with its name
(openai_fields.py has the tables). Knows nothing of HTTP, files or the model: prompting.py makes jobs of what comes out,
openai_responses.py answers. Used by batch_run.py and the server.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kaishu.deltas import CompletionDeltas
from kaishu.errors import InvalidParameterError, InvalidRequestError, shortened
from kaishu.openai_fields import (
    CHAT_FIELDS,
    COMPLETION_FIELDS,
    SCHEMA,
    boolean,
    integer,
    model_name,
    priority,
    read_fields,
    spelt,
)
from kaishu.output_format import OutputFormat
from kaishu.prompting import ChatRequest
from kaishu.sampling import SamplingParams
from kaishu.sampling.params import MAX_CHOICES

MAX_PROMPTS = 2048  # of one request
COMPLETION_TOKENS = 16  # what max_tokens of /v1/completions is in OpenAI's API, unless it is given
EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")

_SAMPLING = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "seed",
    "n",
    "stop",
    "stop_token_ids",
    "min_tokens",
    "ignore_eos",
    "logit_bias",
    "thinking_budget",
)


@dataclass(frozen=True)
class Call:
    """What a body of any kind says.

    model:          the name that it asks for; whether that is the model here is the caller's to check
    streams:        whether the answer comes in pieces
    include_usage:  whether a stream ends with the usage
    unknown_fields: to be warned of
    names:          our names → the body's, for errors that come later: with spelt(call.names)
    """

    model: str
    streams: bool
    include_usage: bool
    unknown_fields: tuple[str, ...]
    names: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class ChatCall(Call):
    """A body of /v1/chat/completions.

    only_first_call: parallel_tool_calls is false, so of several calls the answer has the first
    """

    request: ChatRequest = field(default_factory=lambda: ChatRequest([]))
    params: SamplingParams = field(default_factory=SamplingParams)
    only_first_call: bool = False


@dataclass(frozen=True)
class CompletionCall(Call):
    """A body of /v1/completions.

    prompts:    texts or token ids, not yet checked against the vocabulary
    echo:       whether the text begins with the prompt
    wants_text: False where the prompt is all that the text has; params then allow a token, since the engine chooses one
    """

    prompts: tuple[str | list[int], ...] = ()
    params: SamplingParams = field(default_factory=SamplingParams)
    echo: bool = False
    wants_text: bool = True
    priority: int = 0

    def new_deltas(self) -> CompletionDeltas:
        """What reads the events of one of its prompts."""
        return CompletionDeltas(wants_text=self.wants_text)


def read_chat(body: object, *, allow_unknown: bool = False, may_stream: bool = False) -> ChatCall:
    """Read a body of /v1/chat/completions.

    body:          parsed JSON
    allow_unknown: see read_fields
    may_stream:    whether `stream` may be true
    raises:        InvalidRequestError and its kinds, naming the field as the body spells it. Messages, tools and what
                   needs the model are checked later, by Prompting.chat
    """
    fields, unknown = read_fields(body, CHAT_FIELDS, allow_unknown=allow_unknown)
    if "messages" not in fields:
        raise InvalidRequestError(
            "messages is missing; allowed: a list of messages.", field="messages", hint="Begin with a user message."
        )
    names = {"template_arguments": "chat_template_kwargs", "output_format": "response_format", "prompt": "messages"}
    thinking, template_arguments = read_thinking(fields, names)
    wants_logprobs = boolean(fields, "logprobs", False)
    num_top = integer(fields, "top_logprobs", 0, 20) or 0
    if num_top and not wants_logprobs:
        raise InvalidParameterError("top_logprobs", num_top, "0 or null, unless logprobs is true")
    params = read_sampling(
        fields,
        names,
        max_tokens=_max_tokens(fields, names),
        logprobs=num_top if wants_logprobs else None,
        output_format=read_response_format(fields.get("response_format")),
    )
    streams, include_usage = read_streaming(fields, may_stream)
    parallel = boolean(fields, "parallel_tool_calls", True)
    return ChatCall(
        model_name(fields),
        streams,
        include_usage,
        unknown,
        names,
        request=ChatRequest(
            fields["messages"],
            fields.get("tools"),
            fields.get("tool_choice"),
            parallel_tool_calls=parallel,
            thinking=thinking,
            continue_final_message=boolean(fields, "continue_final_message", False),
            template_arguments=template_arguments,
            priority=priority(fields),
        ),
        params=params,
        only_first_call=not parallel,
    )


def read_completion(body: object, *, allow_unknown: bool = False, may_stream: bool = False) -> CompletionCall:
    """Read a body of /v1/completions; arguments and errors as for read_chat."""
    fields, unknown = read_fields(body, COMPLETION_FIELDS, allow_unknown=allow_unknown)
    names = {"output_format": "response_format", "prompt_logprobs": "logprobs", "text": "prompt"}
    echo, num_top = boolean(fields, "echo", False), integer(fields, "logprobs", 0, 20)
    if integer(fields, "best_of", 1, MAX_CHOICES) not in (None, fields.get("n", 1)):
        raise InvalidParameterError("best_of", fields["best_of"], "n, or null", hint="Ask for n and choose yourself.")
    max_tokens = fields.get("max_tokens", COMPLETION_TOKENS)
    wants_text = not (echo and type(max_tokens) is int and max_tokens == 0)
    if not wants_text and fields.get("min_tokens"):
        raise InvalidParameterError("min_tokens", fields["min_tokens"], "0 or null, since max_tokens is 0")
    params = read_sampling(
        fields,
        names,
        max_tokens=max_tokens if wants_text else 1,
        logprobs=num_top,
        prompt_logprobs=num_top if echo else None,
        output_format=read_response_format(fields.get("response_format")),
    )
    streams, include_usage = read_streaming(fields, may_stream)
    return CompletionCall(
        model_name(fields),
        streams,
        include_usage,
        unknown,
        names,
        prompts=tuple(read_inputs("prompt", fields.get("prompt"))),
        params=params,
        echo=echo,
        wants_text=wants_text,
        priority=priority(fields),
    )


def read_inputs(name: str, value: object) -> list[str | list[int]]:
    """A field that holds one text, one list of token ids, or a list of such.

    return: at least one; ids aren't looked at
    raises: InvalidParameterError
    """
    if isinstance(value, str):
        return [value]
    if not isinstance(value, list) or not value:
        raise InvalidParameterError(name, value, "a text, a list of token ids, or a list of such, not empty")
    if not any(isinstance(one, str | list) for one in value):
        return [value]
    kind = type(value[0])
    for index, one in enumerate(value):
        if not isinstance(one, str | list) or type(one) is not kind:
            raise InvalidParameterError(f"{name}[{index}]", one, "only texts, or only lists of token ids")
    if len(value) > MAX_PROMPTS:
        raise InvalidRequestError(
            f"{name} has {len(value):,} entries; allowed: {MAX_PROMPTS:,}.",
            field=name,
            hint="Make it several requests.",
        )
    return value


def read_response_format(value: object, name: str = "response_format", *, is_flat: bool = False) -> OutputFormat | None:
    """The form that the answer has to have; None for any text.

    value:   OpenAI's {"type": "text"}, {"type": "json_object"}, {"type": "json_schema", "json_schema": {...}}; and
             Kaishu's own {"type": KIND, KIND: ...} for regex, lark and choice. A schema is kept to, `strict` or not.
             What no kind has was left out by read_object; what another kind has is refused here
    name:    what the body calls it
    is_flat: name, schema and strict stand beside the type, as in /v1/responses
    raises:  InvalidRequestError and its kinds, naming the field and the place in it
    """
    if value is None:
        return None
    if not isinstance(value, dict):
        raise InvalidParameterError(name, value, 'an object such as {"type": "json_object"}')
    kind = value.get("type")
    kinds = ("text", "json_object", "json_schema", "regex", "lark", "choice")
    if not isinstance(kind, str) or kind not in kinds:
        raise InvalidParameterError(f"{name}.type", kind, ", ".join(kinds))
    allowed = () if kind in ("text", "json_object") else tuple(SCHEMA) if kind == "json_schema" and is_flat else (kind,)
    for key, given in value.items():
        if key not in ("type", *allowed):
            raise InvalidParameterError(f"{name}.{shortened(key)}", given, f"null with the type {kind}")
    if kind == "text":
        return None
    if kind == "json_object":
        return OutputFormat.json_object(field_name=name)
    if kind != "json_schema":
        return OutputFormat(kind, value.get(kind), f"{name}.{kind}")  # type: ignore[arg-type]  # it checks both
    return _json_schema(value, name) if is_flat else _json_schema(value.get("json_schema"), f"{name}.json_schema")


def _json_schema(described: object, name: str) -> OutputFormat:
    if not isinstance(described, dict):
        raise InvalidParameterError(name, described, 'an object, {"name": ..., "schema": {...}}')
    title = described.get("name")
    letters = isinstance(title, str) and title.replace("_", "a").replace("-", "a")
    if not letters or not (letters.isascii() and letters.isalnum() and len(letters) <= 64):
        raise InvalidParameterError(f"{name}.name", title, "up to 64 letters, digits, underscores and dashes")
    if not isinstance(described.get("strict"), bool | None):
        raise InvalidParameterError(f"{name}.strict", described["strict"], "true, false or null")
    if not isinstance(described.get("description"), str | None):
        raise InvalidParameterError(f"{name}.description", described["description"], "a string or null")
    return OutputFormat.json_schema(described.get("schema"), field_name=f"{name}.schema")  # type: ignore[arg-type]


def read_sampling(fields: Mapping[str, Any], names: Mapping[str, str], **further: Any) -> SamplingParams:
    """Sampling, of the fields that are called the same here and there, and of others.

    names:   see Call.names
    further: what is called otherwise, by our names
    raises:  InvalidParameterError
    """
    given = {name: fields[name] for name in _SAMPLING if name in fields}
    with spelt(names):
        return SamplingParams(**given, **further)


def _max_tokens(fields: Mapping[str, Any], names: dict[str, str]) -> Any:
    old, new = fields.get("max_tokens"), fields.get("max_completion_tokens")
    if new is None:
        return old
    if old is not None and old != new:
        raise InvalidParameterError("max_tokens", old, "null, or what max_completion_tokens is")
    names["max_tokens"] = "max_completion_tokens"
    return new


def read_thinking(fields: Mapping[str, Any], names: dict[str, str]) -> tuple[bool | None, Mapping[str, Any] | None]:
    """Whether the model thinks first, which three fields can say, and the template's other arguments.

    names:  see Call.names; gets the field that said it
    raises: InvalidRequestError and its kinds, where it is none of these or they contradict each other
    """
    arguments = fields.get("chat_template_kwargs")
    said: dict[str, Any] = {}
    if isinstance(arguments, dict) and "enable_thinking" in arguments:
        arguments = dict(arguments)
        said["chat_template_kwargs.enable_thinking"] = arguments.pop("enable_thinking")
    if "enable_thinking" in fields:
        said["enable_thinking"] = fields["enable_thinking"]
    if "reasoning_effort" in fields:
        effort = fields["reasoning_effort"]
        if not isinstance(effort, str) or effort not in EFFORTS:
            raise InvalidParameterError("reasoning_effort", effort, ", ".join(EFFORTS))
        said["reasoning_effort"] = effort != "none"
    thinking: bool | None = None
    for name, value in said.items():
        if not isinstance(value, bool):
            raise InvalidParameterError(name, value, "true or false")
        if thinking is not None and value != thinking:
            raise InvalidRequestError(f"{name} and {names['thinking']} contradict each other.", field=name)
        thinking, names["thinking"] = value, name
    return thinking, arguments or None if isinstance(arguments, dict) else arguments


def read_streaming(fields: Mapping[str, Any], may_stream: bool) -> tuple[bool, bool]:
    """Whether the answer comes in pieces, and whether they end with the usage.

    raises: InvalidParameterError
    """
    streams = boolean(fields, "stream", False)
    if streams and not may_stream:
        raise InvalidParameterError("stream", True, "false or null, since the answer goes into a file")
    options = fields.get("stream_options")
    if options is None:
        return streams, False
    if not streams:
        raise InvalidParameterError("stream_options", options, "null, unless stream is true")
    if not isinstance(options, dict):
        raise InvalidParameterError("stream_options", options, 'an object such as {"include_usage": true}')
    wants_usage = options.get("include_usage", False)
    if not isinstance(wants_usage, bool):
        raise InvalidParameterError("stream_options.include_usage", wants_usage, "true, false or null")
    return streams, wants_usage
