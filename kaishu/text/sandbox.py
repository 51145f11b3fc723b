"""Jinja for templates that we don't trust.

Owns what a chat template may do: read its data, loop, cut and join text. Refuses attributes of Python's internals,
changes to its data, other templates, and anything that takes too long or grows too large. A template comes with the
model's files, so whoever published those wrote a program that would otherwise run here.
Knows nothing of messages or tokens. Used by template.py, the one place that renders.

An environment lives for one rendering: the budget and the marks of that rendering are its fields, so two threads can
render at once. The compiled template is shared.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator
from datetime import datetime
from types import BuiltinMethodType, CodeType, MethodType
from typing import Any

from jinja2 import nodes
from jinja2.compiler import CodeGenerator, Frame
from jinja2.exceptions import SecurityError, TemplateRuntimeError
from jinja2.ext import Extension, loopcontrols
from jinja2.filters import do_round, make_attrgetter
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment, safe_range
from jinja2.utils import Namespace

from kaishu.text.budget import Budget, TooMuchError
from kaishu.text.provenance import MarkedText, Marks, as_marked, plain_of

FILTERS = (
    "abs capitalize count d default dictsort first float groupby indent int items join last length list lower "
    "map max min reject rejectattr replace reverse round select selectattr sort string sum title trim unique upper "
    "wordcount"
)
WRITING_FILTERS = "capitalize e escape float format indent int lower replace safe string title trim upper wordcount"
COMPARING_FILTERS = "dictsort groupby max min sort unique"
COMPARING_TESTS = "== eq equalto != ne < lt lessthan <= le > gt greaterthan >= ge in"
TEXT_METHODS = (
    "capitalize casefold count endswith find format format_map index isalnum isalpha isascii isdecimal isdigit "
    "islower isnumeric isspace istitle isupper join lower lstrip partition removeprefix removesuffix replace rfind "
    "rindex rpartition rsplit rstrip split splitlines startswith strip swapcase title upper"
)
SLOW_TEXT_METHODS = "lstrip rfind rindex rpartition rsplit rstrip strip"  # that take len(text) * len(argument) steps
MAX_PRECISION = 20


class Sandbox(ImmutableSandboxedEnvironment):
    """The environment of one rendering."""

    intercepted_binops = frozenset({"+", "-", "*", "**", "//", "%"})

    def __init__(self, marks: Marks, budget: Budget | None, now: Callable[[], datetime]) -> None:
        """budget: what this rendering may spend; None for an environment that only compiles"""
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _Generation], cache_size=0)
        self.code_generator_class = _Compiler
        self._marks = marks
        self._budget = budget
        self.concat = self._join  # type: ignore[method-assign]
        self.finalize = self._written
        own: dict[str, Callable[..., Any]] = {
            "join": self._join_filter,
            "replace": self._replace_filter,
            "indent": self._indent_filter,
            "trim": self._trim_filter,
            "round": self._round_filter,
            "sum": self._sum_filter,
            "format": lambda form, *args, **kwargs: self._checked_format(str(form), (args, kwargs)) % (kwargs or args),
        }
        own |= {"tojson": self._tojson, "safe": str, "e": _escape, "escape": _escape}
        filters: dict[str, Callable[..., Any]] = {name: self.filters[name] for name in FILTERS.split()} | own
        prepare = dict.fromkeys(WRITING_FILTERS.split(), self._measured)
        prepare |= dict.fromkeys(COMPARING_FILTERS.split(), self._measured_items)
        self.filters = {name: self._bounded(f, prepare.get(name)) for name, f in filters.items()}
        tests: dict[str, Any] = self.tests
        comparing = COMPARING_TESTS.split()
        self.tests = {name: self._bounded(t, self.compared if name in comparing else None) for name, t in tests.items()}
        self.globals = {
            "range": safe_range,
            "dict": _make_dict,
            "namespace": _Namespace,
            "cycler": self.globals["cycler"],
            "joiner": self.globals["joiner"],
            "raise_exception": self._raise_exception,
            "strftime_now": lambda form: now().strftime(self._checked_format(form, ())),
        }

    @property
    def budget(self) -> Budget:
        if self._budget is None:  # while compiling: Jinja then leaves the expression to the rendering
            raise nodes.Impossible
        return self._budget

    # What templates may reach.

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        if isinstance(obj, str) and attr not in TEXT_METHODS.split():
            return False
        return super().is_safe_attribute(obj, attr, value)

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        formatted = super().wrap_str_format(value)
        if formatted is None:
            return None

        def bounded(*args: Any, **kwargs: Any) -> str:
            self._checked_format(value.__self__, (args, kwargs))
            return formatted(*args, **kwargs)

        return bounded

    # What templates may compute.

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805
        __self.budget.spend()
        if isinstance(__obj, MethodType | BuiltinMethodType):
            args = tuple(map(__self._measured, args))
            if isinstance(__obj.__self__, str):
                __self._check_text_call(__obj.__name__, __obj.__self__, args)
                if any(isinstance(argument, MarkedText) for argument in args):  # '<b>'.startswith(content)
                    __obj = getattr(as_marked(__obj.__self__), __obj.__name__)
        return __self._seen(super().call(__context, __obj, *args, **kwargs))

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        return self._compute(operator, left, right)

    def _compute(self, operator: str, left: Any, right: Any) -> Any:
        self.budget.spend()
        self.budget.number(left)
        self.budget.number(right)
        if operator == "%" and isinstance(left, str):
            self._checked_format(left, right)
        elif operator == "**":
            if not (
                isinstance(left, int | float)
                and isinstance(right, int | float)
                and abs(left) < 2**64
                and abs(right) < 64
            ):
                raise TooMuchError("it raises a number to a large power")
        elif hasattr(left, "__len__") or hasattr(right, "__len__"):
            lengths = [len(side) if hasattr(side, "__len__") else side for side in (left, right)]
            self.budget.hold(int(lengths[0] * lengths[1] if operator == "*" else lengths[0] + lengths[1]))
        return self._seen(self.binop_table[operator](left, right))

    def _check_text_call(self, method: str, text: str, arguments: tuple[Any, ...]) -> None:
        if method == "replace" and len(arguments) >= 2:
            self.budget.hold(len(text) + text.count(str(arguments[0])) * len(str(arguments[1])))
        elif method == "join" and arguments:
            items = arguments[0]
            self.budget.hold(self.budget.measure(items) + len(text) * (len(items) if hasattr(items, "__len__") else 0))
        elif method in SLOW_TEXT_METHODS.split() and arguments and isinstance(arguments[0], str):
            self.budget.search(text, arguments[0])

    def _checked_format(self, form: str, arguments: Any) -> str:
        """The format string, unless it asks for a great width (`'%999999999d'`, `'{:{width}}'`, `'%*d'`) or length."""
        if re.search(r"\d{5,}|\{[^}]*\{|%[^a-zA-Z%]*\*", form):
            raise TooMuchError("it formats with a width of its own choice")
        widths = sum(map(int, re.findall(r"\d+", form)))
        self.budget.hold(len(form) + widths + (form.count("%") + form.count("{")) * self.budget.measure(arguments))
        return form

    def _bounded(self, function: Callable[..., Any], prepare: Callable[[Any], Any] | None = None) -> Callable[..., Any]:
        """A filter or test that counts as a step. Keeps Jinja's note on it: which context it wants first."""

        @functools.wraps(function)
        def bounded(*args: Any, **kwargs: Any) -> Any:
            self.budget.spend()
            if prepare is not None:
                args = tuple(map(prepare, args))
            return self._seen(function(*args, **kwargs))

        return bounded

    def _seen(self, value: Any) -> Any:
        """What Python's own methods made of marked text is marked text still."""
        self.budget.number(value)
        if type(value) is not str:
            return value
        self.budget.hold(len(value))
        return self._marks.seen(value)

    def _measured(self, value: Any) -> Any:
        """An argument that is written out or compared: lists within lists can take for ever."""
        if isinstance(value, Collection) and not isinstance(value, str | range):
            self.budget.measure(value)
        return value

    def _measured_items(self, value: Any) -> Any:
        """As `_measured`, where the items of a generator are compared with one another too."""
        return self._measured(list(self.counted(value)) if isinstance(value, Iterator) else value)

    def counted(self, items: Iterable[Any]) -> Iterator[Any]:
        """What a loop runs over, one step for each item; _Compiler puts it there."""
        for item in items:
            self.budget.spend()
            yield item

    def compared(self, value: Any) -> Any:
        """A side of a comparison, by its original characters; _Compiler puts it there."""
        return plain_of(self._measured(value))

    def searched(self, value: Any) -> Any:
        """The right side of `in`; a generator stays one."""
        return map(self.compared, self.counted(value)) if isinstance(value, Iterator) else self.compared(value)

    def _raise_exception(self, message: object) -> None:
        raise TemplateRuntimeError(str(self._written(message)))

    # What templates write.

    def _join(self, parts: Iterable[str]) -> str:
        pieces = list(parts)
        self.budget.hold(sum(map(len, pieces)))
        return self._marks.seen("".join(pieces))

    def _written(self, value: Any) -> Any:
        if not isinstance(value, str):
            self.budget.measure(value)
        return value

    def _tojson(
        self,
        value: Any,
        ensure_ascii: bool = False,
        indent: int | str | None = None,
        separators: tuple[str, str] | None = None,
        sort_keys: bool = False,
    ) -> str:
        """JSON as transformers writes it for templates: keys in order, no HTML escapes, by default no \\u escapes."""
        self.budget.measure(value)
        layout = (*(separators or ()), indent if isinstance(indent, str) else " " * min(indent or 0, 17))
        if max(map(len, layout)) > 16:
            raise TooMuchError("it lays out JSON with more than 16 characters at a time")
        # A mark must not be escaped, so escaping comes after, by hand.
        text = json.dumps(value, ensure_ascii=False, indent=indent, separators=separators, sort_keys=sort_keys)
        if ensure_ascii:
            text = re.sub("[^\x00-\x7f\ud800-\udfff]", lambda match: json.dumps(match[0])[1:-1], text)
        return self._marks.seen(text)

    def _join_filter(self, value: Iterable[Any], d: str = "", attribute: str | int | None = None) -> str:
        items = list(value) if attribute is None else [self.getitem(item, attribute) for item in value]
        self.budget.hold(self.budget.measure(items) + len(d) * len(items))
        return str(d).join(map(str, items))

    def _replace_filter(self, text: Any, old: str, new: str, count: int = -1) -> str:
        self._check_text_call("replace", str(text), (old, new))
        return str(text).replace(str(old), str(new), count)

    def _trim_filter(self, text: Any, chars: str | None = None) -> str:
        self._check_text_call("strip", str(text), (chars,))
        return as_marked(str(text)).strip(chars)

    def _round_filter(self, value: Any, precision: int = 0, method: str = "common") -> Any:
        if not isinstance(precision, int) or abs(precision) > MAX_PRECISION:
            raise TooMuchError(f"it rounds to more than {MAX_PRECISION} digits")
        return do_round(value, precision, method)  # type: ignore[arg-type]

    def _sum_filter(self, items: Iterable[Any], attribute: str | int | None = None, start: Any = 0) -> Any:
        attribute_of = make_attrgetter(self, attribute)
        total = start
        for item in items:
            total = self._compute("+", total, attribute_of(item))
        return total

    def _indent_filter(self, text: str, width: int | str = 4, first: bool = False, blank: bool = False) -> str:
        space = " " * min(width, 1000) if isinstance(width, int) else width
        lines = str(text).split("\n")
        self.budget.hold(len(text) + len(lines) * len(space))
        indented = [space + line if (line or blank) and (i or first) else line for i, line in enumerate(lines)]
        return "\n".join(indented)


class _Compiler(CodeGenerator):
    """Jinja's compiler, where loops count their steps, comparisons look first, and `~` joins by our rule."""

    def visit_For(self, node: nodes.For, frame: Frame) -> None:  # noqa: N802
        node.iter = nodes.Call(nodes.EnvironmentAttribute("counted"), [node.iter], [], None, None)
        super().visit_For(node, frame)

    def visit_Compare(self, node: nodes.Compare, frame: Frame) -> None:  # noqa: N802
        sides: list[Any] = [node, *node.ops]
        for side in sides:
            look = "searched" if getattr(side, "op", "") in ("in", "notin") else "compared"
            side.expr = nodes.Call(nodes.EnvironmentAttribute(look), [side.expr], [], None, None)
        super().visit_Compare(node, frame)

    def visit_Concat(self, node: nodes.Concat, frame: Frame) -> None:  # noqa: N802
        self.write("environment.concat(str(environment.finalize(part)) for part in (")
        for part in node.nodes:
            self.visit(part, frame)
            self.write(", ")
        self.write("))")


class _Generation(Extension):
    """The tag `{% generation %}`, by which training code finds the assistant's words. For us it only groups."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body).set_lineno(line)


class _Namespace(Namespace):
    """Jinja's namespace, without names that begin with an underscore."""

    def __init__(*args: Any, **kwargs: Any) -> None:
        self, *rest = args
        for name in dict(*rest, **kwargs):
            _check_name(name)
        Namespace.__init__(self, *rest, **kwargs)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_name(name)
        super().__setitem__(name, value)


def compile_template(source: str, marks: Marks) -> CodeType:
    """Compile a template for any number of renderings.

    raises: Jinja's own errors, RecursionError, MemoryError, SyntaxError
    """
    environment = Sandbox(marks, None, datetime.now)
    forbidden = (nodes.Include, nodes.Import, nodes.FromImport, nodes.Extends)
    tree = environment.parse(source)
    for node in tree.find_all(forbidden):
        raise SecurityError(f"it asks for another template in line {node.lineno}; a chat template stands alone")
    numbers = Budget(0, 1.0)
    for constant in tree.find_all(nodes.Const):
        numbers.number(constant.value)
    return environment.compile(source)


def _make_dict(*args: Any, **kwargs: Any) -> dict[Any, Any]:
    return dict(*args, **kwargs)


def _check_name(name: object) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise SecurityError(f"the name {name!r} in a namespace begins with an underscore")


def _escape(value: Any) -> str:
    text = str(value)
    for character, escaped in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;"), ("'", "&#39;"), ('"', "&#34;")):
        text = text.replace(character, escaped)
    return text
