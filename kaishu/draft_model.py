"""A draft: a smaller model with the same tokenizer, beside the one that answers, that guesses what it will say.

Owns which models can be a draft of which, and making one ready. How it guesses is in engine/drafting.py, and what
becomes of guesses in engine/choice.py. Used by loading.py.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from kaishu.batch import Executor
from kaishu.checkpoint import Checkpoint, open_checkpoint
from kaishu.checkpoint.hub import Progress, resolve
from kaishu.engine.drafting import Drafting
from kaishu.errors import TokenizerError
from kaishu.executors import Choice, Say, choose, make_executor, quantised_formats
from kaishu.text.tokenizer import Tokenizer
from kaishu.text_files import tokenizer_of


@dataclass(frozen=True)
class OpenedDraft:
    """A draft that fits its model, before its weights are loaded.

    num_token_ids: ids that may be guessed: those that both models have rows for
    """

    name: str
    checkpoint: Checkpoint
    choice: Choice
    num_token_ids: int

    def load(self, *, threads: int | None, context_tokens: int, say: Say) -> DraftModel:
        """Load it, with room for the keys and values of so many positions.

        raises: CheckpointError, OutOfMemoryError, MissingDependencyError
        """
        context = min(context_tokens, self.checkpoint.config.max_position_embeddings)
        made, description = make_executor(
            self.checkpoint, self.choice, threads=threads, context_tokens=context, say=say
        )
        return DraftModel(self.name, made, description, context, self.num_token_ids)


@dataclass(frozen=True)
class DraftModel:
    """A draft that can compute; see OpenedDraft.

    description:    of its executor, in a line
    context_tokens: of one text; for a longer one it guesses nothing
    """

    name: str
    executor: Executor
    description: str
    context_tokens: int
    num_token_ids: int

    def start(self) -> Drafting:
        """Begin to guess for an engine that has the executor to itself."""
        return Drafting(self.executor, self.num_token_ids, self.context_tokens)


def open_draft(
    draft: str | Path,
    tokenizer: Tokenizer,
    rows: int,
    form: Callable[[Checkpoint], Choice],
    *,
    progress: Progress | None = None,
) -> OpenedDraft:
    """Find a draft, and see whether it fits.

    tokenizer: of the model that answers
    rows:      of that model's head
    form:      how to keep the draft
    raises:    TokenizerError where a token isn't the same in both; KaishuError for files as in load_model
    """
    checkpoint = open_checkpoint(resolve(str(draft), progress=progress))
    own = tokenizer_of(checkpoint)
    check_same_tokens(tokenizer, own, str(draft))
    used = min(tokenizer.vocab_size, rows)
    if checkpoint.config.vocab_size < used:
        lacking = f"{checkpoint.config.vocab_size:,} rows, but the tokenizer has {used:,} tokens"
        raise TokenizerError(f"{draft} can't be the draft: its embedding has {lacking}.")
    return OpenedDraft(str(draft), checkpoint, form(checkpoint), used)


def draft_form(executor: str, weights: str, head: str, device: str, kv: str) -> Callable[[Checkpoint], Choice]:
    """A draft is kept in the form that was asked for its model; `auto` is settled by its own files."""

    def form(checkpoint: Checkpoint) -> Choice:
        formats = quantised_formats(checkpoint)
        return choose(checkpoint.config, executor, weights, head, device, kv=kv, formats=formats)

    return form


def check_same_tokens(tokenizer: Tokenizer, own: Tokenizer, draft: str) -> None:
    """A guess is an id, so ids have to mean the same in both models.

    own:    of the draft, whose name is `draft`
    raises: TokenizerError, naming the first id that doesn't
    """
    theirs, ours = _tokens(tokenizer), _tokens(own)
    for token_id in range(max(len(theirs), len(ours))):
        there = theirs[token_id] if token_id < len(theirs) else None
        here = ours[token_id] if token_id < len(ours) else None
        if there != here:
            raise TokenizerError(
                f"{draft} can't be the draft: token {token_id:,} is {_shown(here)} there, "
                f"but {_shown(there)} in the model that answers.",
                hint="Take a smaller model of the same family, which has the same tokenizer.",
            )


def _tokens(tokenizer: Tokenizer) -> list[bytes | None]:
    absent = set(tokenizer.ids_without_token(tokenizer.vocab_size))
    return [None if i in absent else tokenizer.token_bytes(i) for i in range(tokenizer.vocab_size)]


def _shown(token: bytes | None) -> str:
    return "no token" if token is None else repr(token.decode(errors="backslashreplace"))
