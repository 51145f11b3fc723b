"""The functions of a chat: the question before a call, what counts as a yes, and what Ctrl-C leaves behind."""

from __future__ import annotations

import os
import pty
import select

import pytest

from kaishu.agent import NOT_ALLOWED
from kaishu.cli.chat_session import Session
from kaishu.cli.chat_tools import STOPPED, AskingUser, ChatTools, refusing, shown_result
from kaishu.text.channels import ToolCall
from kaishu.tool_functions import ToolFunction


def double(n: int) -> int:
    return 2 * n


def interrupted() -> str:
    raise KeyboardInterrupt


FUNCTIONS = {function.__name__: ToolFunction(function) for function in (double, interrupted)}


def session_with(*calls: tuple[str, str]) -> Session:
    """A session whose last answer made these calls."""
    made = [
        {"id": str(i), "type": "function", "function": {"name": name, "arguments": arguments}}
        for i, (name, arguments) in enumerate(calls)
    ]
    tools = [function.definition for function in FUNCTIONS.values()]
    assistant = {"role": "assistant", "content": "", "tool_calls": made}
    return Session("tiny", tools=tools, turns=[{"role": "user", "content": "?"}, assistant])


def results(session: Session) -> list[str]:
    return [turn["content"] for turn in session.turns if turn["role"] == "tool"]


def test_calls_are_run_in_order_and_shown():
    session, said = session_with(("double", '{"n": 2}'), ("double", '{"n": "x"}'), ("dubble", "{}")), []
    assert ChatTools(FUNCTIONS, say=said.append).run_calls(session)
    wrong = 'error: n is "x"; allowed: a whole number.'
    unknown = "error: there is no function 'dubble'; allowed: 'double', 'interrupted'."
    assert results(session) == ["4", wrong, unknown]
    assert said == ["← 4", f"← {wrong}", f"← {unknown}"]


def test_without_functions_a_call_waits_for_the_user():
    session = session_with(("double", '{"n": 2}'))
    assert not ChatTools().run_calls(session)
    assert results(session) == []
    assert ChatTools().run_calls(Session("tiny")), "nothing waits"


def test_a_definition_without_a_function_waits_and_those_before_it_are_run():
    session = session_with(("double", '{"n": 2}'), ("other", "{}"), ("double", '{"n": 3}'))
    session.tools.append({"type": "function", "function": {"name": "other"}})
    tools = ChatTools(FUNCTIONS, say=lambda _: None)
    assert not tools.run_calls(session)
    assert results(session) == ["4"]
    session.add_tool_result("by hand")
    assert tools.run_calls(session)
    assert results(session) == ["4", "by hand", "6"]


def test_ctrl_c_answers_every_call_that_waits():
    session = session_with(("double", '{"n": 2}'), ("interrupted", "{}"), ("double", '{"n": 3}'))
    with pytest.raises(KeyboardInterrupt):
        ChatTools(FUNCTIONS, say=lambda _: None).run_calls(session)
    assert results(session) == ["4", STOPPED, STOPPED]
    assert session.pending_calls() == []


@pytest.mark.parametrize("typed, runs", [("y", 1), (" YES ", 1), ("a", 1), ("", 0), ("n", 0), ("yep", 0), ("no", 0)])
def test_only_an_explicit_yes_runs_a_call(typed, runs):
    asked = []
    approve = AskingUser(lambda question: asked.append(question) or typed)
    assert approve(ToolCall("1", "double", '{"n": 2}', True)) == bool(runs)
    assert asked == ['Run double {"n": 2}? [y]es, [a]lways double, [N]o: ']


def test_always_is_about_one_function():
    asked = []
    approve = AskingUser(lambda question: asked.append(question) or "a")
    for name in ("double", "double", "other", "double"):
        assert approve(ToolCall("1", name, "{}", True))
    assert len(asked) == 2


def test_ctrl_d_is_a_no_and_ctrl_c_is_not_caught():
    def closed(_question):
        raise EOFError

    def stopped(_question):
        raise KeyboardInterrupt

    call = ToolCall("1", "double", "{}", True)
    assert not AskingUser(closed)(call)
    with pytest.raises(KeyboardInterrupt):
        AskingUser(stopped)(call)


def test_what_was_typed_before_the_question_is_no_answer_to_it(monkeypatch):
    master, slave = pty.openpty()
    with os.fdopen(slave) as terminal:
        monkeypatch.setattr("sys.stdin", terminal)
        os.write(master, b"y\n")
        assert select.select([terminal], [], [], 10)[0]

        def read(_question):
            os.write(master, b"n\n")
            return terminal.readline()

        assert not AskingUser(read)(ToolCall("1", "double", "{}", True))
    os.close(master)


def test_a_question_shows_control_characters_and_is_short():
    asked = []
    AskingUser(lambda question: asked.append(question) or "")(ToolCall("1", "\x1b[2J", '"\x07' + "x" * 200, True))
    assert "\x1b" not in asked[0] and "\x07" not in asked[0] and len(asked[0]) < 150


def test_without_a_terminal_nothing_runs_and_both_are_told():
    session, said = session_with(("double", '{"n": 2}')), []
    assert ChatTools(FUNCTIONS, refusing(said.append), said.append).run_calls(session)
    assert results(session) == [NOT_ALLOWED]
    assert said[0].startswith("double was not run: there is no terminal to ask at. Add --yes")


def test_a_long_result_is_shown_from_its_beginning():
    assert shown_result("one\ntwo\n") == "one\n  two"
    assert shown_result("") == ""
    assert shown_result("x" * 2000) == "x" * 600 + "… (2,000 characters)"
    assert shown_result("a\n" * 20) == "a" + "\n  a" * 7 + "… (40 characters)"
