"""`kaishu eval`: what it costs in accuracy to keep a model's weights in fewer bits.

Owns which forms are compared, one after another so that two at most are in memory, and how the result is shown. The
numbers are evaluation.py's, the texts evaluation_texts.py's; the truth is the reference model in float32.
"""

# No `from __future__ import annotations`: typer reads the annotations as objects.

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args

import typer

from kaishu.cli.lists import choices_of
from kaishu.cli.options import DEFAULT_MODEL
from kaishu.errors import ContextLengthError, InvalidParameterError, InvalidRequestError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from rich.text import Text

    from kaishu.evaluation import Comparison
    from kaishu.evaluation_texts import EvaluationText
    from kaishu.llm import LLM

DEFAULT_TOKENS = 512
MAX_TOKENS = 1_000_000


def evaluate(
    model: Annotated[str, typer.Argument(help="A folder, a hub's name, or a bundled model.")] = DEFAULT_MODEL,
    *,
    weights: Annotated[
        str, typer.Option(help="Forms of the layers' weights, with commas between them.", metavar="FORMS")
    ] = "bf16,int8,int4",
    head: Annotated[
        str, typer.Option(help="Forms of the output head, each with each of the weights.", metavar="FORMS")
    ] = "auto",
    text: Annotated[
        Path | None, typer.Option("--text", help="A text to predict; else one of Kaishu's.", show_default=False)
    ] = None,
    tokens: Annotated[int, typer.Option("--tokens", help="Predict at most so many tokens.", metavar="N")] = (
        DEFAULT_TOKENS
    ),
    threads: Annotated[
        int | None, typer.Option("--threads", help="CPU threads.", metavar="N", show_default=False)
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
) -> None:
    """Compare the model in fewer bits with the same model in float32: divergence, agreement, perplexity."""
    from kaishu.cli.printable import printable_json
    from kaishu.cli.pull import fetch
    from kaishu.executors import CPU_WEIGHTS, HeadName

    chosen = choices_of("weights", weights, CPU_WEIGHTS)
    heads = choices_of("head", head, get_args(HeadName))
    if not 1 <= tokens <= MAX_TOKENS:
        raise InvalidParameterError("--tokens", tokens, f"1 to {MAX_TOKENS:,}")
    written = None if text is None else read_text(text)
    evaluation = run(model, fetch(model), chosen, heads, written=written, tokens=tokens, threads=threads)
    if as_json:
        print(printable_json(evaluation.as_json()))
        return
    from rich.console import Console

    console = Console(highlight=False)
    for line in lines_of(evaluation):
        console.print(line, soft_wrap=True)


@dataclass(frozen=True)
class Form:
    """How the weights were kept, and what came of it."""

    weights: str
    head: str
    comparison: "Comparison"


@dataclass(frozen=True)
class Evaluation:
    """All forms of one model on one text."""

    model: str
    text: str
    truth: str
    forms: tuple[Form, ...]

    def as_json(self) -> dict[str, Any]:
        """Plain JSON values; divergences in nats."""
        forms = [{"weights": form.weights, "head": form.head, **asdict(form.comparison)} for form in self.forms]
        return {"model": self.model, "text": self.text, "truth": self.truth, "forms": forms}


def run(
    name: str,
    folder: Path,
    weights: Sequence[str],
    heads: Sequence[str],
    *,
    written: str | None,
    tokens: int,
    threads: int | None,
) -> Evaluation:
    """Compute the truth, then each form.

    name:    what the user calls the model
    written: the user's text; None for Kaishu's own
    raises:  MissingDependencyError without torch, which computes the truth; ContextLengthError; KaishuError
    """
    from kaishu.config import ModelConfig
    from kaishu.evaluation import compare, joined, summary
    from kaishu.executors import choose
    from kaishu.llm import LLM

    config = ModelConfig.from_folder(folder)
    choices = dict.fromkeys(choose(config, "cpu", form, head, "cpu") for form in weights for head in heads)
    texts, described = _texts(folder, written, tokens)
    context_tokens = max(2, *(len(text.token_ids) for text in texts))
    if context_tokens > config.max_position_embeddings:
        raise ContextLengthError(context_tokens, config.max_position_embeddings)
    truth = LLM(folder, executor="reference", weights="float32", threads=threads, context_tokens=context_tokens)
    true_logits, truly = [_logits(truth, text) for text in texts], truth.description
    del truth
    forms = []
    for choice in choices:
        assert choice.weights != "float32" and choice.head is not None, "the CPU executor keeps both in a form"
        llm = LLM(
            folder,
            executor="cpu",
            weights=choice.weights,
            head=choice.head,
            threads=threads,
            context_tokens=context_tokens,
        )
        compared = [
            compare(true, _logits(llm, text), text.token_ids[text.first_predicted :])
            for true, text in zip(true_logits, texts, strict=True)
        ]
        forms.append(Form(choice.weights, choice.head, summary(joined(compared))))
    return Evaluation(name, described, truly, tuple(forms))


def _texts(folder: Path, written: str | None, tokens: int) -> "tuple[list[EvaluationText], str]":
    """return: the texts, and what they are, in words"""
    from kaishu.checkpoint.hub import BUNDLED, resolve
    from kaishu.evaluation_texts import at_most, conversations, passages, plain_text
    from kaishu.text.template import ChatTemplate
    from kaishu.text.tokenizer import Tokenizer

    tokenizer = Tokenizer.from_folder(folder)
    if written is not None:
        texts, kind = [plain_text(written, tokenizer)], "your text"
    elif folder == resolve(BUNDLED):
        template = ChatTemplate.from_folder(folder, control_tokens=tokenizer.control_tokens)
        texts, kind = conversations(tokenizer, template), "answers of the bundled model's world"
    else:
        texts, kind = passages(tokenizer), "old books in English and Chinese"
    there = sum(text.predicted for text in texts)
    if there < 1:
        raise InvalidRequestError("The text has one token, so there is none to predict.", field="--text")
    of = f" of {there:,}" if there > tokens else ""
    return at_most(texts, tokens), f"{min(there, tokens):,}{of} tokens: {kind}"


def _logits(llm: "LLM", text: "EvaluationText") -> "NDArray[np.float32]":
    """return: [T, V] float32, for each predicted token; V without the rows that have no token, which nothing samples"""
    rows = llm.logits(text.token_ids[:-1])[text.first_predicted - 1 :]
    return rows[:, : llm.tokenizer.vocab_size]


def read_text(path: Path) -> str:
    """A file's text.

    raises: InvalidParameterError when it can't be read, isn't UTF-8 or is empty
    """
    allowed = "a file with a text in UTF-8"
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise InvalidParameterError("--text", str(path), allowed, hint="This file isn't UTF-8.") from None
    except OSError as problem:
        hint = f"It can't be read: {problem.strerror or problem}."
        raise InvalidParameterError("--text", str(path), allowed, hint=hint) from None
    if not text.strip():
        raise InvalidParameterError("--text", str(path), allowed, hint="This file is empty.")
    return text


def lines_of(evaluation: Evaluation) -> "Iterator[Text]":
    """A table with a row for each form."""
    from rich.text import Text

    from kaishu.cli.printable import printable

    yield Text(printable(f"{evaluation.model}: {evaluation.text}"), style="bold")
    perplexity = evaluation.forms[0].comparison.true_perplexity
    yield Text(f"truth: {evaluation.truth}; perplexity {perplexity:.4f}")
    yield Text("weights  head    KL mean    KL 99 %  same top-1  perplexity", style="dim")
    for form in evaluation.forms:
        found = form.comparison
        kl = f"{found.kl_mean:>9.2e}  {found.kl_99_percent:>9.2e}"
        yield Text(f"{form.weights:<8} {form.head:<4}  {kl}  {found.top1_agreement:>10.2%}  {found.perplexity:>10.4f}")
    yield Text(
        "KL: divergence from the truth, nats a token, its mean and what 99 of 100 tokens stay below.", style="dim"
    )
