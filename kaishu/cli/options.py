"""The options that several commands share: how to load the model, and how to choose tokens.

Owns their names, help and how they become a `ModelOptions` or a `SamplingParams`. A command declares one parameter for
a whole group; `@with_options(...)` puts the group's options in its place, so that each option is written once. Checks
no ranges: SamplingParams and LLM do. Imported at start-up, so it imports nothing heavy.
"""

# No `from __future__ import annotations` here or in the command modules: typer reads the annotations as objects.

import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Any, get_args

import typer

from kaishu.errors import InvalidParameterError

if TYPE_CHECKING:
    from kaishu.llm import LLM
    from kaishu.sampling import SamplingParams

DEFAULT_MODEL = "tiny"


@dataclass(frozen=True)
class OptionGroup:
    """Options that together make one value.

    options: parameter name → its annotated type; each is absent (None) unless given, or False for a switch
    gather:  from the values of these parameters to the value that the command gets
    """

    options: Mapping[str, Any]
    gather: Callable[..., Any]


def with_options(**groups: OptionGroup) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Replace each named parameter of a command by the options of its group.

    groups: parameter name → the group that makes its value
    return: a decorator for a typer command
    """

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        own = inspect.signature(command).parameters
        parameters = [parameter for name, parameter in own.items() if name not in groups]
        for group in groups.values():
            parameters += [
                inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=kind, default=_absent(kind))
                for name, kind in group.options.items()
            ]

        @functools.wraps(command)
        def run(**given: Any) -> None:
            made = {
                name: group.gather(**{option: given.pop(option) for option in group.options})
                for name, group in groups.items()
            }
            command(**given, **made)

        signature = inspect.Signature([p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in parameters])
        run.__signature__ = signature  # type: ignore[attr-defined]
        run.__annotations__ = {p.name: p.annotation for p in parameters}
        return run

    return decorate


def _absent(kind: Any) -> Any:
    is_switch = kind.__origin__ is bool
    return False if is_switch else None


def _option(flag: str, help_text: str, panel: str, metavar: str | None = None) -> Any:
    return typer.Option(flag, help=help_text, rich_help_panel=panel, metavar=metavar, show_default=False)


@dataclass(frozen=True)
class ModelOptions:
    """How to load the model. None leaves the choice to LLM."""

    weights: str | None = None
    head: str | None = None
    kv: str | None = None
    executor: str | None = None
    device: str | None = None
    threads: int | None = None
    context_tokens: int | None = None
    max_memory: str | None = None
    lora: list[str] | None = None
    draft: str | None = None
    speculation: bool | None = None

    def load(self, model: str) -> "LLM":
        """Load a model with these options.

        model:  a bundled name, a folder or a hub's name
        raises: KaishuError
        """
        import warnings

        from kaishu.cli.download_bar import download_bar
        from kaishu.llm import LLM

        given = {name: value for name, value in asdict(self).items() if value is not None}
        with download_bar(model) as progress, warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # the command shows llm.notes in its own way
            return LLM(model, progress=progress, **given)


_LORA = "Merge a LoRA adapter into the model, as PEFT saves it; may be repeated."
Adapters = Annotated[list[str] | None, typer.Option("--lora", help=_LORA, metavar="DIR", show_default=False)]

_MAX_MEMORY = "Take at most this, such as 4GB; what doesn't fit is left out or refused."
MaxMemory = Annotated[str | None, typer.Option("--max-memory", help=_MAX_MEMORY, metavar="SIZE", show_default=False)]

_MODEL = "Model"
MODEL_OPTIONS = OptionGroup(
    {
        "weights": Annotated[
            str | None,
            _option("--weights", "How weights are kept in memory: auto, bf16, int8, int4 or float32.", _MODEL, "FORM"),
        ],
        "head": Annotated[
            str | None, _option("--head", "How the output head is kept: auto, bf16, int8 or int4.", _MODEL, "FORM")
        ],
        "kv": Annotated[
            str | None,
            _option("--kv", "How keys and values are kept: auto, bf16, or int8 in half the memory.", _MODEL, "FORM"),
        ],
        "executor": Annotated[
            str | None, _option("--executor", "What computes: auto, cpu or reference.", _MODEL, "NAME")
        ],
        "device": Annotated[str | None, _option("--device", "Where to compute: cpu, cuda, mps.", _MODEL, "NAME")],
        "threads": Annotated[int | None, _option("--threads", "CPU threads.", _MODEL, "N")],
        "context_tokens": Annotated[
            int | None, _option("--context", "Longest prompt and answer together, in tokens.", _MODEL, "TOKENS")
        ],
        "max_memory": Annotated[
            str | None,
            _option("--max-memory", "Cut the context so that all takes at most this, such as 4GB.", _MODEL, "SIZE"),
        ],
        "lora": Annotated[list[str] | None, _option("--lora", _LORA, _MODEL, "DIR")],
    },
    ModelOptions,
)

_DRAFT = "A smaller model with the same tokenizer, which guesses tokens: only speed depends on it."
_SPECULATION = "Whether tokens are guessed from the text itself; answers are the same."
GENERATING_MODEL_OPTIONS = OptionGroup(
    {
        **MODEL_OPTIONS.options,
        "draft": Annotated[str | None, _option("--draft", _DRAFT, _MODEL, "MODEL")],
        "speculation": Annotated[bool | None, _option("--speculation/--no-speculation", _SPECULATION, _MODEL)],
    },
    ModelOptions,
)


@dataclass(frozen=True)
class RemoteOptions:
    """Which server to ask, if any."""

    url: str | None = None
    api_key: str | None = None
    served_model: str | None = None


_REMOTE = "A server"
REMOTE_OPTIONS = OptionGroup(
    {
        "url": Annotated[
            str | None,
            _option("--url", "Talk to a server with OpenAI's API, as http://127.0.0.1:8000.", _REMOTE, "URL"),
        ],
        "api_key": Annotated[
            str | None, _option("--api-key", "Its key; else KAISHU_API_KEY in the environment.", _REMOTE, "KEY")
        ],
        "served_model": Annotated[
            str | None, _option("--model", "Which of its models; else the first one it lists.", _REMOTE, "NAME")
        ],
    },
    RemoteOptions,
)


def given_flags(options: ModelOptions) -> list[str]:
    """The flags of what was given, as the user wrote them."""
    kinds = GENERATING_MODEL_OPTIONS.options
    given = [name for name, value in asdict(options).items() if value is not None]
    return [_flag(kinds[name]) for name in given]


def _flag(kind: Any) -> str:
    flag: str = get_args(kind)[1].default.partition("/")[0]
    return flag


def _sampling_params(**given: Any) -> "SamplingParams":
    from kaishu.sampling import SamplingParams

    biases = given.pop("logit_bias")
    said = {name: value for name, value in given.items() if value not in (None, [])}
    if biases:
        said["logit_bias"] = parse_logit_bias(biases)
    return SamplingParams.from_fields(said)


def parse_logit_bias(entries: list[str]) -> dict[int, float]:
    """Read ID=VALUE entries.

    entries: as the user wrote them, such as "42=-5"
    return:  token id → value, ranges not yet checked
    raises:  InvalidParameterError for an entry of another form, or an id given twice
    """
    biases: dict[int, float] = {}
    for entry in entries:
        token_id, _, value = entry.partition("=")
        try:
            key, bias = int(token_id), float(value)
        except ValueError:
            raise InvalidParameterError("logit_bias", entry, "ID=VALUE, such as 42=-5") from None
        if key in biases:
            raise InvalidParameterError("logit_bias", entry, "each token id once")
        biases[key] = bias
    return biases


_CHOICE = "Choosing tokens"
_END = "Ending"
SAMPLING_OPTIONS = OptionGroup(
    {
        "temperature": Annotated[
            float | None,
            _option("--temperature", "0 takes the likeliest token; higher varies more.", _CHOICE, "NUMBER"),
        ],
        "top_k": Annotated[int | None, _option("--top-k", "Only the K likeliest tokens; 0 for all.", _CHOICE, "K")],
        "top_p": Annotated[
            float | None, _option("--top-p", "Only the likeliest tokens that together reach P.", _CHOICE, "P")
        ],
        "min_p": Annotated[
            float | None, _option("--min-p", "Only tokens at least P times as likely as the likeliest.", _CHOICE, "P")
        ],
        "repetition_penalty": Annotated[
            float | None,
            _option("--repetition-penalty", "Above 1: tokens of prompt and output are less likely.", _CHOICE, "NUMBER"),
        ],
        "presence_penalty": Annotated[
            float | None, _option("--presence-penalty", "Taken once from each token in the output.", _CHOICE, "NUMBER")
        ],
        "frequency_penalty": Annotated[
            float | None, _option("--frequency-penalty", "Taken from a token each time it comes.", _CHOICE, "NUMBER")
        ],
        "seed": Annotated[int | None, _option("--seed", "The same seed gives the same answer.", _CHOICE, "N")],
        "logit_bias": Annotated[
            list[str] | None,
            _option("--logit-bias", "Add VALUE to a token's logit; may be repeated.", _CHOICE, "ID=VALUE"),
        ],
        "logprobs": Annotated[
            int | None,
            _option("--logprobs", "Log probabilities: the chosen token's and the N likeliest.", _CHOICE, "N"),
        ],
        "max_tokens": Annotated[int | None, _option("--max-tokens", "At most N tokens.", _END, "N")],
        "min_tokens": Annotated[int | None, _option("--min-tokens", "At least N tokens.", _END, "N")],
        "thinking_budget": Annotated[
            int | None, _option("--thinking-budget", "End a thought after N tokens, then answer.", _END, "N")
        ],
        "stop": Annotated[list[str] | None, _option("--stop", "End before this text; may be repeated.", _END, "TEXT")],
        "stop_token_ids": Annotated[
            list[int] | None, _option("--stop-token-id", "End before this token; may be repeated.", _END, "ID")
        ],
        "ignore_eos": Annotated[bool, _option("--ignore-eos", "Never choose the model's end tokens.", _END)],
    },
    _sampling_params,
)


def as_typed(error: InvalidParameterError) -> InvalidParameterError:
    """The same error about the option that the user typed: `--top-p is 1.5`, not `top_p is 1.5`.

    error:  about a field; one without an option, and what follows the name in `logit_bias[5]`, stay as they are
    """
    name = error.field.partition("[")[0]
    kind = {**GENERATING_MODEL_OPTIONS.options, **SAMPLING_OPTIONS.options}.get(name)
    if kind is None:
        return error
    return InvalidParameterError(_flag(kind) + error.field[len(name) :], error.value, error.allowed, hint=error.hint)
