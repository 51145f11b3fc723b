"""SamplingParams: how one request wants its tokens chosen, and when it wants to end.

Owns the names, ranges and defaults of these fields; every surface (Python, command line, HTTP) makes its parameters
here, so that each gives the same errors. Knows nothing of logits: sampler.py does what is said here.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from kaishu.config import GenerationDefaults
from kaishu.errors import InvalidParameterError, InvalidRequestError
from kaishu.output_format import OutputFormat

MAX_LOGPROBS = 20
MAX_CHOICES = 128
MAX_STOP_STRINGS = 64
MAX_STOP_TOKEN_IDS = 1_000
MAX_BIASES = 10_000


@dataclass(frozen=True)
class SamplingParams:
    """How one request wants its tokens chosen and when it wants to end. Checked when it is made.

    None means "not said": `with_defaults` fills it from the model's generation config, then from neutral values.

    temperature:         ≥ 0; 0 takes the likeliest token, 1 the model's own distribution
    top_k:               keep the k likeliest tokens; 0 or -1 keeps all
    top_p:               keep the smallest set of likeliest tokens whose probability reaches p; 0 keeps one
    min_p:               keep tokens at least min_p times as likely as the likeliest
    repetition_penalty:  0.01 to 100; divides (if negative, multiplies) logits of tokens in the prompt or the output
    presence_penalty:    -2 to 2; subtracted once from the logit of each token in the output
    frequency_penalty:   -2 to 2; subtracted from a token's logit once for each time it is in the output
    seed:                0 to 2^63 - 1; None draws a new one
    max_tokens:          ≥ 1; None goes on to the end of the context
    min_tokens:          no end token ends the output before so many tokens; stop strings are looked for in what follows
    stop:                strings that end the output; they are not part of it
    stop_token_ids:      token ids that end the output, beside the model's own; they are not part of it
    ignore_eos:          the model's end tokens are never chosen, so only stop rules and max_tokens end the output
    logit_bias:          token id → -100 to 100, added to its logit
    logprobs:            None: none; n: the chosen token's log probability and those of the n likeliest, at most 20
    n:                   1 to 128 answers to one prompt; the first is what n=1 gives, each has its own seed
    prompt_logprobs:     like logprobs, for the prompt's tokens
    thinking_budget:     ≥ 0; after so many tokens of thought its closing tag comes; None lets the model think
    output_format:       the form that the answer must have
    """

    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    seed: int | None = None
    max_tokens: int | None = None
    min_tokens: int = 0
    stop: str | Sequence[str] = ()
    stop_token_ids: Sequence[int] = ()
    ignore_eos: bool = False
    logit_bias: Mapping[int, float] | None = None
    logprobs: int | None = None
    n: int = 1
    prompt_logprobs: int | None = None
    thinking_budget: int | None = None
    output_format: OutputFormat | None = None

    def __post_init__(self) -> None:
        _check_number("temperature", self.temperature, low=0.0)
        _check_integer("top_k", self.top_k, low=-1)
        _check_number("top_p", self.top_p, low=0.0, high=1.0)
        _check_number("min_p", self.min_p, low=0.0, high=1.0)
        _check_number("repetition_penalty", self.repetition_penalty, low=0.01, high=100.0)
        _check_number("presence_penalty", self.presence_penalty, low=-2.0, high=2.0, optional=False)
        _check_number("frequency_penalty", self.frequency_penalty, low=-2.0, high=2.0, optional=False)
        _check_integer("seed", self.seed, low=0, high=2**63 - 1)
        _check_integer("max_tokens", self.max_tokens, low=1)
        _check_integer("min_tokens", self.min_tokens, low=0, optional=False)
        _check_integer("logprobs", self.logprobs, low=0, high=MAX_LOGPROBS)
        _check_integer("n", self.n, low=1, high=MAX_CHOICES, optional=False)
        _check_integer("prompt_logprobs", self.prompt_logprobs, low=0, high=MAX_LOGPROBS)
        _check_integer("thinking_budget", self.thinking_budget, low=0)
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise InvalidParameterError("min_tokens", self.min_tokens, f"0 to max_tokens, which is {self.max_tokens}")
        if not isinstance(self.ignore_eos, bool):
            raise InvalidParameterError("ignore_eos", self.ignore_eos, "true or false")
        if self.output_format is not None and not isinstance(self.output_format, OutputFormat):
            raise InvalidParameterError("output_format", self.output_format, "an OutputFormat")
        object.__setattr__(self, "stop", _checked_stop_strings(self.stop))
        object.__setattr__(self, "stop_token_ids", _checked_token_ids(self.stop_token_ids))
        object.__setattr__(self, "logit_bias", _checked_bias(self.logit_bias))

    @classmethod
    def from_fields(cls, given: Mapping[str, Any]) -> SamplingParams:
        """Make parameters from named fields; a name that doesn't exist is an error with the nearest that does."""
        known = [field.name for field in fields(cls)]
        for name in given:
            if name not in known:
                near = difflib.get_close_matches(name, known, n=1)
                hint = f"Did you mean {near[0]}?" if near else None
                raise InvalidRequestError(
                    f"There is no sampling field {name!r}; allowed: {', '.join(known)}.", field=name, hint=hint
                )
        return cls(**given)

    def with_defaults(self, defaults: GenerationDefaults) -> SamplingParams:
        """Fill what wasn't said: from the model's recommendations, then with values that change nothing."""
        neutral = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "repetition_penalty": 1.0}
        filled: dict[str, Any] = {}
        for name, value in neutral.items():
            if getattr(self, name) is None:
                recommended = getattr(defaults, name)
                filled[name] = value if recommended is None else recommended
        return replace(self, **filled)

    def check_vocabulary(self, num_token_ids: int) -> None:
        """Refuse ids that the model's tokenizer doesn't have.

        num_token_ids: how many ids there are; allowed are 0 to num_token_ids - 1
        raises: InvalidParameterError naming the field and the id
        """
        for field, ids in (("stop_token_ids", self.stop_token_ids), ("logit_bias", self.logit_bias or ())):
            for token_id in ids:
                if token_id >= num_token_ids:
                    raise InvalidParameterError(field, token_id, f"token ids from 0 to {num_token_ids - 1:,}")


def _check_number(
    field: str,
    value: object,
    *,
    low: float,
    high: float | None = None,
    optional: bool = True,
) -> None:
    if value is None and optional:
        return
    allowed = f"a number of at least {low:g}" if high is None else f"a number from {low:g} to {high:g}"
    is_number = isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)
    try:
        number = float(value) if is_number else math.nan  # type: ignore[arg-type]
    except OverflowError:  # a whole number that no float can hold
        number = math.inf
    if not math.isfinite(number) or number < low or (high is not None and number > high):
        raise InvalidParameterError(field, value, allowed)


def _check_integer(field: str, value: object, *, low: int, high: int | None = None, optional: bool = True) -> None:
    if value is None and optional:
        return
    is_integer = isinstance(value, int | np.integer) and not isinstance(value, bool)
    if not is_integer or value < low or (high is not None and value > high):  # type: ignore[operator]
        allowed = f"a whole number of at least {low}" if high is None else f"a whole number from {low} to {high}"
        raise InvalidParameterError(field, value, allowed)


def _checked_stop_strings(stop: object) -> tuple[str, ...]:
    strings = (stop,) if isinstance(stop, str) else tuple(stop) if isinstance(stop, list | tuple) else None
    if strings is None or len(strings) > MAX_STOP_STRINGS or not all(isinstance(s, str) and s for s in strings):
        raise InvalidParameterError("stop", stop, f"a non-empty string, or up to {MAX_STOP_STRINGS} of them")
    return strings


def _checked_token_ids(token_ids: object) -> tuple[int, ...]:
    allowed = "a list of token ids, each a whole number of at least 0"
    if not isinstance(token_ids, list | tuple | set | frozenset):
        raise InvalidParameterError("stop_token_ids", token_ids, allowed)
    if len(token_ids) > MAX_STOP_TOKEN_IDS:
        raise InvalidParameterError("stop_token_ids", token_ids, f"at most {MAX_STOP_TOKEN_IDS:,} token ids")
    for token_id in token_ids:
        if not isinstance(token_id, int | np.integer) or isinstance(token_id, bool) or token_id < 0:
            raise InvalidParameterError("stop_token_ids", token_id, allowed)
    return tuple(int(token_id) for token_id in token_ids)


def _checked_bias(bias: object) -> dict[int, float] | None:
    if bias is None:
        return None
    if not isinstance(bias, Mapping):
        raise InvalidParameterError("logit_bias", bias, "a mapping from token ids to numbers from -100 to 100")
    if len(bias) > MAX_BIASES:
        raise InvalidParameterError("logit_bias", bias, f"at most {MAX_BIASES:,} token ids")
    checked: dict[int, float] = {}
    for token_id, value in bias.items():
        # JSON objects have string keys; a number written as a string is the same id.
        number = int(token_id) if isinstance(token_id, str) and token_id.isascii() and token_id.isdigit() else token_id
        if not isinstance(number, int | np.integer) or isinstance(number, bool) or number < 0:
            raise InvalidParameterError("logit_bias", token_id, "token ids, whole numbers of at least 0, as keys")
        _check_number(f"logit_bias[{number}]", value, low=-100.0, high=100.0, optional=False)
        checked[int(number)] = float(value)
    return checked
