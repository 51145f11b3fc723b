"""LLM: the blocking Python API. A name goes in; completions, chats, logits, embeddings and rankings come out.

Owns the shape of the public calls. The work itself is elsewhere: loading.py puts a model together, prompting.py makes
jobs of requests, engine/ runs them, deltas.py makes answers of events. Whoever calls waits, and runs the engine's steps
meanwhile; calls from several threads share steps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from kaishu.batch import Executor
from kaishu.checkpoint.hub import Progress
from kaishu.deltas import ChatDeltas, CompletionDeltas
from kaishu.embedding import embed
from kaishu.engine.blocking import BlockingEngine
from kaishu.engine.core import EngineSettings
from kaishu.engine.jobs import Read
from kaishu.engine.saved_pages import SavedPages, restore_pages, save_pages
from kaishu.engine.statistics import Statistics
from kaishu.engine.stream import Stream
from kaishu.errors import InvalidRequestError, TemplateError
from kaishu.executors import ExecutorName, HeadName, KeyValueName, Say, WeightsName
from kaishu.loading import LoadedModel, load_model
from kaishu.prompting import ChatRequest, Message, Prompting, Tool, ToolChoice, merged_params
from kaishu.reranking import rerank
from kaishu.results import ChatCompletion, ChatEnd, Completion, CompletionEnd, RerankResult, TextDelta
from kaishu.sampling import SamplingParams
from kaishu.text.channels import ChannelDelta
from kaishu.text.template import ChatTemplate, RenderedPrompt
from kaishu.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from kaishu.agent import AgentEvent, AgentResult, Approve

AT_ONCE = 256  # of many prompts, how many are in the engine; the others' answers would only take memory


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
    draft:          a smaller model with the same tokenizer, which guesses tokens: only speed depends on it
    speculation:    whether tokens are guessed, from the text itself and by a draft
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
        draft: str | Path | None = None,
        speculation: bool = True,
        progress: Progress | None = None,
        say: Say | None = None,
    ) -> None:
        loaded = load_model(
            model,
            executor=executor,
            weights=weights,
            head=head,
            kv=kv,
            device=device,
            threads=threads,
            context_tokens=context_tokens,
            max_memory=max_memory,
            lora=lora,
            draft=draft,
            speculation=speculation,
            progress=progress,
            say=say,
        )
        self._start(loaded)

    @classmethod
    def of(cls, loaded: LoadedModel, settings: EngineSettings | None = None) -> LLM:
        """An LLM of a model that is loaded already, which nobody else uses."""
        made = cls.__new__(cls)
        made._start(loaded, settings)
        return made

    def _start(self, loaded: LoadedModel, settings: EngineSettings | None = None) -> None:
        self.loaded, self.prompting = loaded, Prompting(loaded)
        self.engine = BlockingEngine(loaded.start_engine(settings))
        self.checkpoint, self.config = loaded.checkpoint, loaded.config
        self.tokenizer: Tokenizer = loaded.tokenizer
        self.template: ChatTemplate | TemplateError = loaded.template
        self.executor: Executor = loaded.executor
        self.description, self.notes, self.context_tokens = loaded.description, loaded.notes, loaded.context_tokens

    def generate(
        self,
        prompt: str | Sequence[int] | Sequence[str] | Sequence[Sequence[int]],
        params: SamplingParams | None = None,
        *,
        show_progress: bool | None = None,
        **fields: Any,
    ) -> Any:
        """Continue a text, or many at once, without a chat template.

        prompt:        text or token ids, or a list of such prompts
        params:        how to choose tokens; or give its fields by name: generate("Once", max_tokens=16)
        show_progress: of many prompts, a bar on stderr; None for yes where that is a terminal
        return:        a Completion; of a list of prompts a list of them, in its order
        raises:        InvalidRequestError and its kinds; NumericalError
        """
        merged = merged_params(params, fields)
        if isinstance(prompt, str) or not self.prompting.are_many(prompt):
            job = self.prompting.completion(prompt, merged)  # type: ignore[arg-type]
            return _last(self._deltas(self.engine.core.prepare(job), CompletionDeltas()))
        return self._many(prompt, merged, show_progress)

    def stream_generate(
        self, prompt: str | Sequence[int], params: SamplingParams | None = None, **fields: Any
    ) -> Iterator[TextDelta | CompletionEnd]:
        """As `generate`, text by text as it comes. Leaving the iterator early ends the request.

        return: TextDelta …, then one CompletionEnd
        """
        job = self.prompting.completion(prompt, merged_params(params, fields, is_stream=True))
        return self._deltas(self.engine.core.prepare(job), CompletionDeltas())

    def _many(self, prompts: Sequence[Any], params: SamplingParams, show_progress: bool | None) -> list[Completion]:
        """All prompts are checked before the first is computed."""
        from kaishu.progress import counting

        starts: list[Callable[[], Stream]] = []
        for index, prompt in enumerate(prompts):
            try:
                starts.append(self.engine.core.prepare(self.prompting.completion(prompt, params)))
            except InvalidRequestError as error:
                error.add_note(f"This is about prompt[{index}].")
                raise
        with (
            closing(self.engine.many(starts, AT_ONCE)) as streams,
            counting("Generating", len(starts), show_progress) as count,
        ):
            return [count(self._completion(one)) for one in streams]

    def _completion(self, stream: Stream) -> Completion:
        completion: Completion = _last(self._deltas(lambda: stream, CompletionDeltas()))
        return completion

    def chat(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Tool] | None = None,
        tool_choice: ToolChoice = None,
        parallel_tool_calls: bool = True,
        thinking: bool | None = None,
        params: SamplingParams | None = None,
        continue_final_message: bool = False,
        template_arguments: Mapping[str, Any] | None = None,
        **fields: Any,
    ) -> ChatCompletion:
        """Answer a conversation.

        messages:               as in OpenAI's API: role, content, and tool_calls or tool_call_id where they belong
        tools:                  offered to the model: Python functions, or function tools as in OpenAI's API
        tool_choice:            "auto" (also None), "none", "required", or one function as in OpenAI's API
        parallel_tool_calls:    whether a required call may be several
        thinking:               whether the model thinks first; None leaves it to the template
        params:                 how to choose tokens; or give its fields by name: chat(messages, temperature=0)
        continue_final_message: go on with the final message, which is the assistant's; the answer is what is added
        template_arguments:     further variables that the model's template reads
        raises: InvalidRequestError and its kinds, TemplateError, NumericalError
        """
        request = ChatRequest(
            messages,
            tools,
            tool_choice,
            parallel_tool_calls=parallel_tool_calls,
            thinking=thinking,
            continue_final_message=continue_final_message,
            template_arguments=template_arguments,
        )
        answer: ChatCompletion = _last(self._chat_deltas(request, merged_params(params, fields)))
        return answer

    def stream_chat(
        self,
        messages: Sequence[Message],
        *,
        params: SamplingParams | None = None,
        tools: Sequence[Tool] | None = None,
        tool_choice: ToolChoice = None,
        parallel_tool_calls: bool = True,
        thinking: bool | None = None,
        continue_final_message: bool = False,
        template_arguments: Mapping[str, Any] | None = None,
        **fields: Any,
    ) -> Iterator[ChannelDelta | ChatEnd]:
        """As `chat`, delta by delta as it comes. Leaving the iterator early ends the request.

        return: ThinkingDelta, ContentDelta, ToolCallStart, ToolCallArguments, ToolCallEnd …, then one ChatEnd
        """
        request = ChatRequest(
            messages,
            tools,
            tool_choice,
            parallel_tool_calls=parallel_tool_calls,
            thinking=thinking,
            continue_final_message=continue_final_message,
            template_arguments=template_arguments,
        )
        return self._chat_deltas(request, merged_params(params, fields, is_stream=True))

    def _chat_deltas(self, request: ChatRequest, params: SamplingParams) -> Iterator[Any]:
        chat = self.prompting.chat(request, params)
        return self._deltas(self.engine.core.prepare(chat.job), ChatDeltas(chat.new_parser))

    def _deltas(self, start: Callable[[], Stream], deltas: CompletionDeltas | ChatDeltas) -> Iterator[Any]:
        """What callers get of a job, which starts when the first of it is asked for."""
        for event in self.engine.events(start()):
            for found in deltas.push(event):
                if found.is_for_one_choice:
                    yield found.delta

    def run(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Callable[..., Any]],
        limit: int = 10,
        approve: Approve | None = None,
        on_event: Callable[[AgentEvent], None] | None = None,
        **options: Any,
    ) -> AgentResult:
        """Answer a conversation and make the calls that the model asks for, until it answers without any.

        tools:    Python functions
        limit:    how often the model is asked at most
        approve:  asked before each call; None makes them all
        on_event: told of calls and results
        options:  of `chat`
        raises:   as `chat`; what a function raises goes to the model as text
        """
        from kaishu.agent import run

        return run(
            lambda so_far, tools: self.chat(so_far, tools=tools, **options),
            messages,
            tools,
            limit=limit,
            approve=approve,
            on_event=on_event,
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
        request = ChatRequest(
            messages,
            tools,
            thinking=thinking,
            continue_final_message=continue_final_message,
            template_arguments=template_arguments,
        )
        return self.prompting.render(request)

    def logits(self, token_ids: Sequence[int]) -> NDArray[np.float32]:
        """What the model predicts after each token of a text.

        token_ids: T ids, at least one
        return:    [T, V] float32; row t predicts token t + 1
        raises:    InvalidRequestError, ContextLengthError
        """
        return self._read(Read(self.prompting.checked_ids("token_ids", token_ids), "all_logits"))

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
        return embed(
            lambda ids: self._last_rows(ids, None),
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
        return rerank(
            lambda columns: lambda ids: self._last_rows(ids, columns),
            self.tokenizer,
            query,
            documents,
            instruct,
            context_tokens=self.context_tokens,
            truncate=truncate,
        )

    def save_pages(self, prompt: str | Sequence[int] | RenderedPrompt, file: str | Path) -> SavedPages | None:
        """Write to a file what is computed of a prompt's beginning. return: None, and no file, where nothing is

        raises: SavedPagesError
        """
        token_ids = self.prompting.token_ids(prompt)
        return self.engine.between_steps(lambda core: save_pages(core, token_ids, Path(file)))

    def load_pages(self, file: str | Path) -> SavedPages:
        """Have what `save_pages` wrote: prompts that begin the same begin after it. raises: SavedPagesError"""
        return self.engine.between_steps(lambda core: restore_pages(core, Path(file)))

    def statistics(self) -> Statistics:
        """What the engine has done so far, and what it is doing."""
        return self.engine.core.statistics()

    def _last_rows(self, texts: Sequence[Sequence[int]], columns: Sequence[int] | None) -> NDArray[np.float32]:
        """[n, columns]: of each text's last token the logits of some tokens; with None the hidden state, [n, D]."""
        rows: list[NDArray[np.float32]] = []
        jobs = (Read(text, "last_hidden" if columns is None else "last_logits") for text in texts)
        with closing(self.engine.many(map(self.engine.core.prepare, jobs), AT_ONCE)) as streams:
            for stream in streams:
                row = self._rows_of(stream)[0]
                rows.append(row if columns is None else row[list(columns)])
        if rows:
            return np.stack(rows)
        return np.zeros((0, self.config.hidden_size if columns is None else len(columns)), np.float32)

    def _read(self, job: Read) -> NDArray[np.float32]:
        return self._rows_of(self.engine.core.add(job))

    def _rows_of(self, stream: Stream) -> NDArray[np.float32]:
        for _ in self.engine.events(stream):
            pass
        assert stream.rows is not None, "a request for rows that is over has them"
        return stream.rows


def _last(deltas: Iterator[Any]) -> Any:
    *_, end = deltas
    return end.completion
