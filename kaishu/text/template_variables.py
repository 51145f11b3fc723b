"""Which variables a chat template takes from outside.

Owns the question, not the answer's use: a variable is taken from outside where the template may read it before it has
set it. Jinja's own answer (find_undeclared_variables) also counts what is set in a branch and read only there.
Knows nothing of messages. Used by template.py, so that an argument that no template reads is an error.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from jinja2 import nodes

from kaishu.text.provenance import Marks
from kaishu.text.sandbox import Sandbox


def variables_read(source: str) -> set[str]:
    """The variables that a template may read without having set them, but for those that the sandbox gives."""
    sandbox = Sandbox(Marks(()), None, datetime.now)
    read: set[str] = set()
    _walk(sandbox.parse(source), set(sandbox.globals), read)
    return read


def _walk(node: nodes.Node, known: set[str], read: set[str]) -> None:
    """Go through a node in the order in which it runs.

    known: what is set by then; grows
    read:  what was read and wasn't known; grows
    """
    match node:
        case nodes.Name(ctx="load", name=name):
            if name not in known:
                read.add(name)
        case nodes.Name(name=name):
            known.add(name)
        case nodes.Assign():
            _walk(node.node, known, read)
            _walk(node.target, known, read)
        case nodes.AssignBlock():
            _walk_all([*node.body, *([node.filter] if node.filter else [])], set(known), read)
            _walk(node.target, known, read)
        case nodes.If():
            _walk_if(node, known, read)
        case nodes.For():
            _walk(node.iter, known, read)
            inside = known | {"loop"}
            _walk_all([node.target, *([node.test] if node.test else []), *node.body], inside, read)
            _walk_all(node.else_, set(known), read)
        case nodes.Macro() | nodes.CallBlock():
            inside = known | {"varargs", "kwargs", "caller"}
            if isinstance(node, nodes.Macro):
                known.add(node.name)
                inside.add(node.name)
            else:
                _walk(node.call, known, read)
            _walk_all([*node.defaults, *node.args, *node.body], inside, read)
        case nodes.With():
            _walk_all(node.values, known, read)
            _walk_all([*node.targets, *node.body], set(known), read)
        case nodes.Scope() | nodes.Block() | nodes.FilterBlock() | nodes.ScopedEvalContextModifier():
            _walk_all(node.iter_child_nodes(), set(known), read)
        case _:
            _walk_all(node.iter_child_nodes(), known, read)


def _walk_all(several: Iterable[nodes.Node], known: set[str], read: set[str]) -> None:
    for node in several:
        _walk(node, known, read)


def _walk_if(node: nodes.If, known: set[str], read: set[str]) -> None:
    """After the branches, what each of them sets is set."""
    branches = []
    for branch in (node, *node.elif_):
        _walk(branch.test, known, read)
        branches.append(set(known))
        _walk_all(branch.body, branches[-1], read)
    branches.append(set(known))
    _walk_all(node.else_, branches[-1], read)
    known |= set.intersection(*branches)
