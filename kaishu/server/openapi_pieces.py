"""What fields of request bodies may be, as pieces of JSON schema, for the server's OpenAPI document.

Owns these pieces: for each field that is read, its type, its bounds and a sentence. The fields themselves, and what
becomes of those that aren't read, are in the tables of the routes; openapi.py puts both together. A piece says what is
checked of a field by itself; what depends on the model or on other fields is said in its sentence or by the error.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from kaishu.openai_requests import EFFORTS, MAX_PROMPTS
from kaishu.sampling.params import MAX_CHOICES, MAX_LOGPROBS, MAX_STOP_STRINGS

Json = dict[str, Any]
Pieces = Mapping[str, Json]


def nullable(piece: Json) -> Json:
    """The same, or null, which everywhere is what leaving the field out is."""
    if isinstance(piece.get("type"), str) and "enum" not in piece:
        return {**piece, "type": [piece["type"], "null"]}
    described = {"description": piece["description"]} if "description" in piece else {}
    return {
        "anyOf": [{key: said for key, said in piece.items() if key != "description"}, {"type": "null"}],
        **described,
    }


def an_object(properties: Json, required: tuple[str, ...] = ()) -> Json:
    """An object that has these properties; those that aren't required may be null, and further ones are left unread,
    with a warning."""
    made = {name: piece if name in required else nullable(piece) for name, piece in properties.items()}
    return {
        "type": "object",
        "properties": made,
        **({"required": list(required)} if required else {}),
    }


def a_list(of: Json, at_least: int = 0, at_most: int | None = None, **further: Any) -> Json:
    """A list, all of whose members are alike."""
    bounds = {"minItems": at_least} if at_least else {}
    return {"type": "array", "items": of, **bounds, **({} if at_most is None else {"maxItems": at_most}), **further}


def either(*pieces: Json, description: str) -> Json:
    """One of several forms."""
    return {"anyOf": list(pieces), "description": description}


def _whole(description: str, low: int, high: int | None = None) -> Json:
    return {
        "type": "integer",
        "minimum": low,
        **({} if high is None else {"maximum": high}),
        "description": description,
    }


def _number(description: str, low: float, high: float | None = None) -> Json:
    return {**_whole(description, 0), "type": "number", "minimum": low} | ({} if high is None else {"maximum": high})


def _truth(description: str) -> Json:
    return {"type": "boolean", "description": description}


TEXT: Json = {"type": "string"}
SOME_TEXT: Json = {"type": "string", "minLength": 1}
OBJECT: Json = {"type": "object"}
_IDS = a_list({"type": "integer", "minimum": 0}, 1)
_TEXT_PART = an_object({"type": {"const": "text"}, "text": TEXT}, ("type", "text"))
_CONTENT: Json = {"anyOf": [TEXT, a_list({"$ref": "#/components/schemas/TextPart"}, 1)]}
FUNCTION_NAME: Json = {"type": "string", "minLength": 1, "pattern": r'^[^"\\\x00-\x1f]+$'}
_FUNCTION_CALL = an_object(
    {
        "id": {},
        "type": {"const": "function"},
        "function": an_object(
            {"name": FUNCTION_NAME, "arguments": {"type": ["string", "object"], "description": "JSON, an object."}},
            ("name", "arguments"),
        ),
    },
    ("function",),
)
_MESSAGE: Json = {
    "anyOf": [
        an_object(
            {"role": {"enum": ["system", "developer", "user"]}, "content": _CONTENT, "name": TEXT}, ("role", "content")
        ),
        an_object(
            {
                "role": {"const": "assistant"},
                "content": _CONTENT,
                "name": TEXT,
                "reasoning_content": {**TEXT, "description": "What was thought before it."},
                "tool_calls": a_list({"$ref": "#/components/schemas/ToolCall"}),
            },
            ("role",),
        ),
        an_object(
            {
                "role": {"const": "tool"},
                "content": {"anyOf": [*_CONTENT["anyOf"], OBJECT]},
                "tool_call_id": TEXT,
                "name": TEXT,
            },
            ("role", "content"),
        ),
    ]
}
_TOOL: Json = {
    "type": "object",
    "properties": {
        "type": {"const": "function"},
        "function": {
            "type": "object",
            "properties": {
                "name": FUNCTION_NAME,
                "description": nullable(TEXT),
                "parameters": nullable({**OBJECT, "description": "A JSON schema of type object."}),
                "strict": nullable(
                    _truth(
                        "Where a call is required or named its arguments keep to parameters in any case, else in none."
                    )
                ),
            },
            "required": ["name"],
        },
    },
    "required": ["type", "function"],
}
SHARED_SCHEMAS: Pieces = {"TextPart": _TEXT_PART, "ToolCall": _FUNCTION_CALL, "Message": _MESSAGE, "Tool": _TOOL}

_SCHEMA_FORMAT = an_object(
    {
        "name": {"type": "string", "pattern": "^[A-Za-z0-9_-]{1,64}$"},
        "schema": OBJECT,
        "strict": _truth("Kept to in any case."),
    },
    ("name", "schema"),
)
FURTHER_FORMATS = (
    an_object({"type": {"const": "regex"}, "regex": SOME_TEXT}, ("type", "regex")),
    an_object({"type": {"const": "lark"}, "lark": SOME_TEXT}, ("type", "lark")),
    an_object({"type": {"const": "choice"}, "choice": a_list(SOME_TEXT, 1, 10_000)}, ("type", "choice")),
)
PLAIN_FORMAT = an_object({"type": {"enum": ["text", "json_object"]}}, ("type",))
_INPUTS = "One text, one list of token ids, or a list of several of these, all of one kind."

COMMON: Pieces = {
    "model": {**SOME_TEXT, "description": "The name of the model; GET /v1/models lists those that are here."},
    "temperature": _number("0 takes the likeliest token, 1 draws from the model's own distribution.", 0.0),
    "top_p": _number("Draw from the likeliest tokens whose probability reaches this.", 0.0, 1.0),
    "top_k": _whole("Draw from so many of the likeliest tokens; 0 or -1 from all.", -1),
    "min_p": _number("Draw from tokens at least so many times as likely as the likeliest.", 0.0, 1.0),
    "repetition_penalty": _number("Makes tokens of prompt and answer less likely; 1 changes nothing.", 0.01, 100.0),
    "presence_penalty": _number("Taken from the logit of each token that is in the answer.", -2.0, 2.0),
    "frequency_penalty": _number("The same, for each time that it is there.", -2.0, 2.0),
    "n": _whole("How many answers to give.", 1, MAX_CHOICES),
    "seed": _whole("The same seed and request give the same answer.", 0, 2**63 - 1),
    "stop": either(SOME_TEXT, a_list(SOME_TEXT, 0, MAX_STOP_STRINGS), description="Texts that end the answer."),
    "stop_token_ids": a_list({"type": "integer", "minimum": 0}, description="Token ids that end the answer."),
    "logit_bias": {
        "type": "object",
        "propertyNames": {"pattern": "^[0-9]+$"},
        "additionalProperties": {"type": "number", "minimum": -100, "maximum": 100},
        "description": "Token id to what is added to its logit.",
    },
    "max_tokens": _whole("The longest that the answer may be, in tokens.", 1),
    "min_tokens": _whole("The model may not end its answer before so many tokens.", 0),
    "ignore_eos": _truth("The model never ends its answer by itself."),
    "stream": _truth("Send the answer in pieces, as server-sent events."),
    "stream_options": {
        **an_object(
            {"include_usage": _truth("End with a chunk that has the usage."), "include_obfuscation": {"const": False}}
        ),
        "description": "Only with stream.",
    },
    "priority": _whole("Requests of a lower number go first.", -(2**31), 2**31 - 1),
    "messages": a_list({"$ref": "#/components/schemas/Message"}, 1, description="The conversation so far."),
    "tools": a_list({"$ref": "#/components/schemas/Tool"}, description="Functions that the model may call."),
    "tool_choice": either(
        {"enum": ["auto", "none", "required"]},
        an_object(
            {"type": {"const": "function"}, "function": an_object({"name": TEXT}, ("name",))}, ("type", "function")
        ),
        description="Whether a function has to be called, or which.",
    ),
    "parallel_tool_calls": _truth("Whether there may be several calls in one answer."),
    "enable_thinking": _truth("Whether the model thinks before it answers."),
    "thinking_budget": _whole("After so many tokens of thought the answer begins.", 0),
    "reasoning_effort": {"enum": list(EFFORTS), "description": "none: no thinking; all others: thinking."},
    "chat_template_kwargs": {**OBJECT, "description": "Further variables that the model's chat template reads."},
    "response_format": either(
        PLAIN_FORMAT,
        an_object({"type": {"const": "json_schema"}, "json_schema": _SCHEMA_FORMAT}, ("type", "json_schema")),
        *FURTHER_FORMATS,
        description="The form that the answer has to have. regex, lark and choice are Kaishu's own.",
    ),
    "continue_final_message": _truth("Go on with the last message, which is the assistant's, instead of answering it."),
    "instruct": {**SOME_TEXT, "description": "What is looked for, in a sentence."},
    "truncate": _truth("Cut texts that are longer than the context, instead of refusing them."),
}
CHAT: Pieces = {
    "max_completion_tokens": COMMON["max_tokens"],
    "logprobs": _truth("Give the log probability of each token."),
    "top_logprobs": _whole("And those of so many of the likeliest; only with logprobs.", 0, MAX_LOGPROBS),
}
COMPLETION: Pieces = {
    "prompt": either(
        SOME_TEXT, _IDS, a_list(SOME_TEXT, 1, MAX_PROMPTS), a_list(_IDS, 1, MAX_PROMPTS), description=_INPUTS
    ),
    "echo": _truth("Begin the answer with the prompt."),
    "max_tokens": _whole("The longest that the answer may be, in tokens. With `echo`, 0 for the prompt alone.", 0),
    "best_of": _whole("What n is, and no more.", 1, MAX_CHOICES),
    "logprobs": _whole("Give the log probability of each token, and of so many likeliest ones.", 0, MAX_LOGPROBS),
}
EMBEDDING: Pieces = {
    "input": either(
        SOME_TEXT, _IDS, a_list(SOME_TEXT, 1, MAX_PROMPTS), a_list(_IDS, 1, MAX_PROMPTS), description=_INPUTS
    ),
    "dimensions": _whole("Keep so many of the first dimensions.", 1),
    "encoding_format": {"enum": ["float", "base64"], "description": "base64 is of little-endian 32-bit floats."},
}
RERANK: Pieces = {
    "query": {**SOME_TEXT, "description": "What is looked for."},
    "documents": a_list(
        {"anyOf": [SOME_TEXT, an_object({"text": SOME_TEXT}, ("text",))]},
        1,
        2048,
        description="What is looked through.",
    ),
    "top_n": _whole("Give so many of the best.", 1, 2**31 - 1),
    "return_documents": _truth("Repeat the documents in the answer."),
}
TOKENS: Pieces = {
    "prompt": {**TEXT, "description": "A text. Give either prompt or messages."},
    "return_token_strs": _truth("Give each token's text, too."),
    "tokens": a_list({"type": "integer", "minimum": 0}, description="Token ids."),
}


def prompt_or_messages(only_with_messages: Iterable[str]) -> Json:
    """Either of two fields has to be there. only_with_messages: fields that go with the second alone"""
    null: Json = {"type": "null"}
    others = dict.fromkeys(("messages", *only_with_messages), null)
    return {
        "oneOf": [
            {"properties": {"prompt": TEXT, **others}, "required": ["prompt"]},
            {"properties": {"messages": {"type": "array"}, "prompt": null}, "required": ["messages"]},
        ]
    }
