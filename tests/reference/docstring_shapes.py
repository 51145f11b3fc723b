"""Docstring lines such as `x: [T, D] float, meaning`, read and held against the tensors of a real run.

Owns the grammar of these lines and the comparison with values. Knows nothing of which functions are run:
test_docstring_shapes.py does that.

A line is a name, a shape and a dtype. Shapes are letters, numbers and products, quotients or sums of them; `...` is any
leading dimensions. Letters that the config fixes (D, H, K, G, d, E, V) must have its values; any other letter (T, S, F,
n, …) must mean the same throughout one call. Dtypes are torch's or numpy's names, `float` for the model's own dtype,
`dtype of <argument>`, `any`, or `Linear` for a layer whose weight has this shape. A return line may describe several
tensors; a list that is returned is checked item by item.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch

LINE = re.compile(r"^\s*(\w+):\s+((?:\[[^\]]*\]\s).*)$", re.MULTILINE)
TENSOR = re.compile(r"\[([^\]]*)\]\s+(dtype of \w+|\w+)")

Letters = dict[str, Any]


@dataclass(frozen=True)
class Promise:
    """One tensor as a docstring describes it."""

    shape: str
    dtype: str


def promises_of(docstring: str | None) -> dict[str, list[Promise]]:
    """The shape lines of a docstring: from argument, field or "return" to the tensors described there."""
    lines = LINE.findall(docstring or "")
    return {name: [Promise(*found) for found in TENSOR.findall(text)] for name, text in lines}


class DocstringLieError(AssertionError):
    """A docstring that says something else than what came."""


@dataclass(frozen=True)
class Checker:
    """Holds values against promises.

    fixed:       letters that the config fixes
    model_dtype: what `float` means
    """

    fixed: Mapping[str, int]
    model_dtype: torch.dtype
    checked: set[str] = dataclasses.field(default_factory=set)  # docstrings that met a value

    def check_call(self, function: Callable[..., Any], arguments: Mapping[str, Any], call: Callable[[], Any]) -> Any:
        """Check arguments, run the call, check what it returns; one meaning of each letter throughout."""
        where = function.__qualname__
        promises, letters = promises_of(function.__doc__), Letters(self.fixed)
        for name, value in arguments.items():
            if name in promises:
                self.check_tensor(f"{where}, {name}", value, promises[name][0], letters, arguments)
        for name, value in arguments.items():
            self.check_fields(f"{where}, {name}", value, letters)
        result = call()
        if "return" in promises:
            for item in result if isinstance(result, list) else [result]:
                own = Letters(letters)  # S differs from sequence to sequence
                tensors = item if isinstance(item, tuple) else (item,)
                if len(tensors) != len(promises["return"]):
                    raise DocstringLieError(f"{where} returns {len(tensors)} tensors")
                for tensor, promise in zip(tensors, promises["return"], strict=True):
                    self.check_tensor(f"{where}, return", tensor, promise, own, arguments)
        else:
            self.check_fields(f"{where}, return", result, letters)
        self.checked.add(where)
        return result

    def check_fields(self, where: str, value: Any, letters: Letters) -> None:
        """Check the documented fields of a dataclass of ours, then of the dataclasses within it."""
        if not dataclasses.is_dataclass(value) or not type(value).__module__.startswith("kaishu."):
            return
        fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        promises = promises_of(type(value).__doc__)
        for name, promise in sorted(promises.items(), key=_has_arithmetic):  # B must be known before B + 1
            if fields[name] is not None:
                self.check_tensor(f"{where}, {type(value).__name__}.{name}", fields[name], promise[0], letters, {})
        self.checked.add(type(value).__qualname__)
        for name, field in fields.items():
            for inner in field if isinstance(field, tuple) else [field]:
                if name not in promises:
                    self.check_fields(f"{where}.{name}", inner, Letters(self.fixed))

    def check_tensor(
        self, where: str, value: Any, promise: Promise, letters: Letters, arguments: Mapping[str, Any]
    ) -> None:
        """Check one tensor's shape and dtype."""
        if promise.dtype == "Linear":
            value, dtype = value.weight, self.model_dtype
        elif promise.dtype == "float":
            dtype = self.model_dtype
        elif promise.dtype == "any":
            dtype = value.dtype
        elif promise.dtype.startswith("dtype of "):
            source = promise.dtype.removeprefix("dtype of ")
            if source not in arguments:
                raise DocstringLieError(f"{where}: there is no argument {source}")
            dtype = arguments[source].dtype
        else:
            dtype = promise.dtype
        if str(value.dtype).removeprefix("torch.") != str(dtype).removeprefix("torch."):
            raise DocstringLieError(f"{where}: the docstring says {promise.dtype}, found {value.dtype}")
        if not fits(tuple(value.shape), promise.shape, letters):
            raise DocstringLieError(
                f"{where}: the docstring says [{promise.shape}], found {list(value.shape)}, {letters}"
            )


def fits(shape: tuple[int, ...], promised: str, letters: Letters) -> bool:
    """Whether a shape is what was promised; letters met for the first time are added."""
    dimensions = [part.strip() for part in promised.split(",")]
    if dimensions[0] == "...":
        dimensions = dimensions[1:]
        split = len(shape) - len(dimensions)
        if split < 0 or letters.setdefault("...", shape[:split]) != shape[:split]:
            return False
        shape = shape[split:]
    if len(shape) != len(dimensions):
        return False
    for size, dimension in zip(shape, dimensions, strict=True):
        if dimension.isascii() and dimension.isidentifier():
            if letters.setdefault(dimension, size) != size:
                return False
        elif size != _value(dimension, letters):
            return False
    return True


def _has_arithmetic(line: tuple[str, list[Promise]]) -> bool:
    return bool(re.search(r"[·/+]", line[1][0].shape))


def _value(expression: str, letters: Letters) -> int:
    """The value of a product, quotient or sum of known letters, such as H·d, d/2 or B + 1."""
    assert re.fullmatch(r"[\w·/+ ]+", expression), f"not a dimension: {expression}"
    known = {name: value for name, value in letters.items() if name.isidentifier()}
    return int(eval(expression.replace("·", "*").replace("/", "//"), {"__builtins__": {}}, known))


def documented(modules: list[ModuleType]) -> Iterator[tuple[Any, str, Callable[..., Any]]]:
    """Functions and methods with shape lines: their owner (module or class), their name, themselves."""
    for module in modules:
        for name, thing in vars(module).items():
            if getattr(thing, "__module__", None) != module.__name__:
                continue
            if inspect.isfunction(thing) and promises_of(thing.__doc__):
                yield module, name, thing
            elif inspect.isclass(thing):
                for inner, method in vars(thing).items():
                    if inspect.isfunction(method) and promises_of(method.__doc__):
                        yield thing, inner, method


def watch(modules: list[ModuleType], checker: Checker, monkeypatch: Any) -> None:
    """Put a check around every documented function, wherever it was imported to."""
    for owner, name, function in documented(modules):
        checked = _with_check(function, checker)
        if inspect.isclass(owner):
            monkeypatch.setattr(owner, name, checked)
        else:
            for module in modules:
                if vars(module).get(name) is function:
                    monkeypatch.setattr(module, name, checked)


def _with_check(function: Callable[..., Any], checker: Checker) -> Callable[..., Any]:
    signature = inspect.signature(function)

    @functools.wraps(function)
    def checked(*args: Any, **kwargs: Any) -> Any:
        bound = signature.bind(*args, **kwargs)
        return checker.check_call(function, bound.arguments, lambda: function(*args, **kwargs))

    return checked


def is_tensor(annotation: Any) -> bool:
    """Whether an annotation, as text, is a tensor or an array."""
    return bool(re.search(r"\b(Tensor|NDArray|IntArray|ndarray)\b", str(annotation))) and "Callable" not in str(
        annotation
    )


def undescribed(function: Callable[..., Any]) -> list[str]:
    """Tensor arguments and returns of a function that its docstring gives no shape for."""
    annotations = dict(inspect.get_annotations(function))
    described = promises_of(function.__doc__)
    return [name for name, annotation in annotations.items() if is_tensor(annotation) and name not in described]
