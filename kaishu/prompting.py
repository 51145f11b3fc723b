"""From what a caller asks to a job for the engine: prompts, tools, the form of the answer.

Owns the way from messages and fields to token ids, and every refusal on it. Knows nothing of steps or events. Used by
llm.py, async_engine.py and the server, so that all of them refuse the same things in the same words.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from kaishu.engine.grammar import CompiledGrammar, GrammarCompiler
from kaishu.engine.grammar_tools import tool_call_format
from kaishu.engine.jobs import Generate
from kaishu.errors import InvalidParameterError, InvalidRequestError, TemplateError
from kaishu.loading import LoadedModel
from kaishu.sampling import SamplingParams
from kaishu.text.channels import ChannelParser
from kaishu.text.long_texts import check_far_too_long
from kaishu.text.template import RenderedPrompt

Message = Mapping[str, Any]
Tool = Mapping[str, Any] | Callable[..., Any]
ToolChoice = str | Mapping[str, Any] | None


@dataclass(frozen=True)
class ChatRequest:
    """A conversation to be answered; the fields are the arguments of LLM.chat."""

    messages: Sequence[Message]
    tools: Sequence[Tool] | None = None
    tool_choice: ToolChoice = None
    parallel_tool_calls: bool = True
    thinking: bool | None = None
    continue_final_message: bool = False
    template_arguments: Mapping[str, Any] | None = None
    priority: int = 0
    salt: str = ""


@dataclass(frozen=True)
class ChatJob:
    """A chat as the engine takes it, and how its answer is read."""

    job: Generate
    new_parser: Callable[[], ChannelParser]


class Prompting:
    """Makes jobs for one model. Safe to share between threads."""

    def __init__(self, loaded: LoadedModel) -> None:
        self._loaded = loaded
        self._compiler = GrammarCompiler(
            loaded.tokenizer, num_rows=loaded.executor.vocab_size, end_token_ids=loaded.limits.end_token_ids
        )

    def completion(
        self, prompt: str | Sequence[int], params: SamplingParams, *, priority: int = 0, salt: str = ""
    ) -> Generate:
        """A text to be continued, without a chat template.

        raises: InvalidRequestError and its kinds
        """
        token_ids = self.token_ids(prompt)
        if params.thinking_budget is not None:
            allowed = "null in plain completion, where no thought is told from other text"
            raise InvalidParameterError("thinking_budget", params.thinking_budget, allowed, hint="Chat has thoughts.")
        filled = params.with_defaults(self._loaded.config.generation)
        return Generate(token_ids, filled, grammar=self._grammar(filled), priority=priority, salt=salt)

    def chat(self, request: ChatRequest, params: SamplingParams) -> ChatJob:
        """A conversation to be answered.

        raises: InvalidRequestError and its kinds, TemplateError
        """
        if params.prompt_logprobs is not None:
            raise InvalidParameterError("prompt_logprobs", params.prompt_logprobs, "null in a chat")
        request = replace(request, tools=_definitions(request.tools))
        forced = self._forced_call(request)
        if forced is not None and params.output_format is not None:
            raise InvalidRequestError(  # it begins with the name that surfaces spell in their own way
                "output_format and tool_choice both say what the answer has to be.",
                field="output_format",
                hint="Give one of them.",
            )
        prompt = self.render(request)
        filled = params.with_defaults(self._loaded.config.generation)
        job = Generate(
            self.token_ids(prompt),
            filled,
            thinking=prompt.thinking,
            grammar=forced or self._grammar(filled),
            priority=request.priority,
            salt=request.salt,
        )
        parses_calls = bool(request.tools) and request.tool_choice != "none"
        return ChatJob(job, lambda: ChannelParser(prompt.thinking, parse_tool_calls=parses_calls))

    def render(self, request: ChatRequest) -> RenderedPrompt:
        """The prompt that a chat sends to the model.

        raises: InvalidMessagesError, TemplateError
        """
        template = self._loaded.template
        if isinstance(template, TemplateError):
            raise template
        return template.render(
            request.messages,
            tools=_definitions(request.tools),
            thinking=request.thinking,
            continue_final_message=request.continue_final_message,
            arguments=request.template_arguments,
        )

    @staticmethod
    def are_many(prompts: Sequence[Any]) -> bool:
        """A list of prompts, not one prompt of token ids."""
        is_list = isinstance(prompts, list | tuple) and bool(prompts)
        return is_list and isinstance(prompts[0], str | list | tuple | np.ndarray)

    def token_ids(self, prompt: str | Sequence[int] | RenderedPrompt) -> list[int]:
        """What the model reads of a prompt; in plain text there are no control tokens.

        raises: InvalidParameterError; ContextLengthError for a text that is far too long
        """
        if isinstance(prompt, str | RenderedPrompt):
            check_far_too_long(self._loaded.tokenizer, prompt, self._loaded.context_tokens)
        if isinstance(prompt, RenderedPrompt):
            return self._loaded.tokenizer.encode_prompt(prompt)
        if isinstance(prompt, str):
            return self._loaded.tokenizer.encode(prompt)
        return self.checked_ids("prompt", prompt)

    def checked_ids(self, field: str, token_ids: object) -> list[int]:
        """A caller's token ids as a list; text, bytes and mappings can be iterated, but aren't meant so.

        raises: InvalidParameterError
        """
        if isinstance(token_ids, str | bytes | bytearray | Mapping) or not isinstance(token_ids, Iterable):
            raise InvalidParameterError(field, token_ids, "a sequence of token ids")
        ids = list(token_ids)
        limits = self._loaded.limits  # the model may have rows beyond them, which mean nothing
        allowed = f"token ids from 0 to {limits.num_token_ids - 1:,}"
        for token_id in ids:
            is_id = isinstance(token_id, int | np.integer) and not isinstance(token_id, bool)
            if not is_id or not 0 <= token_id < limits.num_token_ids:
                raise InvalidParameterError(field, token_id, allowed)
            if token_id in limits.absent_token_ids:
                raise InvalidParameterError(field, token_id, "token ids that the tokenizer has")
        return [int(token_id) for token_id in ids]

    def _grammar(self, params: SamplingParams) -> CompiledGrammar | None:
        return None if params.output_format is None else self._compiler.compile(params.output_format)

    def _forced_call(self, request: ChatRequest) -> CompiledGrammar | None:
        name, is_required = _tool_choice(request.tool_choice)
        if not isinstance(request.parallel_tool_calls, bool):
            raise InvalidParameterError("parallel_tool_calls", request.parallel_tool_calls, "true or false")
        parallel = request.parallel_tool_calls and name is None
        wanted = tool_call_format(request.tools or [], name=name, is_required=is_required, parallel=parallel)
        return None if wanted is None else self._compiler.compile(wanted)


def _definitions(tools: Sequence[Tool] | None) -> Any:
    """Functions among tools become definitions; everything else stays as it is, for the template to check."""
    if not isinstance(tools, Sequence) or not any(callable(tool) for tool in tools):
        return tools
    from kaishu.tool_functions import as_definitions

    return as_definitions(tools)


def _tool_choice(choice: ToolChoice) -> tuple[str | None, bool]:
    """return: the function that has to be called, if it was named; whether some call is required

    raises: InvalidParameterError
    """
    if choice in (None, "auto", "none"):
        return None, False
    if choice == "required":
        return None, True
    match choice:
        case {"type": "function", "function": {"name": str(name), **more}, **others} if not more and not others:
            return name, True
        case {"type": "function", "name": str(name), **others} if not others:
            return name, True
    allowed = '"auto", "none", "required", or {"type": "function", "function": {"name": ...}}'
    raise InvalidParameterError("tool_choice", choice, allowed)


def merged_params(
    params: SamplingParams | None, fields: Mapping[str, Any], *, is_stream: bool = False
) -> SamplingParams:
    """Sampling as one object, whichever way it was given.

    raises: InvalidRequestError when both ways were used, a field doesn't exist, or a stream is to have several choices
    """
    merged = _merged(params, fields)
    if is_stream and merged.n != 1:
        raise InvalidParameterError("n", merged.n, "1 in a stream", hint="`generate` and `chat` give all choices.")
    return merged


def _merged(params: SamplingParams | None, fields: Mapping[str, Any]) -> SamplingParams:
    if params is None:
        return SamplingParams.from_fields(fields)
    if not isinstance(params, SamplingParams):
        raise InvalidParameterError("params", params, "SamplingParams", hint="Or give its fields by name.")
    if fields:
        raise InvalidRequestError(
            f"Sampling was given twice: as params and as {', '.join(fields)}.", field="params", hint="Give one of them."
        )
    return params
