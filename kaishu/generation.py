"""One request over an executor: prefill in chunks, then token by token until it ends.

Owns the loop, the reasons to end, and the way from token ids to released text (bytes, then stop strings). Knows the
executor only through batch.py: it can't tell the reference model from the kernels. Used by llm.py, which adds the chat
template before it and the channels after it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from kaishu.batch import Executor, SequenceTokens, pack
from kaishu.errors import ContextLengthError, InvalidParameterError, InvalidRequestError
from kaishu.results import FinishReason, PositionLogprobs, Timing, TokenLogprob, Usage
from kaishu.sampling import SampledToken, Sampler, SamplingParams
from kaishu.text.stopping import StopStrings
from kaishu.text.tokenizer import IncrementalDecoder, Tokenizer

PREFILL_CHUNK_TOKENS = 512  # bounds the memory of one step; the result doesn't depend on it


@dataclass(frozen=True)
class Limits:
    """What the model, not the request, says about its tokens. `context_tokens` counts prompt and output together."""

    context_tokens: int
    end_token_ids: frozenset[int]
    num_token_ids: int  # ids from here on have no token
    absent_token_ids: frozenset[int]  # nor do these


def sampled_tokens(executor: Executor, prompt_ids: Sequence[int], sampler: Sampler) -> Iterator[SampledToken]:
    """Yield one token after another, without end: whoever reads decides when to stop, and no step is run ahead of that.

    prompt_ids: at least one
    raises:     NumericalError from the sampler
    """
    pages = range(executor.num_pages)
    new_tokens, computed = list(prompt_ids), 0
    while True:
        chunk = new_tokens[:PREFILL_CHUNK_TOKENS]
        is_whole = len(chunk) == len(new_tokens)
        wants_logits = (-1,) if is_whole else ()
        num_pages = -(-(computed + len(chunk)) // executor.page_tokens)
        logits = executor.step(pack([SequenceTokens(chunk, computed, pages[:num_pages], wants_logits)]))
        computed += len(chunk)
        new_tokens = new_tokens[len(chunk) :]
        if is_whole:
            token = sampler.sample(logits[0])
            yield token
            new_tokens = [token.token_id]


class Generation:
    """One request while it runs and after. Iterate over it for pieces of text; then read its fields.

    token_ids:     what was generated, without the end token
    finish_reason: "stop" or "length" once iteration is over; None before
    raises:        ContextLengthError or InvalidRequestError when made, NumericalError while running
    """

    def __init__(
        self,
        executor: Executor,
        tokenizer: Tokenizer,
        prompt_ids: Sequence[int],
        params: SamplingParams,
        limits: Limits,
    ) -> None:
        if not prompt_ids:
            raise InvalidRequestError(
                "The prompt is empty: there is no token to continue from.", field="prompt", hint="Give some text."
            )
        room_tokens = limits.context_tokens - len(prompt_ids)
        if room_tokens < 1:
            raise ContextLengthError(len(prompt_ids), limits.context_tokens)
        if params.min_tokens > room_tokens:
            raise InvalidParameterError("min_tokens", params.min_tokens, f"0 to the {room_tokens} left of the context")
        self._executor, self._tokenizer, self._prompt_ids = executor, tokenizer, prompt_ids
        self.params, self._limits = params, limits
        self._max_tokens = min(params.max_tokens or room_tokens, room_tokens)
        self._sampler = Sampler(
            params,
            prompt_ids=prompt_ids,
            num_token_ids=limits.num_token_ids,
            end_token_ids=limits.end_token_ids,
            absent_ids=limits.absent_token_ids,
        )
        self._ends = limits.end_token_ids.union(params.stop_token_ids)
        self.token_ids: list[int] = []
        self.logprobs: list[PositionLogprobs] = []
        self.finish_reason: FinishReason | None = None
        self._released: list[str] = []
        self._num_sampled = 0
        self._started = self._first_token = self._last_token = 0.0

    def __iter__(self) -> Iterator[str]:
        """Yield the text as it becomes certain: whole characters, and nothing that may yet be part of a stop string."""
        self._started = time.perf_counter()
        for piece in self._pieces():
            if piece:
                self._released.append(piece)
                yield piece

    def _pieces(self) -> Iterator[str]:
        decoder = IncrementalDecoder(self._tokenizer, hidden=self._tokenizer.special_token_ids)
        stopping = StopStrings(self.params.stop)
        for token in sampled_tokens(self._executor, self._prompt_ids, self._sampler):
            self._count_token()
            if token.token_id in self._ends:
                self.finish_reason = "stop"
                break
            self.token_ids.append(token.token_id)
            self._keep_logprobs(token)
            released = decoder.push(token.token_id)
            if self._num_sampled > self.params.min_tokens:
                yield stopping.push(released)
            else:
                yield released
            if stopping.matched is not None:
                self.finish_reason = "stop"
                return
            if self._num_sampled == self._max_tokens:
                self.finish_reason = "length"
                break
        yield stopping.push(decoder.finish())
        if stopping.matched is not None:
            self.finish_reason = "stop"
        yield stopping.finish()

    def _count_token(self) -> None:
        self._last_token = time.perf_counter()
        if self._num_sampled == 0:
            self._first_token = self._last_token
        self._num_sampled += 1

    def _keep_logprobs(self, token: SampledToken) -> None:
        if token.logprob is not None:
            chosen = self._described(token.token_id, token.logprob)
            if token.token_id in self._tokenizer.special_token_ids:  # it is no part of the text, so it adds no bytes
                chosen = replace(chosen, text="", bytes=b"")
            top = tuple(self._described(entry.token_id, entry.logprob) for entry in token.top)
            self.logprobs.append(PositionLogprobs(chosen, top))

    def _described(self, token_id: int, logprob: float) -> TokenLogprob:
        raw = self._tokenizer.token_bytes(token_id)
        return TokenLogprob(token_id, raw.decode("utf-8", errors="replace"), raw, logprob)

    @property
    def text(self) -> str:
        """The text released so far."""
        return "".join(self._released)

    @property
    def usage(self) -> Usage:
        """Tokens taken so far, the end token among them."""
        return Usage(len(self._prompt_ids), self._num_sampled)

    @property
    def timing(self) -> Timing:
        """Seconds from the start of the iteration to the first token, and from there to the last."""
        return Timing(
            first_token_seconds=self._first_token - self._started,
            decode_seconds=self._last_token - self._first_token,
            decoded_tokens=max(self._num_sampled - 1, 0),
        )
