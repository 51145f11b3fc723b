"""Functions as tools: the definition, the refusals, and calls with whatever a model writes and a function does."""

from __future__ import annotations

import asyncio
import enum
import functools
import json
import math
from dataclasses import dataclass
from typing import Annotated, Literal

import pytest

from kaishu.engine.grammar import GrammarCompiler
from kaishu.engine.grammar_tools import tool_call_format
from kaishu.errors import InvalidMessagesError
from kaishu.text.messages import clean_messages, clean_tools
from kaishu.tool_functions import ToolFunction, as_definitions, call_tool, read_tools, tool_definition


class Unit(enum.Enum):
    C = "celsius"
    F = "fahrenheit"


@dataclass
class Place:
    name: str
    country: str = "France"


def get_weather(place: Place, days: Annotated[int, "how far ahead"] = 1, unit: Unit = Unit.C) -> str:
    """Get the weather
    of a place.

    More for people.

    place: where
    days:  not this
    """
    return f"{place.name}, {place.country}: {days} {unit.name}"


def add(a: float, b: float) -> float:
    return a + b


def test_a_definition_is_openais():
    assert tool_definition(add) == {
        "type": "function",
        "function": {
            "name": "add",
            "parameters": {
                "type": "object",
                "properties": {"a": {"type": "number"}, "b": {"type": "number"}},
                "required": ["a", "b"],
            },
        },
    }
    function = tool_definition(get_weather)["function"]
    assert function["description"] == "Get the weather of a place."
    assert function["parameters"]["required"] == ["place"]
    assert function["parameters"]["properties"]["days"] == {
        "type": "integer",
        "description": "how far ahead",
        "default": 1,
    }
    assert function["parameters"]["properties"]["place"]["description"] == "where"
    assert clean_tools([tool_definition(get_weather)]) == [tool_definition(get_weather)]


def test_the_grammar_engine_forces_calls_of_it(loaded_llm_tokenizer):
    tokenizer, vocab_size = loaded_llm_tokenizer
    wanted = tool_call_format([tool_definition(get_weather)], name="get_weather", is_required=True, parallel=False)
    compiler = GrammarCompiler(tokenizer, num_rows=vocab_size, end_token_ids=tokenizer.eos_token_ids)
    assert compiler.compile(wanted)
    arguments = '{"place": {"name": "Lyon"}, "unit": "fahrenheit"}'
    assert call_tool(get_weather, arguments) == "Lyon, France: 1 F"


@pytest.fixture(scope="module")
def loaded_llm_tokenizer():
    from kaishu.checkpoint import open_checkpoint
    from kaishu.checkpoint.hub import resolve
    from kaishu.text_files import tokenizer_of

    checkpoint = open_checkpoint(resolve("tiny"))
    return tokenizer_of(checkpoint), checkpoint.config.vocab_size


def unannotated(city, days: int = 1): ...
def starred(city: str, *rest: str): ...
def double_starred(city: str, **rest: str): ...
def undefined(city: Nowhere): ...  # noqa: F821
def yields(city: str):
    yield city


@pytest.mark.parametrize(
    "function, message",
    [
        (unannotated, "unannotated: the parameter city has no annotation"),
        (starred, r"starred: \*rest can't be a tool's parameter"),
        (double_starred, r"double_starred: \*\*rest can't be a tool's parameter"),
        (undefined, "undefined has an annotation that can't be evaluated: NameError"),
        (yields, "yields is a generator"),
        (lambda x: x, "can't be a tool; allowed: a function with a name"),
        (functools.partial(add, 1), "can't be a tool; allowed: a function with a name"),
        (Place, "can't be a tool; allowed: a function with a name"),
        (max, "max can't be a tool: Python doesn't know its parameters"),
    ],
)
def test_a_function_that_cannot_be_a_tool_is_refused_by_name(function, message):
    with pytest.raises(InvalidMessagesError, match=message) as caught:
        tool_definition(function)
    assert caught.value.hint or "evaluated" in message


def test_methods_decorated_and_positional_functions_are_tools():
    class Shop:
        def price(self, item: str) -> str:
            """The price."""
            return f"{item}: 3"

    @functools.lru_cache
    def cached(n: int) -> int:
        """Cached."""
        return n + 1

    def positional(a: int, b: int = 2, /, c: int = 3) -> list[int]:
        return [a, b, c]

    assert list(tool_definition(Shop().price)["function"]["parameters"]["properties"]) == ["item"]
    assert call_tool(Shop().price, '{"item": "pen"}') == "pen: 3"
    assert tool_definition(cached)["function"]["description"] == "Cached."
    assert call_tool(cached, '{"n": 1}') == "2"
    assert call_tool(positional, '{"a": 1, "c": 5}') == "[1, 2, 5]"


@pytest.mark.parametrize(
    "arguments, found",
    [
        ("{", "error: The text of the arguments is not valid JSON: "),
        ("", "error: The text of the arguments is not valid JSON: "),
        ("\ud800", "error: The text of the arguments is not valid JSON: "),
        ("[1]", "error: The arguments are [1]; allowed: a JSON object."),
        ('{"a": 1}', "error: b is missing; allowed: a number."),
        ('{"a": 1, "b": "2"}', 'error: b is "2"; allowed: a number.'),
        ('{"a": 1, "b": 2, "c": 3}', "error: c doesn't exist; allowed: a, b."),
        ('{"a": 1, "a": 2, "b": 3}', "error: The text of the arguments is not valid JSON: the key 'a' occurs twice."),
        ('{"a": 1, "b": NaN}', "error: arguments.b is nan; allowed: a finite number"),
        ('{"a": 1, "b": "\\ud800"}', "error: arguments.b has a lone surrogate"),
        ('{"a": 1, "b": ' + "9" * 5000 + "}", "error: The text of the arguments is not valid JSON: "),
        ('{"a": ' + "[" * 100_000, "error: The text of the arguments "),
    ],
    ids=lambda value: value[:30].encode("ascii", "replace").decode(),
)
def test_arguments_that_are_wrong_are_told_to_the_model(arguments, found):
    told = call_tool(add, arguments)
    assert told.startswith(found) and "\n" not in told
    clean_messages([{"role": "tool", "content": told}])


@pytest.mark.parametrize(
    "result, text",
    [
        ("你好\n", "你好\n"),
        (None, "null"),
        ({"温度": 21, "wind": [1.5, True]}, '{"温度": 21, "wind": [1.5, true]}'),
        ((Place("Lyon"), Unit.F), '[{"name": "Lyon", "country": "France"}, "fahrenheit"]'),
        ({3}, "[3]"),
        (math.nan, "nan"),
        (1 + 2j, "(1+2j)"),
        ({(1, 2): 3}, "{(1, 2): 3}"),
        ("cut \ud83d", "cut \\ud83d"),
        ({"name": "\udc80"}, '{"name": "\\udc80"}'),
    ],
)
def test_results_become_text(result, text):
    def function():
        return result

    told = call_tool(function, "{}")
    assert told == text
    clean_messages([{"role": "tool", "content": told}])


def test_a_result_that_holds_itself_and_one_that_cannot_be_shown():
    class Silent:
        def __repr__(self):
            raise RuntimeError("no")

    loop: list[object] = []
    loop.append(loop)
    assert call_tool(returning(loop), "{}") == "[[...]]"
    assert call_tool(returning(Silent()), "{}") == "error: RuntimeError: no"


def returning(result):
    def function():
        return result

    return function


class Mute(Exception):
    def __str__(self):
        raise RuntimeError


@pytest.mark.parametrize(
    "raised, text",
    [
        (ValueError("no such city"), "error: ValueError: no such city"),
        (ValueError(), "error: ValueError"),
        (SystemExit(3), "error: SystemExit: 3"),
        (asyncio.CancelledError(), "error: CancelledError"),
        (Mute(), "error: Mute"),
        (InvalidMessagesError("mine.", field="x"), "error: InvalidMessagesError: mine."),
        (OSError(2, "gone", "\udc80"), "error: FileNotFoundError: [Errno 2] gone: '\\udc80'"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_whatever_a_function_raises_is_told_to_the_model(raised, text):
    def function():
        raise raised

    assert call_tool(function, "{}") == text


def test_too_deep_a_recursion_is_an_error_like_any_other():
    def function() -> int:
        return function()

    assert call_tool(function, "{}").startswith("error: RecursionError")


def test_only_ctrl_c_gets_through():
    def function():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        call_tool(function, "{}")


async def slow(n: int) -> int:
    await asyncio.sleep(0)
    if n < 0:
        raise ValueError("negative")
    return n + 1


def test_async_functions_are_run_to_their_end_also_beside_a_running_loop():
    async def within() -> str:
        return call_tool(slow, '{"n": 1}')

    assert call_tool(slow, '{"n": 1}') == "2"
    assert call_tool(slow, '{"n": -1}') == "error: ValueError: negative"
    assert asyncio.run(within()) == "2"


def test_functions_and_definitions_may_be_mixed():
    definition = {"type": "function", "function": {"name": "other"}}
    mixed = as_definitions([add, definition, ToolFunction(slow)])
    assert [tool["function"]["name"] for tool in mixed] == ["add", "other", "slow"]
    assert mixed[1] is definition
    assert as_definitions(None) == as_definitions([]) == []


@pytest.mark.parametrize("tools", [add, {"type": "function"}, "add", 3])
def test_tools_are_a_list(tools):
    with pytest.raises(InvalidMessagesError, match=r"tools is .*; allowed: a list of tools"):
        read_tools(tools)


def test_a_tool_that_is_none_is_refused_by_its_place():
    with pytest.raises(InvalidMessagesError, match=r"tools\[1\] is 'add'; allowed: a function, or an object"):
        as_definitions([add, "add"])


def test_a_literal_arrives_as_it_is_and_the_default_stays_the_functions_own():
    def pick(kind: Literal["a", 1], rest: list[str] = None) -> str:  # noqa: RUF013
        return json.dumps([kind, rest])

    assert call_tool(pick, '{"kind": 1}') == "[1, null]"
