"""What tests of the engine share: a model whose every logit depends on the whole context, jobs, and their runs.

`LivelyExecutor` draws each row of logits from the context that its pages spell, so that a wrong page changes every log
probability; one token, told by the last two, stands out, so that texts repeat themselves and guesses are often right.
`outcomes` runs jobs through a core in any order of arrivals and aborts; `alone` runs one in a fresh core that guesses
nothing, which is what every other run has to equal, bit for bit.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kaishu.batch import Executor
from kaishu.config import GenerationDefaults
from kaishu.engine.core import EngineCore, EngineSettings
from kaishu.engine.jobs import Generate, Read
from kaishu.engine.output import Limits
from kaishu.engine.stream import ChoiceEnd, PromptRead, RequestEnd, Stream, TextPiece
from kaishu.sampling import SamplingParams
from kaishu.text.tokenizer import Tokenizer
from tests.scripted import ScriptedExecutor
from tests.tiny_checkpoints import VOCAB_SIZE

CONTEXT_TOKENS = 96
THINK, END_THINK, IM_END, END_OF_TEXT = "<think>", "</think>", "<|im_end|>", "<|endoftext|>"


def limits_of(tokenizer: Tokenizer, context_tokens: int = CONTEXT_TOKENS) -> Limits:
    count = min(tokenizer.vocab_size, VOCAB_SIZE)
    return Limits(
        context_tokens,
        frozenset({tokenizer.control_tokens[IM_END], tokenizer.control_tokens[END_OF_TEXT]}),
        count,
        frozenset(tokenizer.ids_without_token(count)),
    )


class LivelyExecutor(ScriptedExecutor):
    """See the module. `favourites`: the tokens of which one stands out."""

    def __init__(self, favourites: Sequence[int], *, strength: float = 9.0, seed: int = 0, **sizes: Any) -> None:
        super().__init__(lambda _: 0, vocab_size=VOCAB_SIZE, **{"page_tokens": 4, "num_pages": 256, **sizes})
        self._favourites, self._strength, self._seed = list(favourites), strength, seed

    @property
    def num_tokens(self) -> int:
        """How many were computed so far."""
        return sum(len(step.token_ids) for step in self.steps)

    def _certain(self, context: tuple[int, ...]) -> NDArray[np.float32]:
        return self.row(context)

    def row(self, context: Sequence[int]) -> NDArray[np.float32]:
        """[V] float32: what follows a context."""
        seed = zlib.crc32(np.array([self._seed, *context], np.int32).tobytes())
        logits = np.random.default_rng(seed).standard_normal(VOCAB_SIZE, np.float32)
        ahead = zlib.crc32(bytes(token % 256 for token in context[-2:]))
        logits[self._favourites[ahead % len(self._favourites)]] += np.float32(self._strength)
        return logits


def lively(tokenizer: Tokenizer, **options: Any) -> LivelyExecutor:
    """One that likes few letters, and now and then begins or ends a thought, or its answer."""
    tags = [tokenizer.control_tokens[name] for name in (THINK, END_THINK, END_THINK, IM_END)]
    return LivelyExecutor([*tokenizer.encode('abcdab{":1 \n'), *tags], **options)


@dataclass
class Outcome:
    """What one job got: of each choice its end, in the order of choices; how it failed; what it cost."""

    choices: dict[int, ChoiceEnd] = field(default_factory=dict)
    streamed: dict[int, list[TextPiece]] = field(default_factory=dict)
    prompt: PromptRead | None = None
    end: RequestEnd | None = None
    error: BaseException | None = None
    rows: NDArray[np.float32] | None = None

    def add(self, stream: Stream) -> None:
        """Read what is there."""
        try:
            for event in stream.take():
                assert self.end is None, "nothing follows the end"
                if isinstance(event, PromptRead):
                    assert self.prompt is None and not self.streamed, "it comes once, and first"
                    self.prompt = event
                elif isinstance(event, TextPiece):
                    assert event.choice not in self.choices, "nothing follows a choice's end"
                    self.streamed.setdefault(event.choice, []).append(event)
                elif isinstance(event, ChoiceEnd):
                    assert event.choice not in self.choices
                    self.choices[event.choice] = event
                else:
                    self.end = event
            if stream.is_over:
                stream.take()
        except Exception as error:
            self.error = error
        self.rows = stream.rows

    def check(self) -> None:
        """What was streamed adds up to what came at the end."""
        for index, choice in self.choices.items():
            pieces = self.streamed[index]
            assert "".join(piece.text for piece in pieces) == choice.text
            ids = tuple(token_id for piece in pieces for token_id in piece.token_ids)
            assert ids[: len(choice.token_ids)] == choice.token_ids and len(ids) == choice.completion_tokens
            assert choice.completion_tokens - len(choice.token_ids) in (0, 1)
            if choice.logprobs is not None:
                assert tuple(entry for piece in pieces for entry in piece.logprobs) == choice.logprobs
        if self.end is not None:
            taken = sum(choice.completion_tokens for choice in self.choices.values())
            assert self.end.usage.completion_tokens == taken
            assert self.end.prompt_logprobs == (self.prompt and self.prompt.logprobs)

    def comparable(self) -> Any:
        """All that must not depend on other jobs, bit for bit; without times, and without what was found in a cache."""
        prompt = None if self.end is None else (self.end.usage.prompt_tokens, self.end.prompt_logprobs)
        rows = None if self.rows is None else self.rows.tobytes()
        error = None if self.error is None else (type(self.error), str(self.error))
        return [self.choices[index] for index in sorted(self.choices)], prompt, rows, error


def job(prompt_ids: Sequence[int], *, thinking: Any = "closed", grammar: Any = None, **fields: Any) -> Generate:
    """A Generate; `priority` and `salt` go to the job, all other fields to its SamplingParams."""
    own = {name: fields.pop(name) for name in ("priority", "salt") if name in fields}
    params = SamplingParams(**{"temperature": 0, **fields}).with_defaults(GenerationDefaults())
    return Generate(list(prompt_ids), params, thinking, grammar, **own)


def core_of(
    executor: Executor,
    tokenizer: Tokenizer,
    *,
    context_tokens: int | None = None,
    drafting: Any = None,
    **settings: Any,
) -> EngineCore:
    room = executor.num_pages * executor.page_tokens
    limits = limits_of(tokenizer, context_tokens or min(room, CONTEXT_TOKENS))
    return EngineCore(executor, tokenizer, limits, EngineSettings(**settings), drafting=drafting)


def outcomes(
    core: EngineCore,
    jobs: Sequence[Generate | Read],
    *,
    arrivals: Sequence[int] | None = None,
    aborts: Mapping[int, int] | None = None,
    after_step: Callable[[], None] = lambda: None,
) -> list[Outcome]:
    """Run jobs until all are over.

    arrivals: at which step each comes; None for all at once
    aborts:   the number of a job → how many steps after its arrival it is aborted
    """
    arrivals = arrivals or [0] * len(jobs)
    streams: dict[int, Stream] = {}
    found = [Outcome() for _ in jobs]
    step = 0
    while len(streams) < len(jobs) or core.is_busy:
        for index, wanted in enumerate(jobs):
            if arrivals[index] == step:
                streams[index] = core.add(wanted)
            if aborts and index in aborts and step == arrivals[index] + aborts[index]:
                core.abort(streams[index].number)
        touched = core.step()
        core.check_invariants()
        after_step()
        for index, stream in streams.items():
            assert not stream.events or stream in touched, "whoever waits for a stream is told"
            found[index].add(stream)
        step += 1
        assert step < 20_000, "it doesn't come to an end"
    for outcome in found:
        outcome.check()
    assert core.pool.num_held == 0, "all pages are back"
    return found


def alone(one: Generate | Read, executor: Executor, tokenizer: Tokenizer, **options: Any) -> Outcome:
    """The job by itself in a fresh core, cold, nothing guessed."""
    return outcomes(core_of(executor, tokenizer, speculation=False, **options), [one])[0]
