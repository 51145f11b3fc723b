"""Grammars: which tokens may come next, so that an answer has the form that was asked for.

Owns compiling (off the engine's loop, within limits of time and size, kept for the next request) and the state of one
answer. The grammar work itself is llguidance's: its masks say for each token whether some answer begins with what was
written and this token. What it gets to see is written by grammar_texts.py and grammar_tokens.py.
Knows nothing of logits and requests: the engine calls `GrammarState.allowed`, samples under that mask, and tells the
state what was sampled. With thinking on, the engine makes the state once thinking has ended.

Where a grammar leaves one text only, the mask has one token: the one into which the tokenizer cuts that text. It
depends on what was written and on nothing else, so taking such tokens ahead (`forced`) gives what going step by step
gives.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from kaishu.engine.deep_stack import start_deep
from kaishu.engine.grammar_schema import first_line
from kaishu.engine.grammar_texts import grammar_text, names_in_lark
from kaishu.engine.grammar_tokens import GrammarTokens, num_words
from kaishu.engine.grammar_trial import ends_in_time, may_run_on
from kaishu.errors import GrammarsBusyError, InvalidRequestError
from kaishu.output_format import OutputFormat
from kaishu.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLParserLimits

MAX_COMPILED = 64
COMPILE_SECONDS = 0.7  # the largest schemas that people write take 0.3
STEP_SECONDS = 0.15  # of a processor, for one token of an answer; usually it takes a few ten-thousandths
PROBED_TOKENS = 4  # of one answer, before a grammar is accepted
MAX_RUNAWAYS = 2  # compilations given up on that may still run; llguidance can't be stopped

T = TypeVar("T")


class GrammarCompiler:
    """Makes grammars for one model. Safe to share between threads; nothing is built before the first grammar.

    tokenizer:       the model's
    num_rows:        rows of the model's logits, V; ids without a token are never allowed
    end_token_ids:   the model's end tokens, allowed where an answer may end
    compile_seconds: how long one grammar may take; see grammar_trial.py for those that have it twice
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        num_rows: int,
        end_token_ids: Collection[int],
        compile_seconds: float = COMPILE_SECONDS,
    ) -> None:
        self._tokenizer = tokenizer
        self._num_rows = num_rows
        self._end_token_ids = frozenset(end_token_ids)
        self._compile_seconds = compile_seconds
        self._lock = threading.Lock()
        self._tokens: GrammarTokens | None = None
        self._compiled: OrderedDict[OutputFormat, CompiledGrammar] = OrderedDict()
        self._runaways: list[threading.Thread] = []

    def compile(self, format_: OutputFormat) -> CompiledGrammar:
        """The grammar of a format; a format that was compiled lately costs nothing.

        raises: InvalidRequestError, naming the format's field, where the format asks for what can't be enforced (for a
                JSON schema: keyword and path), doesn't admit any answer, or takes too long; GrammarsBusyError
        """
        with self._lock:
            found = self._compiled.get(format_)
            if found is not None:
                self._compiled.move_to_end(format_)
                return found
            if self._tokens is None:
                self._tokens = GrammarTokens(
                    self._tokenizer, num_rows=self._num_rows, end_token_ids=self._end_token_ids
                )
            tokens = self._tokens
        if may_run_on(format_) and not ends_in_time(format_, self._compile_seconds):
            raise self._too_complex(format_.field_name)
        made = self._within_time(lambda: _compiled(format_, tokens), format_.field_name)
        with self._lock:
            self._compiled[format_] = made
            while len(self._compiled) > MAX_COMPILED:
                self._compiled.popitem(last=False)
        return made

    def _within_time(self, make: Callable[[], CompiledGrammar], field: str) -> CompiledGrammar:
        """Run `make` in a thread of its own, and give up on it after `compile_seconds`."""
        with self._lock:
            self._runaways = [thread for thread in self._runaways if thread.is_alive()]
            if len(self._runaways) >= MAX_RUNAWAYS:
                raise GrammarsBusyError(field)
        outcome: _Outcome[CompiledGrammar] = _Outcome()
        thread = start_deep(lambda: outcome.run(make), "kaishu-grammar")
        if not outcome.is_there.wait(self._compile_seconds):
            with self._lock:
                self._runaways.append(thread)
            raise self._too_complex(field)
        return outcome.get()

    def _too_complex(self, field: str) -> InvalidRequestError:
        return InvalidRequestError(
            f"{field} is too complex: it took more than {self._compile_seconds:g} seconds to compile.",
            field=field,
            hint="Ask for less: fewer repetitions, smaller numbers, fewer alternatives.",
        )


class CompiledGrammar:
    """A grammar that answers can be started on, from any thread."""

    def __init__(self, format_: OutputFormat, tokens: GrammarTokens, matcher: LLMatcher) -> None:
        self.format = format_
        self._tokens = tokens
        self._matcher = matcher
        self._lock = threading.Lock()

    def start(self) -> GrammarState:
        """The state of an answer of which nothing is written yet."""
        with self._lock:
            return GrammarState(self._matcher.deep_copy(), self._tokens, self.format.field_name)


class GrammarState:
    """Where one answer stands in its grammar. For one thread at a time."""

    def __init__(self, matcher: LLMatcher, tokens: GrammarTokens, field: str) -> None:
        self._matcher = matcher
        self._tokens = tokens
        self._field = field
        self._words = num_words(tokens.num_rows)
        self._mask: NDArray[np.uint32] | None = None
        self.has_ended = False

    def allowed(self) -> NDArray[np.uint32]:
        """The tokens that may come next, as bits: id i is bit i % 32 of word i // 32.

        return: [ceil(V / 32)] uint32, read-only; at least one bit is set; an end token's where the answer may end
        raises: InvalidRequestError where the grammar became too complex to follow, or no token can follow (a grammar
                in Lark can ask for what the model has no tokens for)
        """
        if self._mask is None:
            self._mask = self._computed()
            self._mask.flags.writeable = False
        return self._mask

    def _computed(self) -> NDArray[np.uint32]:
        tokens = self._tokens
        if self.has_ended:
            raise self._failed("nothing follows an end token")
        found, begun = np.empty(num_words(tokens.end_id + 1), np.uint32), time.thread_time()
        self._matcher.unsafe_compute_mask_ptr(found.ctypes.data, found.nbytes)
        if self._matcher.is_error():  # the mask would have the end alone
            raise self._failed(first_line(self._matcher.get_error()))
        self._check_step(begun)
        has_end = found[tokens.end_id >> 5] >> np.uint32(tokens.end_id & 31) & 1
        mask: NDArray[np.uint32] = found[: self._words] & tokens.usable
        if has_end and self._matcher.is_accepting():  # a grammar can name any id, that of its end too
            mask |= tokens.ended
        if not mask.any():
            raise self._failed("the model has no token that could come next")
        return mask

    def all_but_the_end(self) -> NDArray[np.uint32]:
        """The mask of a thought that comes before the answer: everything but the model's end tokens.

        return: [ceil(V / 32)] uint32
        """
        return ~self._tokens.ended

    def accept(self, token_id: int) -> None:
        """Write one token that `allowed` has. An end token ends the answer.

        raises: InvalidRequestError as `allowed`; AssertionError for any other token
        """
        bit = np.uint32(1 << (token_id & 31))
        assert 0 <= token_id < self._tokens.num_rows and self.allowed()[token_id >> 5] & bit, "a token not allowed"
        self._mask, begun = None, time.thread_time()
        if self._tokens.ended[token_id >> 5] & bit:
            self.has_ended = True
        elif not self._matcher.consume_token(token_id):
            raise self._failed(first_line(self._matcher.get_error()))
        self._check_step(begun)

    def forced(self, limit: int) -> list[int]:
        """The tokens that come next for as long as just one is allowed each time; the state stays as it is.

        limit:  at most so many
        return: token ids, often none. An end token, where it is the only one, is the last
        raises: InvalidRequestError as `allowed`
        """
        ids: list[int] = []
        state = self
        while len(ids) < limit:
            only = _only_bit(state.allowed())
            if only is None:
                break
            ids.append(only)
            if state is self:
                state = GrammarState(self._matcher.deep_copy(), self._tokens, self._field)
            state.accept(only)
            if state.has_ended:
                break
        return ids

    @property
    def is_over(self) -> bool:
        """Whether nothing but an end token can follow, or one did."""
        return self.has_ended or not (self.allowed() & ~self._tokens.ended).any()

    def _check_step(self, begun: float) -> None:
        """Give up on a grammar of which one token takes so long that all other answers wait for it: what has begun to
        take long takes longer with every token.

        begun: time.thread_time() before
        """
        if time.thread_time() - begun > STEP_SECONDS:
            raise self._failed(f"it is ambiguous in so many ways that a token took more than {STEP_SECONDS:g} seconds")

    def _failed(self, why: str) -> InvalidRequestError:
        return InvalidRequestError(f"{self._field} can't be followed any further: {why}.", field=self._field)


class _Outcome(Generic[T]):
    """What a thread made or raised, for the one that waits for it."""

    def __init__(self) -> None:
        self.is_there = threading.Event()
        self._made: list[T] = []
        self._error: BaseException | None = None

    def run(self, make: Callable[[], T]) -> None:
        """Call `make` and keep what comes of it."""
        try:
            self._made.append(make())
        except BaseException as error:  # raised again where it is waited for
            self._error = error
        finally:
            self.is_there.set()

    def get(self) -> T:
        """What was made, or raise what was raised."""
        if self._error is not None:
            raise self._error
        return self._made[0]


def _compiled(format_: OutputFormat, tokens: GrammarTokens) -> CompiledGrammar:
    """Compile a format and follow it for a few tokens, which finds grammars that admit nothing or are too complex."""
    from llguidance import LLMatcher

    field = format_.field_name
    named = names_in_lark(format_.content) if format_.kind == "lark" else ""
    for name in tokens.end_names:
        if name in named:
            raise InvalidRequestError(
                f"{field} names {name}, which ends an answer; leave it out.",
                field=field,
                hint="It is allowed wherever the grammar is complete.",
            )
    matcher = LLMatcher(tokens.library, grammar_text(format_), log_level=0, limits=_limits())
    if matcher.is_error():
        raise InvalidRequestError(
            f"{field} is no {format_.kind} that can be followed: {first_line(matcher.get_error())}.", field=field
        )
    first = GrammarState(matcher.deep_copy(), tokens, field)
    try:
        for _ in range(PROBED_TOKENS):
            going_on = np.flatnonzero(first.allowed() & ~tokens.ended)
            if len(going_on) == 0:
                break
            word = int(first.allowed()[going_on[0]] & ~tokens.ended[going_on[0]])
            first.accept(32 * int(going_on[0]) + (word & -word).bit_length() - 1)
    except InvalidRequestError as problem:
        raise InvalidRequestError(
            f"{field} admits no answer or is too complex. {problem.message}", field=field
        ) from None
    return CompiledGrammar(format_, tokens, matcher)


def _limits() -> LLParserLimits:
    """llguidance's own limits bound the work of one mask; its messages shall not hold the grammar's inside."""
    from llguidance import LLParserLimits

    return LLParserLimits(verbose_errors=False)


def _only_bit(mask: NDArray[np.uint32]) -> int | None:
    """The one id of a mask; None if it has more."""
    words = np.flatnonzero(mask)
    if len(words) != 1:
        return None
    word = int(mask[words[0]])
    return None if word & (word - 1) else 32 * int(words[0]) + word.bit_length() - 1
