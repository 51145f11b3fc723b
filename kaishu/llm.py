"""LLM: the blocking Python API. A name goes in; completions, chats, logits, embeddings and rankings come out.

Owns the assembly (files, checkpoint, tokenizer, template, executor) and the shape of the public calls. The work
itself is elsewhere: generation.py runs a request, text/ makes prompts and reads answers, an Executor computes. One
request runs at a time.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kaishu.batch import Executor, SequenceTokens, pack
from kaishu.checkpoint import Checkpoint, open_checkpoint
from kaishu.checkpoint.hub import Progress, resolve
from kaishu.checkpoint.lora import with_adapters
from kaishu.config import ModelConfig
from kaishu.embedding import embed
from kaishu.errors import ContextLengthError, InvalidParameterError, InvalidRequestError, TemplateError
from kaishu.executors import (
    ExecutorName,
    HeadName,
    KeyValueName,
    Say,
    WeightsName,
    choose,
    make_executor,
    quantised_formats,
)
from kaishu.generation import PREFILL_CHUNK_TOKENS, Generation, Limits
from kaishu.reranking import rerank
from kaishu.results import ChatCompletion, ChatEnd, Completion, CompletionEnd, RerankResult, TextDelta
from kaishu.sampling import SamplingParams
from kaishu.text.channels import ChannelCollector, ChannelDelta, ChannelParser
from kaishu.text.template import ChatTemplate, RenderedPrompt
from kaishu.text.tokenizer import Tokenizer
from kaishu.text_files import template_of, tokenizer_of
from kaishu.turns import Turns

MAX_THREADS = 1024
Message = Mapping[str, Any]
Tool = Mapping[str, Any]


class LLM:
    """A loaded model.

    model:          "tiny" (bundled), a folder, or a name on a hub such as "Qwen/Qwen3-0.6B"
    executor:       "cpu" computes with our kernels, "reference" with the PyTorch model; "auto" is "cpu" on CPUs
    weights:        "bf16", "int8" or "int4" for the kernels, "float32" or "bf16" for the reference; "auto" is what the
                    checkpoint stores, as far as the executor has it
    head:           how the kernels keep the output head: "bf16", "int8" or "int4"; "auto" is bf16 with bf16, else int8
    kv:             how the kernels keep keys and values: "bf16", or "int8" in half the memory; "auto" is bf16
    device:         "cpu", or for the reference any torch device: "cuda", "mps"
    threads:        how many CPU threads compute; None for as many as can really run at once
    context_tokens: prompt and output together; None is the model's own limit
    max_memory:     what the process may take, in bytes or such as "4GB": the context is cut to what fits; with
                    `context_tokens`, or where the weights alone are too large, it is an OutOfMemoryError instead
    lora:           the folder of a LoRA adapter as PEFT saves it, or several that are merged one after another
    progress:       called while a model is being downloaded, see checkpoint/hub.py
    say:            told in a sentence what takes long, as compiling kernels the first time; None: to stderr
    raises:         KaishuError of the kind that says what is wrong with the model's files, or InvalidParameterError
    """

    def __init__(
        self,
        model: str | Path = "tiny",
        *,
        executor: ExecutorName = "auto",
        weights: WeightsName = "auto",
        head: HeadName = "auto",
        kv: KeyValueName = "auto",
        device: str = "cpu",
        threads: int | None = None,
        context_tokens: int | None = None,
        max_memory: int | str | None = None,
        lora: str | Path | Sequence[str | Path] | None = None,
        progress: Progress | None = None,
        say: Say | None = None,
    ) -> None:
        if threads is not None:
            _check_integer("threads", threads, 1, MAX_THREADS)
        self.checkpoint: Checkpoint = with_adapters(open_checkpoint(resolve(str(model), progress=progress)), lora)
        self.config: ModelConfig = self.checkpoint.config
        self.context_tokens = _checked_context(context_tokens, self.config.max_position_embeddings)
        self.tokenizer = tokenizer_of(self.checkpoint)
        self.template = _template(self.checkpoint, self.tokenizer)
        formats = quantised_formats(self.checkpoint)
        choice = choose(self.config, executor, weights, head, device, kv=kv, formats=formats)
        self.notes: tuple[str, ...] = self.checkpoint.notes
        if max_memory is not None:
            from kaishu.planning import context_within

            self.context_tokens, notes = context_within(
                max_memory, self.checkpoint, choice, asked=context_tokens, threads=threads
            )
            self.notes += notes
        self.executor: Executor
        self.executor, self.description = make_executor(
            self.checkpoint, choice, threads=threads, context_tokens=self.context_tokens, say=say or _say_on_stderr
        )
        for note in self.notes:
            warnings.warn(note, stacklevel=2)
        num_token_ids = min(self.tokenizer.vocab_size, self.config.vocab_size)
        self._limits = Limits(
            context_tokens=self.context_tokens,
            end_token_ids=self.tokenizer.eos_token_ids | frozenset(self.config.eos_token_ids),
            num_token_ids=num_token_ids,
            absent_token_ids=frozenset(self.tokenizer.ids_without_token(num_token_ids)),
        )
        self._turns = Turns()

    def generate(self, prompt: str | Sequence[int], params: SamplingParams | None = None, **fields: Any) -> Completion:
        """Continue a text, without a chat template.

        prompt: text, or token ids
        params: how to choose tokens; or give its fields by name: generate("Once", max_tokens=16)
        raises: InvalidRequestError and its kinds; NumericalError
        """
        *_, end = self.stream_generate(prompt, params, **fields)
        assert isinstance(end, CompletionEnd)
        return end.completion

    def stream_generate(
        self, prompt: str | Sequence[int], params: SamplingParams | None = None, **fields: Any
    ) -> Iterator[TextDelta | CompletionEnd]:
        """As `generate`, text by text as it comes. Leaving the iterator early ends the request.

        return: TextDelta …, then one CompletionEnd
        """
        merged = _merged(params, fields)
        token_ids = self.tokenizer.encode(prompt) if isinstance(prompt, str) else self._checked_ids("prompt", prompt)
        generation = self._generation(token_ids, merged)
        return self._completion_deltas(generation)

    def _completion_deltas(self, generation: Generation) -> Iterator[TextDelta | CompletionEnd]:
        with self._one_at_a_time():
            for piece in generation:
                yield TextDelta(piece)
        assert generation.finish_reason is not None
        yield CompletionEnd(
            Completion(
                text=generation.text,
                token_ids=tuple(generation.token_ids),
                finish_reason=generation.finish_reason,
                usage=generation.usage,
                timing=generation.timing,
                logprobs=None if generation.params.logprobs is None else tuple(generation.logprobs),
            )
        )

    def chat(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Tool] | None = None,
        thinking: bool | None = None,
        params: SamplingParams | None = None,
        continue_final_message: bool = False,
        template_arguments: Mapping[str, Any] | None = None,
        **fields: Any,
    ) -> ChatCompletion:
        """Answer a conversation.

        messages:               as in OpenAI's API: role, content, and tool_calls or tool_call_id where they belong
        tools:                  function tools as in OpenAI's API, offered to the model
        thinking:               whether the model thinks first; None leaves it to the template
        params:                 how to choose tokens; or give its fields by name: chat(messages, temperature=0)
        continue_final_message: go on with the final message, which is the assistant's; the answer is what is added
        template_arguments:     further variables that the model's template reads
        raises: InvalidRequestError and its kinds, TemplateError, NumericalError
        """
        *_, end = self.stream_chat(
            messages,
            tools=tools,
            thinking=thinking,
            params=params,
            continue_final_message=continue_final_message,
            template_arguments=template_arguments,
            **fields,
        )
        assert isinstance(end, ChatEnd)
        return end.completion

    def stream_chat(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Tool] | None = None,
        thinking: bool | None = None,
        params: SamplingParams | None = None,
        continue_final_message: bool = False,
        template_arguments: Mapping[str, Any] | None = None,
        **fields: Any,
    ) -> Iterator[ChannelDelta | ChatEnd]:
        """As `chat`, delta by delta as it comes. Leaving the iterator early ends the request.

        return: ThinkingDelta, ContentDelta, ToolCallStart, ToolCallArguments, ToolCallEnd …, then one ChatEnd
        """
        merged = _merged(params, fields)
        prompt = self.render(
            messages,
            tools=tools,
            thinking=thinking,
            continue_final_message=continue_final_message,
            template_arguments=template_arguments,
        )
        generation = self._generation(self.tokenizer.encode_prompt(prompt), merged)
        parser = ChannelParser(prompt.thinking, parse_tool_calls=bool(tools))
        return self._chat_deltas(generation, parser)

    def _chat_deltas(self, generation: Generation, parser: ChannelParser) -> Iterator[ChannelDelta | ChatEnd]:
        collector = ChannelCollector()
        with self._one_at_a_time():
            for piece in generation:
                for delta in parser.push(piece):
                    collector.add(delta)
                    yield delta
        for delta in parser.finish():
            collector.add(delta)
            yield delta
        assert generation.finish_reason is not None
        answer = collector.result()
        called = generation.finish_reason == "stop" and any(call.is_whole for call in answer.tool_calls)
        yield ChatEnd(
            ChatCompletion(
                content=answer.content,
                reasoning=answer.reasoning or "",
                tool_calls=answer.tool_calls,
                finish_reason="tool_calls" if called else generation.finish_reason,
                token_ids=tuple(generation.token_ids),
                usage=generation.usage,
                timing=generation.timing,
                logprobs=None if generation.params.logprobs is None else tuple(generation.logprobs),
            )
        )

    def render(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Tool] | None = None,
        thinking: bool | None = None,
        continue_final_message: bool = False,
        template_arguments: Mapping[str, Any] | None = None,
    ) -> RenderedPrompt:
        """The prompt that a chat would send to the model; `.text` shows it. Arguments as for `chat`.

        raises: InvalidMessagesError, TemplateError
        """
        if isinstance(self.template, TemplateError):
            raise self.template
        return self.template.render(
            messages,
            tools=tools,
            thinking=thinking,
            continue_final_message=continue_final_message,
            arguments=template_arguments,
        )

    def logits(self, token_ids: Sequence[int]) -> NDArray[np.float32]:
        """What the model predicts after each token of a text.

        token_ids: T ids, at least one
        return:    [T, V] float32; row t predicts token t + 1
        raises:    InvalidRequestError, ContextLengthError
        """
        ids = self._checked_ids("token_ids", token_ids)
        if not ids:
            raise InvalidRequestError("There are no token ids to compute logits for.", field="token_ids")
        if len(ids) > self.context_tokens:
            raise ContextLengthError(len(ids), self.context_tokens)
        rows = []
        with self._one_at_a_time():
            for start in range(0, len(ids), PREFILL_CHUNK_TOKENS):
                chunk = ids[start : start + PREFILL_CHUNK_TOKENS]
                pages = range(-(-(start + len(chunk)) // self.executor.page_tokens))
                batch = pack([SequenceTokens(chunk, start, pages, range(len(chunk)))])
                rows.append(self.executor.step(batch))  # [t, V]
        return np.concatenate(rows)  # [T, V]

    def embed(
        self,
        texts: str | Sequence[str],
        *,
        instruct: str | None = None,
        dimensions: int | None = None,
        truncate: bool = False,
    ) -> NDArray[np.float32]:
        """What texts mean, as vectors of unit length: their inner product says how alike two are.

        texts:      one or many, none of them empty
        instruct:   where the texts are queries: what is looked for, in a sentence; None for documents
        dimensions: keep only so many, the first ones; None for all D
        truncate:   cut texts that are too long for the context, instead of refusing them
        return:     [n, D or dimensions] float32, a row for each text; one string makes one row
        raises:     InvalidRequestError and its kinds, naming the text; NumericalError
        """
        with self._one_at_a_time():
            return embed(
                self.executor,
                self.tokenizer,
                texts,
                instruct=instruct,
                dimensions=dimensions,
                hidden_size=self.config.hidden_size,
                context_tokens=self.context_tokens,
                truncate=truncate,
            )

    def rerank(
        self, query: str, documents: Sequence[str], *, instruct: str | None = None, truncate: bool = False
    ) -> list[RerankResult]:
        """Which documents answer a query best, as a reranker judges each of them.

        query:     what is asked
        documents: none of them empty
        instruct:  what makes a document a good one, in a sentence; None for the models' own: it answers a web search
        truncate:  cut documents that are too long for the context, instead of refusing them
        return:    index and score (0 to 1) of every document, the best first
        raises:    InvalidRequestError and its kinds, also where the model is no reranker; NumericalError
        """
        with self._one_at_a_time():
            limit = self.context_tokens
            return rerank(
                self.executor, self.tokenizer, query, documents, instruct, context_tokens=limit, truncate=truncate
            )

    def _generation(self, token_ids: Sequence[int], params: SamplingParams) -> Generation:
        filled = params.with_defaults(self.config.generation)
        return Generation(self.executor, self.tokenizer, token_ids, filled, self._limits)

    def _checked_ids(self, field: str, token_ids: object) -> list[int]:
        """A caller's token ids as a list; text, bytes and mappings can be iterated, but aren't meant so."""
        if isinstance(token_ids, str | bytes | bytearray | Mapping) or not isinstance(token_ids, Iterable):
            raise InvalidParameterError(field, token_ids, "a sequence of token ids")
        ids = list(token_ids)
        allowed = f"token ids from 0 to {self.config.vocab_size - 1:,}"
        for token_id in ids:
            is_id = isinstance(token_id, int | np.integer) and not isinstance(token_id, bool)
            if not is_id or not 0 <= token_id < self.config.vocab_size:
                raise InvalidParameterError(field, token_id, allowed)
        return [int(token_id) for token_id in ids]

    def _one_at_a_time(self) -> Turns:
        return self._turns


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


def _check_integer(field: str, value: object, low: int, high: int, *, limit: str = "") -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise InvalidParameterError(field, value, f"a whole number from {low} to {limit}{high:,}")


def _checked_context(context_tokens: int | None, model_limit: int) -> int:
    if context_tokens is None:
        return model_limit
    _check_integer("context_tokens", context_tokens, 2, model_limit, limit="the model's own limit of ")
    return context_tokens


def _template(checkpoint: Checkpoint, tokenizer: Tokenizer) -> ChatTemplate | TemplateError:
    """The chat template, or why there is none: a base model can still complete text."""
    try:
        return template_of(checkpoint, tokenizer)
    except TemplateError as error:
        return error


def _say_on_stderr(sentence: str) -> None:
    print(f"kaishu: {sentence}", file=sys.stderr)
