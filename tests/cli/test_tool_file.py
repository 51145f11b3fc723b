"""Python files of tools: which functions count, and an error that names the line for whatever is wrong."""

from __future__ import annotations

import sys
import textwrap

import pytest

from kaishu.cli.tool_file import is_python, load_functions
from kaishu.errors import KaishuError


@pytest.fixture
def load(tmp_path, monkeypatch):
    """`load(source)`: the functions of a file with this text."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    for name in ("kaishu_tool_file", "beside_it", "colorsys"):
        monkeypatch.delitem(sys.modules, name, raising=False)

    def load(source: str, name: str = "tools.py"):
        (tmp_path / name).write_text(textwrap.dedent(source))
        return load_functions(tmp_path / name)

    return load


def test_the_public_functions_written_in_the_file_are_tools_in_their_order(load):
    functions = load("""
        from __future__ import annotations
        import functools
        from dataclasses import dataclass
        from json import dumps

        @dataclass
        class Place:
            name: str

        def _helper(): ...

        def zebra(place: Place) -> str:
            "Stripes."
            return dumps(place.name)

        @functools.cache
        def ant(n: int) -> int:
            return n

        async def bee() -> str:
            return "bzz"

        same = zebra
        constant = 3
    """)
    assert list(functions) == ["zebra", "ant", "bee"]
    assert functions["zebra"].definition["function"]["description"] == "Stripes."
    assert functions["zebra"].call('{"place": {"name": "你"}}') == '"\\u4f60"'
    assert functions["bee"].call("{}") == "bzz"


def test_a_file_may_use_modules_beside_it_also_later_and_none_takes_a_librarys_place(load, tmp_path):
    (tmp_path / "beside_it.py").write_text("VALUE = 3")
    (tmp_path / "colorsys.py").write_text("raise SystemExit")
    functions = load("""
        import colorsys
        def now() -> int:
            from beside_it import VALUE
            return VALUE
    """)
    assert functions["now"].call("{}") == "3"


@pytest.mark.parametrize(
    "source, message",
    [
        ("x = 1\n\ndef f(:\n", ", line 3: SyntaxError: invalid syntax"),
        (
            "x = 1\nimport nothing_of_that_name\n",
            ", line 2: ModuleNotFoundError: No module named 'nothing_of_that_name'",
        ),
        ("def g():\n    1 / 0\ng()\n", ", line 2: ZeroDivisionError: division by zero"),
        ("import json\njson.loads('{')\n", ", line 2: JSONDecodeError: "),
        ("raise SystemExit\n", ", line 1: SystemExit"),
        ("x = 1\0", "ource code string cannot contain null bytes"),
        ("def f(x): ...\n", ": f: the parameter x has no annotation, so a model can't know what it may be."),
        ("def f(*x: str): ...\n", "A function that is no tool has a name that begins with _."),
        ("from json import dumps\ndef _f(): ...\n", " has no functions that a model could call."),
        ("f = lambda: 3\n", "<lambda>"),
    ],
)
def test_what_is_wrong_with_a_file_is_said(load, tmp_path, source, message):
    with pytest.raises(KaishuError) as caught:
        load(source)
    assert str(tmp_path / "tools.py") in str(caught.value) and message in str(caught.value)


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(KaishuError, match=r"none\.py can't be read: No such file"):
        load_functions(tmp_path / "none.py")
    with pytest.raises(KaishuError, match="can't be read: embedded null"):
        load_functions(tmp_path / "a\0.py")


def test_only_the_ending_says_what_a_file_is(tmp_path):
    assert is_python(tmp_path / "tools.py") and is_python(tmp_path / "tools.PY")
    assert not is_python(tmp_path / "tools.json") and not is_python(tmp_path / "tools")
