"""Python functions as tools: what a model is told of one, and how a call by a model is carried out.

Owns the definition (name, description and parameters, from the signature, its annotations and the docstring) and the
call (arguments read, checked and converted; the result or the failure as text that the model can read).
Knows nothing of models or conversations: agent.py and `kaishu chat` run the calls of an answer. What annotations mean
is in tool_annotations.py and tool_values.py, docstrings are read in tool_docstrings.py.

A call never ends the program: whatever the function raises becomes text. `async def` functions are run to their end.
"""

from __future__ import annotations

import asyncio
import dataclasses
import inspect
import json
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from enum import Enum
from functools import partial
from typing import Any

from kaishu import json_fields
from kaishu.errors import InvalidMessagesError, KaishuError, shown
from kaishu.json_fields import parse_json
from kaishu.text.messages import clean_json
from kaishu.tool_annotations import MISSING, AnnotationReader, Property
from kaishu.tool_docstrings import read_docstring
from kaishu.tool_values import Fields, Json

Function = Callable[..., Any]
Parameter = inspect.Parameter


class ToolFunction:
    """A function that a model can call.

    name:       what the model calls it: the function's own name
    definition: OpenAI's form of it: {"type": "function", "function": {"name", "description", "parameters"}}
    raises:     InvalidMessagesError naming the function, and the parameter that can't be a tool's
    """

    def __init__(self, function: Function) -> None:
        self.name = _name(function)
        self._function = function
        signature = _signature(function, self.name)
        described = read_docstring(inspect.getdoc(function), list(signature.parameters))
        reader = AnnotationReader(self.name)
        hints = reader.hints(inspect.unwrap(function), "")
        properties = [_property(self.name, parameter, hints) for parameter in signature.parameters.values()]
        self._positional = [p for p in signature.parameters.values() if p.kind is Parameter.POSITIONAL_ONLY]
        # A call with unknown names is refused here and by the grammar; saying so would cost tokens in each prompt.
        self._parameters = Fields(self.name, function, is_closed=False)
        self._parameters.properties = reader.read_properties(properties, described.parameters, "")
        definitions: Json = {}
        schema = self._parameters.schema(definitions)
        told: Json = {"name": self.name}
        if described.summary:
            told["description"] = described.summary
        told["parameters"] = {**schema, **({"$defs": definitions} if definitions else {})}
        self.definition: Json = {"type": "function", "function": told}

    def call(self, arguments: str) -> str:
        """Carry out a call.

        arguments: a JSON object, as the model wrote it
        return:    the result: text as it is, else as JSON, else as Python shows it; or `error: …`, for arguments that
                   aren't valid and for whatever the function raises but KeyboardInterrupt
        """
        try:
            prepared = self.prepare(arguments)
        except KaishuError as error:
            return as_error(on_one_line(error))
        return prepared()

    def prepare(self, arguments: str) -> Callable[[], str]:
        """Read the arguments of a call, without making it.

        return: makes the call, as `call` does
        raises: KaishuError for arguments that aren't valid
        """
        try:
            given = self._parameters.values(read_arguments(arguments), "")
        except RecursionError:
            raise KaishuError("The arguments are nested too deeply.") from None
        positional = [given.pop(p.name, p.default) for p in self._positional]
        return partial(self._run, positional, given)

    def _run(self, positional: list[Any], given: dict[str, Any]) -> str:
        try:
            result = self._function(*positional, **given)
            if inspect.isawaitable(result):
                result = _awaited(result)
            return encodable(as_text(result))
        except (Exception, SystemExit, asyncio.CancelledError) as error:
            return as_error(_told(error))


def tool_definition(function: Function) -> Json:
    """OpenAI's definition of a Python function, from its annotations and docstring.

    function: with an annotation for each parameter, and without *args and **kwargs. The docstring's first paragraph
              is the description; `name: text` lines, Google's `Args:` or reST's `:param name:` describe parameters, and
              so does Annotated[int, "text"], which comes first. A parameter with a default isn't required.
    return:   {"type": "function", "function": {"name", "description", "parameters"}}
    raises:   InvalidMessagesError naming the function and the parameter
    """
    return ToolFunction(function).definition


def call_tool(function: Function, arguments: str) -> str:
    """Carry out a model's call of a function, as ToolFunction.call says.

    raises: InvalidMessagesError for a function that can't be a tool
    """
    return ToolFunction(function).call(arguments)


def as_definitions(tools: object) -> list[Any]:
    """Tools as the chat API takes them.

    tools:  Python functions and OpenAI's definitions, mixed; None: none
    return: one definition for each, in order; definitions that were given are passed on as they are
    raises: InvalidMessagesError
    """
    return [tool.definition if isinstance(tool, ToolFunction) else tool for tool in read_tools(tools)]


def read_tools(tools: object) -> list[ToolFunction | Mapping[str, Any]]:
    """Tools, with each function made into a ToolFunction. Definitions are looked at by text/messages.py.

    raises: InvalidMessagesError
    """
    if tools is None:
        return []
    if callable(tools) or isinstance(tools, str | bytes | Mapping) or not isinstance(tools, Iterable):
        hint = "Put it in brackets: [it]." if callable(tools) or isinstance(tools, Mapping) else None
        raise InvalidMessagesError(f"tools is {shown(tools)}; allowed: a list of tools.", field="tools", hint=hint)
    return [_tool(tool, f"tools[{i}]") for i, tool in enumerate(tools)]


def _tool(tool: object, path: str) -> ToolFunction | Mapping[str, Any]:
    if isinstance(tool, ToolFunction | Mapping):
        return tool
    if callable(tool):
        return ToolFunction(tool)
    allowed = "a function, or an object {'type': 'function', 'function': {...}}"
    raise InvalidMessagesError(f"{path} is {shown(tool)}; allowed: {allowed}.", field=path)


def read_arguments(arguments: str) -> Json:
    """The arguments of a call.

    raises: KaishuError for what isn't a JSON object, says a name twice, or has what no prompt could repeat
    """
    parsed = parse_json(arguments.encode("utf-8", "surrogatepass"), "The text of the arguments", KaishuError)
    if not isinstance(parsed, dict):
        raise KaishuError(f"The arguments are {json_fields.shown(parsed)}; allowed: a JSON object.")
    return dict(clean_json(parsed, "arguments"))


def as_text(result: Any) -> str:
    """A function's result as the model reads it."""
    if isinstance(result, str):
        return str.__str__(result)  # a member of a str Enum becomes its value
    try:
        return json.dumps(result, ensure_ascii=False, allow_nan=False, default=_plain)
    except (TypeError, ValueError, RecursionError):
        return repr(result)


def encodable(text: str) -> str:
    """A text without lone surrogates, which no tokenizer takes: they are written out."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def as_error(text: str) -> str:
    """How a failure is told to the model."""
    return encodable(f"error: {text}")


def on_one_line(error: KaishuError) -> str:
    """A refusal and its hint for the model."""
    return " ".join(str(error).split())


def _plain(value: Any) -> Any:
    """What json.dumps asks for: a value in terms of simpler ones."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {item.name: getattr(value, item.name) for item in dataclasses.fields(value)}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, set | frozenset):
        return list(value)
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError


def _told(error: BaseException) -> str:
    try:
        text = str(error)
    except Exception:  # the tool's own exception type may fail at anything
        text = ""
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _awaited(awaitable: Any) -> Any:
    """Wait for a coroutine, in an event loop of its own; beside one that runs already, in a thread of its own."""

    async def whole() -> Any:
        return await awaitable

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(whole())
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(lambda: asyncio.run(whole())).result()


def _name(function: Function) -> str:
    name = getattr(function, "__name__", None)
    if isinstance(function, type) or not isinstance(name, str) or not name.isidentifier():
        raise InvalidMessagesError(
            f"{shown(function)} can't be a tool; allowed: a function with a name, written with `def`.",
            field="tools",
            hint="Wrap it in one whose parameters are annotated.",
        )
    return name


def _signature(function: Function, name: str) -> inspect.Signature:
    inner = inspect.unwrap(function)
    if inspect.isgeneratorfunction(inner) or inspect.isasyncgenfunction(inner):
        raise InvalidMessagesError(
            f"{name} is a generator, and a tool has one result.", field=name, hint="Return a list instead of yielding."
        )
    try:
        return inspect.signature(function)
    except (TypeError, ValueError) as error:
        raise InvalidMessagesError(
            f"{name} can't be a tool: Python doesn't know its parameters.",
            field=name,
            hint="Wrap it in a function whose parameters are annotated.",
        ) from error


def _property(name: str, parameter: inspect.Parameter, hints: Mapping[str, Any]) -> Property:
    if parameter.kind in (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD):
        stars = "*" if parameter.kind is Parameter.VAR_POSITIONAL else "**"
        raise InvalidMessagesError(
            f"{name}: {stars}{parameter.name} can't be a tool's parameter, since a model must know each by name.",
            field=f"{name}.{parameter.name}",
            hint=f"Write `{parameter.name}: list[str]`, or the names themselves.",
        )
    if parameter.name not in hints:
        raise InvalidMessagesError(
            f"{name}: the parameter {parameter.name} has no annotation, so a model can't know what it may be.",
            field=f"{name}.{parameter.name}",
            hint=f"Write `{parameter.name}: str`, or what else it is.",
        )
    default = MISSING if parameter.default is Parameter.empty else parameter.default
    return Property(parameter.name, hints[parameter.name], default)
