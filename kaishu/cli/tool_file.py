"""A Python file whose functions are tools: the one that `kaishu chat --tools FILE.py` names.

Owns how such a file is run and which of its functions count. The file is code, and runs with the user's rights; what
fails in it is an error that names the line. What a function must be like is in kaishu/tool_functions.py.
"""

from __future__ import annotations

import importlib.util
import inspect
import sys
import traceback
from pathlib import Path
from types import ModuleType

from kaishu.errors import InvalidRequestError, KaishuError
from kaishu.tool_functions import ToolFunction

MODULE_NAME = "kaishu_tool_file"  # so that a file json.py doesn't take the place of Python's


def is_python(file: Path) -> bool:
    """Whether a file of tools is code rather than JSON."""
    return file.suffix.lower() == ".py"


def load_functions(file: Path) -> dict[str, ToolFunction]:
    """Run a Python file and take its public functions as tools.

    Those count that are written in this file and whose names don't begin with an underscore, in their order there.
    Modules beside the file can be imported from it.

    return: name → function
    raises: KaishuError when the file can't be read, fails, has no such function, or has one that can't be a tool
    """
    module = _run(file)
    found: dict[str, ToolFunction] = {}
    for name, value in vars(module).items():
        is_function = callable(value) and inspect.isfunction(inspect.unwrap(value))
        if name.startswith("_") or not is_function or value.__module__ != MODULE_NAME:
            continue
        try:
            tool = ToolFunction(value)
        except InvalidRequestError as error:
            hint = f"{error.hint}\n  " if error.hint else ""
            raise KaishuError(
                f"{file}: {error.message}", hint=f"{hint}A function that is no tool has a name that begins with _."
            ) from error
        if name == tool.name:  # another name for a function is not another tool
            found[name] = tool
    if not found:
        raise KaishuError(
            f"{file} has no functions that a model could call.",
            hint="Write one in it: a `def` with annotations and a docstring, and a name without a leading underscore.",
        )
    return found


def _run(file: Path) -> ModuleType:
    try:
        source = file.read_bytes()
    except OSError as error:
        raise KaishuError(f"{file} can't be read: {error.strerror or error}.") from None
    except ValueError as error:  # a path that no file can have
        raise KaishuError(f"{str(file)!r} can't be read: {error}.") from None
    specification = importlib.util.spec_from_file_location(MODULE_NAME, file)
    assert specification is not None
    module = importlib.util.module_from_spec(specification)
    # Dataclasses and annotations look their module up by name; imports from functions come later. After the other
    # folders, so that nothing beside the file takes a library's place.
    sys.modules[MODULE_NAME] = module
    sys.path.append(str(file.resolve().parent))
    try:
        exec(compile(source, str(file), "exec", dont_inherit=True), module.__dict__)
    except (Exception, SystemExit) as error:
        message = str(error.msg if isinstance(error, SyntaxError) else error)
        what = f"{type(error).__name__}: {message}" if message else type(error).__name__
        raise KaishuError(
            f"{file}{_line(file, error)}: {what}", hint="The file is run before the chat begins."
        ) from error
    return module


def _line(file: Path, error: BaseException) -> str:
    """Where in the file it failed: ", line 3"; "" where that isn't known."""
    if isinstance(error, SyntaxError) and error.filename == str(file):
        return f", line {error.lineno}" if error.lineno else ""
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(file)]
    return f", line {lines[-1]}" if lines else ""
