"""What comes back from a request: whole answers, and the deltas of a streamed one.

Owns these plain, frozen types and nothing that computes. Made by deltas.py; read by Python callers, the command line
and the server. The deltas of the text channels themselves come from text/channels.py.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from kaishu.text.channels import ToolCall

FinishReason = Literal["stop", "length", "tool_calls"]
Origin = Literal["sampled", "guessed", "forced"]


@dataclass(frozen=True)
class TokenLogprob:
    """A token, the bytes it stands for, and the natural logarithm of its probability.

    `text` is the token decoded alone, where a byte sequence cut by the token's edge shows as U+FFFD; `bytes` is exact.
    A chosen token that doesn't show in the text, such as `<|im_start|>`, has neither, so that bytes add up to the text.
    """

    token_id: int
    text: str
    bytes: bytes
    logprob: float


@dataclass(frozen=True)
class PositionLogprobs:
    """The token chosen at one position of the output, and the likeliest ones there, likeliest first.

    origin: how it came to be computed: one token in its step; together with others, since it had been guessed right; or
            because nothing else could follow (a grammar, the end of a thought). What it is doesn't depend on this
    """

    chosen: TokenLogprob
    top: tuple[TokenLogprob, ...] = ()
    origin: Origin = field(default="sampled", compare=False)


@dataclass(frozen=True)
class Usage:
    """How many tokens a request took. The end token that stopped it counts as a completion token.

    cached_tokens:    of the prompt's, how many were computed for an earlier request
    reasoning_tokens: of the completion's, how many were thought
    """

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0
    reasoning_tokens: int = 0

    @property
    def total_tokens(self) -> int:
        """Prompt and completion together."""
        return self.prompt_tokens + self.completion_tokens


@dataclass(frozen=True)
class Timing:
    """Where the time went, in seconds. The first token's begins when the request enters the engine."""

    first_token_seconds: float
    decode_seconds: float
    decoded_tokens: int

    @property
    def tokens_per_second(self) -> float | None:
        """Speed after the first token; None for an answer of one token."""
        return self.decoded_tokens / self.decode_seconds if self.decode_seconds > 0 else None


@dataclass(frozen=True)
class Completion:
    """The continuation of a text. `token_ids` leaves out the end token or stop token.

    alternatives:    the other choices, where n was more than 1; usage and timing are of all together
    prompt_logprobs: of each token of the prompt but the first, if they were asked for
    stop_string:     the one that ended it, if one did
    """

    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason
    usage: Usage
    timing: Timing
    logprobs: tuple[PositionLogprobs, ...] | None = None
    alternatives: tuple[Completion, ...] = ()
    prompt_logprobs: tuple[PositionLogprobs, ...] | None = None
    stop_string: str | None = None


@dataclass(frozen=True)
class ChatCompletion:
    """An assistant's turn, split into its channels. `content` and `reasoning` are empty strings where there is none.

    alternatives: the other choices, where n was more than 1; usage and timing are of all together
    stop_string:  the one that ended it, if one did
    """

    content: str
    reasoning: str
    tool_calls: tuple[ToolCall, ...]
    finish_reason: FinishReason
    token_ids: tuple[int, ...]
    usage: Usage
    timing: Timing
    logprobs: tuple[PositionLogprobs, ...] | None = None
    alternatives: tuple[ChatCompletion, ...] = ()
    stop_string: str | None = None


@dataclass(frozen=True)
class TextDelta:
    """More text of a streamed completion."""

    text: str


@dataclass(frozen=True)
class PromptRead:
    """The log probabilities of a prompt's tokens but the first, before anything that follows it."""

    logprobs: tuple[PositionLogprobs, ...]


@dataclass(frozen=True)
class ChoiceOver:
    """The last delta of one choice, while others may go on. answer: as far as it is of this choice alone"""

    answer: Completion | ChatCompletion


@dataclass(frozen=True)
class CompletionEnd:
    """The last delta of a streamed completion, with the whole of it."""

    completion: Completion


@dataclass(frozen=True)
class RerankResult:
    """How well a document answers a query.

    index: the document's place among those given
    score: how likely the model finds "yes", from 0 to 1
    """

    index: int
    score: float


@dataclass(frozen=True)
class ChatEnd:
    """The last delta of a streamed chat, with the whole of it."""

    completion: ChatCompletion
