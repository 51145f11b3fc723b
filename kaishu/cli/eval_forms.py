"""What `kaishu eval` measures: a model in each of several forms, against the same model or another in float32.

Owns which forms are compared, one after another so that two at most are in memory, on which text, and how fast each
decodes. The numbers are evaluation.py's, the texts evaluation_texts.py's, the timing is benchmark.py's, and eval.py
shows it all.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kaishu.errors import ContextLengthError, InvalidRequestError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from kaishu.checkpoint import Checkpoint
    from kaishu.cli.progress_bar import Advance
    from kaishu.evaluation import Comparison
    from kaishu.evaluation_texts import EvaluationText
    from kaishu.executors import Choice
    from kaishu.llm import LLM

PLAIN_FORMS = ("bf16", "int8", "int4")  # what is compared where nothing is asked for
DECODE_CONTEXT = 16  # keys that the timed token sees
DECODE_SECONDS = 0.3


@dataclass(frozen=True)
class Form:
    """How the weights were kept, and what came of it.

    bytes:             of the packed model in memory, the embedding included
    tokens_per_second: of one sequence that is decoded, the median of steps over DECODE_SECONDS
    """

    weights: str
    head: str
    bytes: int
    tokens_per_second: float
    comparison: Comparison

    @property
    def label(self) -> str:
        """The form in words."""
        return self.weights if self.head == self.weights else f"{self.weights}, {self.head} head"


@dataclass(frozen=True)
class Evaluation:
    """All forms of one model on one text."""

    model: str
    text: str
    truth: str
    forms: tuple[Form, ...]

    def as_json(self) -> dict[str, Any]:
        """Plain JSON values; divergences in nats."""
        forms = [
            {
                "weights": form.weights,
                "head": form.head,
                "bytes": form.bytes,
                "tokens_per_second": form.tokens_per_second,
                **asdict(form.comparison),
            }
            for form in self.forms
        ]
        return {"model": self.model, "text": self.text, "truth": self.truth, "forms": forms}


@dataclass(frozen=True)
class Model:
    """A model by the name that the user knows, opened.

    lora: folders of adapters, which are in the checkpoint already
    """

    name: str
    checkpoint: Checkpoint
    lora: tuple[str, ...] = ()

    @property
    def path(self) -> Path:
        """The folder or file, from which LLM opens it again."""
        return self.checkpoint.folder


def run(
    model: Model,
    against: Model | None,
    weights: Sequence[str] | None,
    heads: Sequence[str],
    *,
    written: str | None,
    tokens: int,
    threads: int | None,
    max_memory: str | None = None,
    advance: Advance,
) -> Evaluation:
    """Compute the truth, then each form.

    against:    the model that is the truth; None for `model` itself
    weights:    forms; None for how the files have the weights, if they are quantised, else for PLAIN_FORMS
    written:    the user's text; None for Kaishu's own
    max_memory: what the process may take in all; None for as much as it needs
    raises:     OutOfMemoryError, before anything is loaded, where it would take more than `max_memory`;
                MissingDependencyError without torch, which computes the truth; ContextLengthError; InvalidRequestError
                where the two models' tokens differ; KaishuError
    """
    from kaishu.llm import LLM

    choices = _choices(model, weights, heads)
    texts, described = _texts(model, against, written, tokens)
    context_tokens = _context_tokens(model, against, texts)
    true = model if against is None else against
    if max_memory is not None:
        _check_memory(max_memory, model, true, choices, texts, context_tokens, threads)
    work = _Work(advance, (1 + len(choices)) * sum(len(text.token_ids) for text in texts))
    truth = LLM(
        true.path,
        executor="reference",
        weights="float32",
        threads=threads,
        context_tokens=context_tokens,
        lora=true.lora,
    )
    true_logits, truly = [work.logits(truth, text, "the truth") for text in texts], truth.description
    del truth
    forms = []
    for choice in choices:
        assert choice.weights != "float32" and choice.head is not None, "the CPU executor keeps both in a form"
        kept, head = ("auto" if form == "stored" else form for form in (choice.weights, choice.head))
        llm = LLM(
            model.path,
            lora=model.lora,
            executor="cpu",
            weights=kept,  # type: ignore[arg-type]
            head=head,  # type: ignore[arg-type]
            threads=threads,
            context_tokens=context_tokens,
        )
        forms.append(_measured(llm, choice, texts, true_logits, work))
    return Evaluation(model.name, described, truly if against is None else f"{against.name}, {truly}", tuple(forms))


class _Work:
    """Computes logits and says how far it is."""

    def __init__(self, advance: Advance, tokens: int) -> None:
        self._advance, self._tokens, self._done = advance, tokens, 0

    def logits(self, llm: LLM, text: EvaluationText, what: str) -> NDArray[np.float32]:
        """return: [T, V] float32, for each predicted token; V without rows that have no token, which nothing samples"""
        self._advance(what, self._done, self._tokens)
        rows = llm.logits(text.token_ids[:-1])[text.first_predicted - 1 :]
        self._done += len(text.token_ids)
        self._advance(what, self._done, self._tokens)
        return rows[:, : llm.tokenizer.vocab_size]


def _choices(model: Model, weights: Sequence[str] | None, heads: Sequence[str]) -> list[Choice]:
    """Each form with each head; what comes to the same is there once."""
    from kaishu.executors import choose, quantised_formats

    formats = quantised_formats(model.checkpoint)
    wanted = weights or (("auto",) if formats else PLAIN_FORMS)
    found: dict[tuple[str, str | None], Choice] = {}
    for form in wanted:
        for head in heads:
            choice = choose(model.checkpoint.config, "cpu", form, head, "cpu", formats=formats)
            found.setdefault((choice.weights, choice.head), choice)
    return list(found.values())


def _texts(model: Model, against: Model | None, written: str | None, tokens: int) -> tuple[list[EvaluationText], str]:
    """return: the texts, and what they are, in words"""
    from kaishu.evaluation_texts import (
        at_most,
        conversations,
        have_same_tokens,
        knows_world_of_tiny,
        passages,
        plain_text,
    )
    from kaishu.text_files import template_of, tokenizer_of

    tokenizer = tokenizer_of(model.checkpoint)
    if against is not None and not have_same_tokens(tokenizer, tokenizer_of(against.checkpoint)):
        raise InvalidRequestError(
            f"{model.name} and {against.name} have different tokens, so their predictions can't be compared.",
            field="--against",
            hint="Compare two forms of one model: a quantised folder with what it was made of.",
        )
    if written is not None:
        texts, kind = [plain_text(written, tokenizer)], "your text"
    elif knows_world_of_tiny(tokenizer):
        template = template_of(model.checkpoint, tokenizer)
        texts, kind = conversations(tokenizer, template), "conversations of the bundled model's world"
    else:
        texts, kind = passages(tokenizer), "old books in English and Chinese"
    there = sum(text.predicted for text in texts)
    if there < 1:
        raise InvalidRequestError("The text has one token, so there is none to predict.", field="--text")
    of = f" of {there:,}" if there > tokens else ""
    return at_most(texts, tokens), f"{min(there, tokens):,}{of} tokens: {kind}"


def _context_tokens(model: Model, against: Model | None, texts: Sequence[EvaluationText]) -> int:
    """raises: ContextLengthError when a text is longer than one of the models allows"""
    limit = min(each.checkpoint.config.max_position_embeddings for each in (model, against) if each is not None)
    needed = max(2, *(len(text.token_ids) for text in texts))
    if needed > limit:
        raise ContextLengthError(needed, limit)
    return max(needed, min(DECODE_CONTEXT, limit))


def _check_memory(  # noqa: PLR0917  # all that it depends on, once
    max_memory: str,
    model: Model,
    truth: Model,
    choices: Sequence[Choice],
    texts: Sequence[EvaluationText],
    context_tokens: int,
    threads: int | None,
) -> None:
    """raises: OutOfMemoryError, InvalidParameterError"""
    from kaishu.evaluation_memory import check_evaluation, plan_evaluation
    from kaishu.planning import plan_model

    plans = [plan_model(model.checkpoint, choice, context_tokens=context_tokens, threads=threads) for choice in choices]
    plan = plan_evaluation(truth.checkpoint, plans, [len(text.token_ids) for text in texts])
    tokens, rows = sum(text.predicted for text in texts), model.checkpoint.config.vocab_size
    check_evaluation(max_memory, plan, tokens=tokens, bytes_per_token=4 * rows)


def _measured(
    llm: LLM,
    choice: Choice,
    texts: Sequence[EvaluationText],
    true_logits: Sequence[NDArray[np.float32]],
    work: _Work,
) -> Form:
    from kaishu.cpu.executor import CpuExecutor
    from kaishu.evaluation import compare, joined, summary

    assert isinstance(llm.executor, CpuExecutor) and choice.head is not None
    what = f"{choice.weights} weights, {choice.head} head"
    compared = [
        compare(true, work.logits(llm, text, what), text.token_ids[text.first_predicted :])
        for true, text in zip(true_logits, texts, strict=True)
    ]
    speed, num_bytes = _tokens_per_second(llm), llm.executor.layout.num_bytes
    return Form(choice.weights, choice.head, num_bytes, speed, summary(joined(compared)))


def _tokens_per_second(llm: LLM) -> float:
    """One sequence, a token a step, the last that fits DECODE_CONTEXT again and again."""
    import numpy as np

    from kaishu.benchmark import Sequences, Work

    work = Work("decode", min(DECODE_CONTEXT, llm.context_tokens), 1, 1)
    sequences = Sequences(llm.executor, [work], np.random.default_rng(0))
    rounds = sequences.rounds(work, seconds=DECODE_SECONDS, clock=time.perf_counter)
    seconds = statistics.median(chain.from_iterable(rounds))
    llm.engine.core.pool.forget_all()  # pages that the engine had kept were written to
    return 1 / seconds


def lines_of(evaluation: Evaluation) -> Iterator[tuple[str, str]]:
    """A table with a row for each form: each line and its style."""
    from kaishu.byte_sizes import size

    yield f"{evaluation.model}: {evaluation.text}", "bold"
    perplexity = evaluation.forms[0].comparison.true_perplexity
    yield f"truth: {evaluation.truth}; perplexity {perplexity:.4f}", ""
    yield "weights  head       bytes     tok/s    KL mean    KL 99 %  same top-1  perplexity", "dim"
    for form in evaluation.forms:
        found = form.comparison
        kept = f"{form.weights:<8} {form.head:<6} {size(form.bytes):>9} {form.tokens_per_second:>9,.1f}"
        kl = f"{found.kl_mean:>9.2e}  {found.kl_99_percent:>9.2e}"
        yield f"{kept}  {kl}  {found.top1_agreement:>10.2%}  {found.perplexity:>10.4f}", ""
    yield "KL: divergence from the truth, nats a token, its mean and what 99 of 100 tokens stay below.", "dim"
