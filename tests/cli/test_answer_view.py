"""What an answer looks like in a pipe and in a terminal."""

from __future__ import annotations

import io
import re

import pytest
from rich.console import Console

from kaishu.cli.answer_view import PlainAnswer, TerminalAnswer, numbers_line
from kaishu.results import ChatCompletion, Timing, Usage
from kaishu.text.channels import ContentDelta, ThinkingDelta, ToolCallArguments, ToolCallEnd, ToolCallStart

COMPLETION = ChatCompletion("", "", (), "stop", (), Usage(7, 42), Timing(0.183, 1.0, 41))
CALL = [ToolCallStart(0, "c1", "weather"), ToolCallArguments(0, '{"city":'), ToolCallArguments(0, ' "Paris"}')]
HOSTILE = "\x1b]0;owned\x07[bold]x[/bold] [/]\r"
SAFE = "␛]0;owned␇[bold]x[/bold] [/]␍"


def plain(*deltas) -> str:
    out = io.StringIO()
    view = PlainAnswer(out)
    for delta in deltas:
        view.show(delta)
    view.finish(COMPLETION)
    return out.getvalue()


def terminal(*deltas, fold: bool = False, is_terminal: bool = False, completion=COMPLETION) -> str:
    out = io.StringIO()
    console = Console(file=out, force_terminal=is_terminal, width=40, color_system="standard" if is_terminal else None)
    view = TerminalAnswer(console, fold=fold, refresh_seconds=0)
    view.wait()
    for delta in deltas:
        view.show(delta)
    view.finish(completion)
    return out.getvalue()


def test_a_pipe_gets_the_answer_alone():
    assert plain(ThinkingDelta("hm"), ContentDelta("4"), ContentDelta("2")) == "42\n"
    assert plain(ContentDelta("42\n")) == "42\n"
    assert plain(ThinkingDelta("hm")) == ""


def test_a_pipe_gets_each_tool_call_on_its_own_line():
    end = ToolCallEnd(0, True)
    assert plain(ContentDelta("Looking"), *CALL, end, *CALL, end) == (
        'Looking\nweather {"city": "Paris"}\nweather {"city": "Paris"}\n'
    )
    assert plain(*CALL[:2], ToolCallEnd(0, False)) == 'weather {"city": (broken off: not a whole call)\n'


def test_a_terminal_shows_thinking_then_the_answer_then_the_numbers():
    assert terminal(ThinkingDelta("carry "), ThinkingDelta("1"), ContentDelta("42")) == (
        "carry 1\n\n42\n42 tokens · 41.0 tok/s · first token 0.18 s\n"
    )


def test_folded_thinking_leaves_one_line():
    shown = terminal(ThinkingDelta("carry 1"), ContentDelta("42"), fold=True)
    assert re.fullmatch(r"▸ thought for \d+\.\d s · /thoughts shows it\n42\n42 tokens · .*\n", shown)


def test_folded_thinking_shows_its_last_lines_while_it_runs_and_erases_them():
    deltas = [ThinkingDelta(f"line {i}\n") for i in range(30)]
    shown = terminal(*deltas, ContentDelta("42"), fold=True, is_terminal=True)
    assert "line 29" in shown
    assert "\x1b[2K" in shown  # erased
    last = shown[shown.rindex("thinking…") : shown.index("▸")]
    assert "line 24" in last
    assert "line 20" not in last


def test_thinking_is_dim_and_the_answer_is_not():
    shown = terminal(ThinkingDelta("hm"), ContentDelta("42"), is_terminal=True)
    assert "\x1b[2mhm\x1b[0m" in shown
    assert "\n42\n" in shown


def test_tool_calls_are_readable():
    shown = terminal(ContentDelta("Looking."), *CALL, ToolCallEnd(0, True), *CALL, ToolCallEnd(1, False))
    assert shown.startswith(
        'Looking.\n→ weather {"city": "Paris"}\n→ weather {"city": "Paris"} (broken off: not a whole call)\n'
    )


def test_a_stopped_answer_says_so():
    assert terminal(ContentDelta("half"), completion=None) == "half\nstopped\n"


@pytest.mark.parametrize("fold", [True, False])
@pytest.mark.parametrize("make", [ThinkingDelta, ContentDelta, lambda text: ToolCallStart(0, "c", text)])
def test_neither_control_sequences_nor_markup_of_the_model_have_an_effect(make, fold):
    shown = terminal(make(HOSTILE), fold=fold, is_terminal=True)
    assert SAFE in re.sub(r"\x1b\[[\d;]*m", "", shown)
    assert "\x1b]" not in shown
    assert "\x07" not in shown


def test_a_pipe_gets_no_control_sequences_either():
    assert plain(ContentDelta(HOSTILE)) == SAFE + "\n"


@pytest.mark.parametrize(
    "usage, timing, reason, line",
    [
        (Usage(7, 1), Timing(0.1, 0.0, 0), "stop", "1 token · first token 0.10 s"),
        (Usage(7, 1200), Timing(0.1, 2.0, 1199), "stop", "1,200 tokens · 599.5 tok/s · first token 0.10 s"),
        (
            Usage(7, 2),
            Timing(0.1, 1.0, 1),
            "length",
            "2 tokens · 1.0 tok/s · first token 0.10 s · cut short: max_tokens or the context is used up",
        ),
    ],
)
def test_the_numbers(usage, timing, reason, line):
    assert numbers_line(ChatCompletion("", "", (), reason, (), usage, timing)) == line


def test_calls_that_are_run_go_elsewhere_than_the_answer():
    out, calls = io.StringIO(), io.StringIO()
    view = PlainAnswer(out, calls=calls)
    deltas = [
        ContentDelta("Let me look."),
        ToolCallStart(0, "1", "f\x1b"),
        ToolCallArguments(0, '{"a": 1}'),
        ToolCallEnd(0, True),
    ]
    for delta in [*deltas, ToolCallStart(1, "2", "g"), ToolCallArguments(1, "{"), ToolCallEnd(1, False)]:
        view.show(delta)
    view.finish(None)
    assert out.getvalue() == "Let me look.\n"
    assert calls.getvalue() == '→ f␛ {"a": 1}\n→ g { (broken off: not a whole call)\n'
