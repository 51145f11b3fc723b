"""`kaishu generate`: continue a text, without a chat template.

Owns how the prompt gets in (option or pipe) and the two ways out: the text as it comes, or one JSON object at the end.
"""

# No `from __future__ import annotations`: typer reads the annotations as objects.

import sys
from contextlib import closing
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kaishu.cli.options import GENERATING_MODEL_OPTIONS, SAMPLING_OPTIONS, ModelOptions, with_options
from kaishu.errors import InvalidRequestError

if TYPE_CHECKING:
    from kaishu.llm import LLM
    from kaishu.results import Completion, PositionLogprobs, TokenLogprob
    from kaishu.sampling import SamplingParams


@with_options(model_options=GENERATING_MODEL_OPTIONS, params=SAMPLING_OPTIONS)
def generate(
    model: Annotated[str, typer.Argument(help="A folder, a hub's name, or a bundled model.")],
    prompt: Annotated[
        str | None,
        typer.Option("--prompt", "-p", help="The text to continue; else standard input.", show_default=False),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object with ids, usage and timing.")] = False,
    *,
    model_options: ModelOptions,
    params: "SamplingParams",
) -> None:
    """Continue a text, as it is, without a chat template."""
    from kaishu.cli.printable import show_notes
    from kaishu.cli.stdin import read_stdin

    if prompt is None:
        prompt = read_stdin("prompt", instead="Give -p TEXT")
    if not prompt:
        raise InvalidRequestError("The prompt is empty.", field="prompt", hint="Give -p TEXT with some text.")
    llm = model_options.load(model)
    show_notes(llm.notes)
    if as_json:
        from kaishu.cli.printable import printable_json

        print(printable_json(completion_json(llm.generate(prompt, params))))
    else:
        _stream(llm, prompt, params)


def _stream(llm: "LLM", prompt: str, params: "SamplingParams") -> None:
    """Write the continuation as it comes, and end its last line."""
    from kaishu.cli.printable import printable
    from kaishu.results import TextDelta

    ends_line = False
    try:
        with closing(_deltas(llm, prompt, params)) as deltas:
            for delta in deltas:
                if isinstance(delta, TextDelta) and delta.text:
                    sys.stdout.write(printable(delta.text))
                    sys.stdout.flush()
                    ends_line = delta.text.endswith("\n")
    finally:
        if not ends_line:
            sys.stdout.write("\n")


def _deltas(llm: "LLM", prompt: str, params: "SamplingParams") -> Any:
    return llm.stream_generate(prompt, params)


def completion_json(completion: "Completion") -> dict[str, Any]:
    """A completion as plain JSON values.

    return: text, token_ids, finish_reason, usage, logprobs (null when not asked for) and timing in seconds
    """
    logprobs = completion.logprobs
    return {
        "text": completion.text,
        "token_ids": list(completion.token_ids),
        "finish_reason": completion.finish_reason,
        "usage": {**asdict(completion.usage), "total_tokens": completion.usage.total_tokens},
        "logprobs": None if logprobs is None else [_position(position) for position in logprobs],
        "timing": {**asdict(completion.timing), "tokens_per_second": completion.timing.tokens_per_second},
    }


def _position(position: "PositionLogprobs") -> dict[str, Any]:
    return {**_token(position.chosen), "top": [_token(token) for token in position.top]}


def _token(token: "TokenLogprob") -> dict[str, Any]:
    return {"token_id": token.token_id, "text": token.text, "bytes": list(token.bytes), "logprob": token.logprob}
