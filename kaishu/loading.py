"""A model made ready: files, checkpoint, tokenizer, template and executor, put together once.

Owns the assembly and the checks of what a caller asks of it. Knows nothing of requests. Used by llm.py and
async_engine.py, which differ only in how they wait.
"""

from __future__ import annotations

import hashlib
import sys
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from kaishu.batch import Executor
from kaishu.checkpoint import Checkpoint, open_checkpoint
from kaishu.checkpoint.hub import Progress, resolve
from kaishu.checkpoint.lora import with_adapters
from kaishu.config import ModelConfig
from kaishu.draft_model import DraftModel, draft_form, open_draft
from kaishu.engine.core import EngineCore, EngineSettings
from kaishu.engine.output import Limits
from kaishu.errors import InvalidParameterError, TemplateError
from kaishu.executors import (
    Choice,
    ExecutorName,
    HeadName,
    KeyValueName,
    Say,
    WeightsName,
    choose,
    make_executor,
    quantised_formats,
)
from kaishu.text.template import ChatTemplate
from kaishu.text.tokenizer import Tokenizer
from kaishu.text_files import template_of, tokenizer_of

MAX_THREADS = 1024
MAX_SEQUENCES = 1024
WARM_BYTES = 1 << 30  # keys and values that are kept for later requests before the oldest are given up


@dataclass(frozen=True)
class LoadedModel:
    """A model that can compute.

    template:    or why there is none: a base model can still complete text
    description: of the executor, in a line
    notes:       what a user should know about these files
    identity:    stands for the weights and the form in which they are kept
    speculation: whether tokens are guessed
    draft:       a smaller model that guesses them, too
    """

    checkpoint: Checkpoint
    tokenizer: Tokenizer
    template: ChatTemplate | TemplateError
    executor: Executor
    description: str
    notes: tuple[str, ...]
    context_tokens: int
    identity: bytes
    speculation: bool = True
    draft: DraftModel | None = None

    @property
    def config(self) -> ModelConfig:
        """What the checkpoint says about itself."""
        return self.checkpoint.config

    @cached_property  # looking for ids without a token takes a while with 150,000 of them
    def limits(self) -> Limits:
        """What the model says about tokens."""
        num_token_ids = min(self.tokenizer.vocab_size, self.config.vocab_size)
        return Limits(
            context_tokens=self.context_tokens,
            end_token_ids=self.tokenizer.eos_token_ids | frozenset(self.config.eos_token_ids),
            num_token_ids=num_token_ids,
            absent_token_ids=frozenset(self.tokenizer.ids_without_token(num_token_ids)),
        )

    @property
    def usual_settings(self) -> EngineSettings:
        """Those of an engine, unless something else is wanted; what they keep for later requests has a bound."""
        per_page = getattr(self.executor, "kv_bytes_per_token", 0) * self.executor.page_tokens
        return EngineSettings(warm_pages=max(1, WARM_BYTES // per_page) if per_page else None)

    def start_engine(self, settings: EngineSettings | None = None) -> EngineCore:
        """An engine that has the executor to itself. settings: None for the usual ones"""
        settings = settings or self.usual_settings
        speculation = settings.speculation and self.speculation
        settings = replace(settings, model_tag=self.identity, speculation=speculation)
        drafting = self.draft.start() if self.draft is not None else None
        return EngineCore(self.executor, self.tokenizer, self.limits, settings, drafting=drafting)


def load_model(
    model: str | Path,
    *,
    executor: ExecutorName = "auto",
    weights: WeightsName = "auto",
    head: HeadName = "auto",
    kv: KeyValueName = "auto",
    device: str = "cpu",
    threads: int | None = None,
    context_tokens: int | None = None,
    sequences: int = 1,
    max_memory: int | str | None = None,
    lora: str | Path | Sequence[str | Path] | None = None,
    draft: str | Path | None = None,
    speculation: bool = True,
    progress: Progress | None = None,
    say: Say | None = None,
) -> LoadedModel:
    """Load a model; the other arguments are those of LLM.

    sequences: so many requests of the whole context have room for their keys and values at once; of shorter ones more
    raises: KaishuError of the kind that says what is wrong with the model's files, or InvalidParameterError
    """
    say = say or _say_on_stderr
    _check_arguments(threads, sequences, draft, speculation)
    checkpoint = with_adapters(open_checkpoint(resolve(str(model), progress=progress)), lora)
    config, tokenizer = checkpoint.config, tokenizer_of(checkpoint)
    context = _checked_context(context_tokens, config.max_position_embeddings)
    choice = choose(config, executor, weights, head, device, kv=kv, formats=quantised_formats(checkpoint))
    notes: tuple[str, ...] = checkpoint.notes
    guessing = None
    if draft is not None:
        form = draft_form(executor, weights, head, device, kv)
        guessing = open_draft(draft, tokenizer, config.vocab_size, form, progress=progress)
    if max_memory is not None:
        from kaishu.planning import context_within

        both = None if guessing is None else (guessing.checkpoint, guessing.choice)
        context, more = context_within(
            max_memory, checkpoint, choice, asked=context_tokens, sequences=sequences, threads=threads, draft=both
        )
        notes += more
    made, description = make_executor(
        checkpoint, choice, threads=threads, context_tokens=context, sequences=sequences, say=say
    )
    loaded = None if guessing is None else guessing.load(threads=threads, context_tokens=context, say=say)
    for note in notes:
        warnings.warn(note, stacklevel=3)
    return LoadedModel(
        checkpoint=checkpoint,
        tokenizer=tokenizer,
        template=_template(checkpoint, tokenizer),
        executor=made,
        description=description if loaded is None else f"{description}; guesses by {loaded.name}",
        notes=notes,
        context_tokens=context,
        identity=_identity(checkpoint, choice),
        speculation=speculation,
        draft=loaded,
    )


def _identity(checkpoint: Checkpoint, choice: Choice) -> bytes:
    said = f"{checkpoint.identity} {choice.executor} {choice.weights} {choice.kv} {choice.device}"
    return hashlib.sha256(said.encode()).digest()


def _check_arguments(threads: int | None, sequences: int, draft: object, speculation: bool) -> None:
    """What can be said before the model's files are there."""
    if threads is not None:
        _check_integer("threads", threads, 1, MAX_THREADS)
    _check_integer("sequences", sequences, 1, MAX_SEQUENCES)
    if draft is not None and not speculation:
        raise InvalidParameterError("speculation", speculation, "True with a draft, which does nothing but guess")


def _check_integer(field: str, value: object, low: int, high: int, *, limit: str = "") -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise InvalidParameterError(field, value, f"a whole number from {low} to {limit}{high:,}")


def _checked_context(context_tokens: int | None, model_limit: int) -> int:
    if context_tokens is None:
        return model_limit
    _check_integer("context_tokens", context_tokens, 2, model_limit, limit="the model's own limit of ")
    return context_tokens


def _template(checkpoint: Checkpoint, tokenizer: Tokenizer) -> ChatTemplate | TemplateError:
    try:
        return template_of(checkpoint, tokenizer)
    except TemplateError as error:
        return error


def _say_on_stderr(sentence: str) -> None:
    print(f"kaishu: {sentence}", file=sys.stderr)
