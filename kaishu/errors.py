"""Every error a user can meet.

Owns the types and the form of the message: what was wrong, what was found, what is allowed, what to do.
Knows nothing of models, files or transport: the command line prints `str(error)` and exits with 2, a server puts
the same words into its answer, a Python caller catches the type. Anything that is not a KaishuError is a bug of ours.
"""

from __future__ import annotations

from collections.abc import Sequence


class KaishuError(Exception):
    """The base of all errors that the user can do something about.

    The message is one line that says what was wrong and what was found; `hint`, if any, says what to do about it.
    """

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message if hint is None else f"{message}\n  {hint}")
        self.message = message
        self.hint = hint


class ModelNotFoundError(KaishuError):
    """A name that is neither bundled, nor a folder, nor a model that a hub knows."""


class HubUnavailableError(KaishuError):
    """No hub answered, or it broke off: the model may exist, but can't be fetched now."""


class ConfigError(KaishuError):
    """A config.json (or generation_config.json) that is missing, contradicts itself or asks for what we don't run."""


class CheckpointError(KaishuError):
    """Weights that are incomplete, damaged, unsafe or left over; names the files and tensors."""


class TokenizerError(KaishuError):
    """Tokenizer files that are missing or can't be read, or ids that the tokenizer doesn't have."""


class TemplateError(KaishuError):
    """A chat template that is missing, fails, or asks for what the sandbox doesn't allow."""


class MissingDependencyError(KaishuError):
    """A feature whose optional package isn't installed."""

    def __init__(self, feature: str, *, package: str, extra: str | None = None) -> None:
        command = f"pip install 'kaishu[{extra}]'" if extra else f"pip install {package}"
        super().__init__(f"{feature} needs the package {package}, which is not installed.", hint=f"Run `{command}`.")
        self.package = package


class InvalidRequestError(KaishuError):
    """Input to one call that can't be honoured. `field` names it the way the caller spelt it, dots for nesting."""

    def __init__(self, message: str, *, field: str, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.field = field


class InvalidParameterError(InvalidRequestError):
    """A sampling or generation field with a value out of its range, or a name that doesn't exist."""

    def __init__(self, field: str, value: object, allowed: str, *, hint: str | None = None) -> None:
        super().__init__(f"{field} is {shown(value)}; allowed: {allowed}.", field=field, hint=hint)
        self.value = value
        self.allowed = allowed


class InvalidMessagesError(InvalidRequestError):
    """A list of chat messages or tools that can't be made into a prompt."""


class ContextLengthError(InvalidRequestError):
    """A prompt that, with what it asks to generate, doesn't fit the context. Nothing is cut.

    Texts that are only read, such as `texts[3]`, have that as their field; they need no room for an answer.
    """

    def __init__(
        self,
        prompt_tokens: int,
        context_tokens: int,
        *,
        field: str = "prompt",
        hint: str | None = None,
        is_whole: bool = True,
    ) -> None:
        """is_whole: whether these are all of the prompt's tokens, or it has more"""
        found = (
            f"has {'' if is_whole else 'more than '}{prompt_tokens:,} tokens, but the context holds {context_tokens:,}"
        )
        if field == "prompt":
            message = f"The prompt {found} including at least one token of the answer."
            hint = hint or "Shorten the prompt, drop earlier messages, or use a model with a longer context."
        else:
            message = f"{field} {found}."
        super().__init__(message, field=field, hint=hint)
        self.prompt_tokens = prompt_tokens
        self.context_tokens = context_tokens


class EngineClosedError(KaishuError):
    """The engine was closed, or the request was ended by somebody else, before it was over."""


class SavedPagesError(KaishuError):
    """A file of computed pages that is damaged, belongs to another model, or can't be read or written."""


class ListenError(KaishuError):
    """An address or port at which a server can't listen, or a certificate that it can't use."""


class RemoteError(KaishuError):
    """A server that was asked over HTTP, and can't be reached, refuses, or answers with what can't be read."""


class QueueFullError(KaishuError):
    """More requests wait already than the engine was told to hold; nothing is wrong with this one."""

    def __init__(self, waiting: int, limit: int) -> None:
        super().__init__(
            f"{waiting:,} requests are waiting already; allowed: {limit:,}.",
            hint="Send it again in a while, or let the engine hold more.",
        )
        self.waiting, self.limit = waiting, limit


class GrammarsBusyError(KaishuError):
    """A grammar that isn't compiled now, because others take long; nothing is wrong with this one."""

    def __init__(self, field: str) -> None:
        super().__init__(
            f"{field} can't be compiled now: earlier grammars are too complex and still take time.",
            hint="Send it again in a while.",
        )


class QueueTimeoutError(KaishuError):
    """A request that waited longer than the engine was told to let one wait; nothing is wrong with it."""

    def __init__(self, limit_s: float) -> None:
        super().__init__(
            f"The engine could not begin with the request within {limit_s:g} s: others were before it.",
            hint="Send it again in a while, or let requests wait for longer.",
        )
        self.limit_s = limit_s


class OutOfMemoryError(KaishuError):
    """Memory that the machine or the device doesn't have; says what for and how much."""


class NumericalError(KaishuError):
    """The model computed NaN or infinity where a probability was needed; ends this request only."""


def shown(value: object) -> str:
    """A value as a message shows it: as Python writes it, cut at 80 characters, and without failing on any value."""
    try:
        text = repr(value)
    except ValueError:  # Python refuses to write whole numbers of more than 4,300 digits
        text = "a number of thousands of digits"
    return shortened(text)


def shortened(text: str) -> str:
    """A text cut at 80 characters, for a message."""
    return text if len(text) <= 80 else text[:77] + "..."


def and_more(names: Sequence[str], *, shown: int = 8) -> str:
    """Join names for a message: the first few, then how many are left, so that an error stays readable.

    names:  the names, in the order in which to show them
    return: "a, b and 3 more"
    """
    head = ", ".join(names[:shown])
    return head if len(names) <= shown else f"{head} and {len(names) - shown:,} more"
