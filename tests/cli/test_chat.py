"""Whole chats over a scripted model: in a pipe and as a session."""

from __future__ import annotations

import io
import json
import signal
import sys

import pytest
from rich.console import Console

from kaishu.agent import NOT_ALLOWED
from kaishu.cli.chat import answer_once, converse
from kaishu.cli.chat_commands import Chat
from kaishu.cli.chat_session import Session
from kaishu.cli.chat_tools import STOPPED, AskingUser, ChatTools, refusing
from kaishu.cli.main import main
from kaishu.errors import ContextLengthError
from kaishu.tool_functions import ToolFunction

TOOL = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "properties": {}}}}
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Paris"}}\n</tool_call>'


def talk(llm, messages, session=None, *, fold=True):
    """Run a session over these messages; give back its end state and the screen."""
    console = Console(file=io.StringIO(), width=200)
    chat = Chat(
        session or Session("tiny"), console, context_tokens=llm.context_tokens, description="scripted", fold=fold
    )
    rest = iter(messages)
    converse(llm, chat, lambda: next(rest, None))
    return chat, console.file.getvalue()


def prompt_of(llm, number: int) -> str:
    """A prompt that the model was given."""
    return llm.tokenizer.decode(llm.executor._next_token.prompts[number])


def test_a_question_gets_its_answer_and_the_next_one_sees_both(scripted_llm):
    llm = scripted_llm("42", "7")
    chat, screen = talk(llm, ["12+30=?", "and 3+4?"])
    assert [turn["content"] for turn in chat.session.turns] == ["12+30=?", "42", "and 3+4?", "7"]
    assert screen.startswith("42\n3 tokens · ")
    assert "12+30=?<|im_end|>\n<|im_start|>assistant\n42<|im_end|>" in prompt_of(llm, 1)


def test_thinking_folds_and_can_be_shown(scripted_llm):
    chat, screen = talk(scripted_llm("<think>\ncarry the 1\n</think>\n\n42"), ["12+30=?", "/thoughts"])
    assert "▸ thought for" in screen
    assert screen.endswith("carry the 1\n\n")
    assert chat.session.turns[-1] == {"role": "assistant", "content": "42", "reasoning_content": "carry the 1"}
    _, unfolded = talk(scripted_llm("<think>\ncarry the 1\n</think>\n\n42"), ["12+30=?"], fold=False)
    assert unfolded.startswith("carry the 1\n\n42\n")


def test_nothink_reaches_the_template(scripted_llm):
    llm = scripted_llm("42", "43")
    talk(llm, ["/nothink", "12+30=?", "/think", "again"])
    assert "<think>\n\n</think>" in prompt_of(llm, 0)
    assert not prompt_of(llm, 1).endswith("</think>\n\n")


def test_settings_reach_the_sampler(scripted_llm):
    _, screen = talk(scripted_llm("one two three"), ["/set max_tokens 3", "count"])
    assert "one\n3 tokens" in screen
    assert "cut short" in screen


def test_a_wrong_command_or_setting_leaves_the_session_going(scripted_llm):
    chat, screen = talk(scripted_llm("fine"), ["/set temperature -1", "/set temprature 1", "/nope", "/load none", "hi"])
    assert "temperature is -1; allowed" in screen
    assert "Did you mean temperature?" in screen
    assert "There is no command /nope." in screen
    assert chat.session.turns[-1]["content"] == "fine"


def test_a_message_that_does_not_fit_is_taken_back_and_the_session_goes_on(scripted_llm):
    chat, screen = talk(scripted_llm("fine"), ["x" * 600, "hi"])
    assert "but the context holds 512" in screen
    assert [turn["content"] for turn in chat.session.turns] == ["hi", "fine"]


def test_two_slashes_send_a_message_that_starts_with_one(scripted_llm):
    chat, _ = talk(scripted_llm("a path", "a path"), ["//help me", "/usr/bin?"])
    assert [turn["content"] for turn in chat.session.turns[::2]] == ["/help me", "/usr/bin?"]


def test_a_tool_call_is_shown_answered_and_goes_on(scripted_llm):
    llm = scripted_llm(CALL, "Sunny.")
    chat, screen = talk(llm, ["weather in Paris?", "/tool", "/tool 24 degrees"], Session("tiny", tools=[TOOL]))
    assert '→ weather {"city": "Paris"}\n' in screen
    assert 'Waiting for a result: weather {"city": "Paris"}' in screen
    assert screen.count("Sunny.") == 1
    assert [turn["role"] for turn in chat.session.turns] == ["user", "assistant", "tool", "assistant"]
    assert "24 degrees" in prompt_of(llm, 1)


def test_control_sequences_of_the_model_do_not_reach_the_screen(scripted_llm):
    _, screen = talk(scripted_llm("\x1b]0;owned\x07 [red]x[/red]"), ["hi"])
    assert screen.startswith("␛]0;owned␇ [red]x[/red]\n")


class InterruptedAt:
    """A model during whose answer somebody presses Ctrl-C."""

    def __init__(self, llm, presses_at: dict[int, int]):
        self._llm, self._presses_at, self.closed = llm, presses_at, 0

    def __getattr__(self, name):
        return getattr(self._llm, name)

    def stream_chat(self, *arguments, **options):
        try:
            for number, delta in enumerate(self._llm.stream_chat(*arguments, **options)):
                for _ in range(self._presses_at.get(number, 0)):
                    signal.raise_signal(signal.SIGINT)
                yield delta
        finally:
            self.closed += 1
            self._presses_at = {}


def test_ctrl_c_stops_the_answer_keeps_what_was_said_and_the_session_goes_on(scripted_llm):
    llm = InterruptedAt(scripted_llm("one two three", "fine"), {3: 1})
    chat, screen = talk(llm, ["count", "hi"])
    assert screen.startswith("one \nstopped\n\nfine\n")
    assert [turn["content"] for turn in chat.session.turns] == ["count", "one ", "hi", "fine"]
    assert llm.closed == 2


def test_ctrl_c_before_anything_was_said_takes_the_question_back(scripted_llm):
    llm = InterruptedAt(scripted_llm("<think>\nlong thought", "fine"), {2: 1})
    chat, screen = talk(llm, ["count", "hi"])
    assert "taken back" in screen
    assert [turn["content"] for turn in chat.session.turns] == ["hi", "fine"]


def test_a_second_ctrl_c_breaks_in(scripted_llm):
    llm = InterruptedAt(scripted_llm("one two three", "fine"), {2: 2})
    chat, screen = talk(llm, ["count", "hi"])
    assert screen.startswith("on\nstopped\n\nfine\n")
    assert [turn["content"] for turn in chat.session.turns] == ["count", "on", "hi", "fine"]


def test_leaving(scripted_llm):
    chat, _ = talk(scripted_llm("never"), ["/exit", "hi"])
    assert chat.session.turns == []


def test_a_pipe_gets_the_answer_alone(scripted_llm, capsys):
    answer_once(scripted_llm("<think>\nhm\n</think>\n\n42"), Session("tiny"), "12+30=?\n")
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("42\n", "")


def test_a_pipe_shows_tool_calls(scripted_llm, capsys):
    answer_once(scripted_llm(CALL), Session("tiny", tools=[TOOL]), "weather?")
    assert capsys.readouterr().out == 'weather {"city": "Paris"}\n'


def test_a_question_that_does_not_fit_a_pipe_is_an_error(scripted_llm):
    with pytest.raises(ContextLengthError):
        answer_once(scripted_llm(), Session("tiny"), "x" * 600)


def test_a_saved_session_says_what_was_said(scripted_llm, tmp_path):
    talk(scripted_llm("你好！"), ["你好", f"/save {tmp_path}/chat.json"])
    assert [turn["content"] for turn in json.loads((tmp_path / "chat.json").read_text())["messages"]] == [
        "你好",
        "你好！",
    ]


def weather(city: str) -> dict[str, object]:
    """Get the weather of a city."""
    print("looking it up")
    if city == "Atlantis":
        raise LookupError("no such city")
    if city == "Never":
        raise KeyboardInterrupt
    return {"city": city, "temperature": 24}


FUNCTIONS = {"weather": ToolFunction(weather)}


def call_of(city: str) -> str:
    return CALL.replace("Paris", city)


def talk_with_functions(llm, messages, *answers: str):
    """As talk, with a function that may be called; answers to the questions whether it may. None of them: it may."""
    console = Console(file=io.StringIO(), width=200)
    session = Session("tiny", tools=[FUNCTIONS["weather"].definition])
    chat = Chat(session, console, context_tokens=llm.context_tokens, description="scripted")
    typed, rest, asked = iter(answers), iter(messages), []
    approve = AskingUser(lambda question: asked.append(question) or next(typed)) if answers else None
    chat.tools = ChatTools(FUNCTIONS, approve, chat.say)
    converse(llm, chat, lambda: next(rest, None))
    return chat, console.file.getvalue(), asked


def roles(chat) -> list[str]:
    return [turn["role"] for turn in chat.session.turns]


def test_functions_are_run_until_the_model_answers_without_a_call(scripted_llm):
    llm = scripted_llm(CALL, call_of("Atlantis"), "Sunny.", "Bye.")
    chat, screen, asked = talk_with_functions(llm, ["weather?", "thanks"], "y", "y")
    assert asked == [
        f'Run weather {{"city": "{city}"}}? [y]es, [a]lways weather, [N]o: ' for city in ("Paris", "Atlantis")
    ]
    shown = [
        '→ weather {"city": "Paris"}',
        '← {"city": "Paris", "temperature": 24}',
        "← error: LookupError: no such city",
    ]
    places = [screen.index(line) for line in [*shown, "Sunny.", "Bye."]]
    assert places == sorted(places)
    assert roles(chat) == ["user", "assistant", "tool", "assistant", "tool", "assistant", "user", "assistant"]
    assert '<|im_start|>tool\n{"city": "Paris", "temperature": 24}<|im_end|>' in prompt_of(llm, 1)
    assert "error: LookupError: no such city" in prompt_of(llm, 2)


def test_two_calls_of_one_answer_are_each_asked_about(scripted_llm):
    llm = scripted_llm(f"{CALL}\n{call_of('Rome')}", "Only Rome.")
    chat, _, asked = talk_with_functions(llm, ["weather?"], "n", "y")
    assert len(asked) == 2
    results = [turn["content"] for turn in chat.session.turns if turn["role"] == "tool"]
    assert results == [NOT_ALLOWED, '{"city": "Rome", "temperature": 24}']


def test_ctrl_c_during_a_function_leaves_the_chat_usable(scripted_llm):
    llm = scripted_llm(f"{call_of('Never')}\n{CALL}", "Fine.")
    chat, screen, _ = talk_with_functions(llm, ["weather?", "never mind"])
    assert screen.index("stopped\n") < screen.index("Fine.")
    assert roles(chat) == ["user", "assistant", "tool", "tool", "user", "assistant"]
    assert [turn["content"] for turn in chat.session.turns[2:4]] == [STOPPED, STOPPED]


def test_ctrl_c_before_the_answer_to_a_result_keeps_what_was_run(scripted_llm):
    class InterruptedAtSecond(InterruptedAt):
        def stream_chat(self, *arguments, **options):
            self._presses_at = {0: 1} if self.closed == 1 else {}
            return super().stream_chat(*arguments, **options)

    llm = InterruptedAtSecond(scripted_llm(CALL, "<think>\nhm", "Fine."), {})
    chat, screen, _ = talk_with_functions(llm, ["weather?", "hi"])
    assert roles(chat) == ["user", "assistant", "tool", "user", "assistant"]
    assert "taken back" not in screen


def test_a_result_that_does_not_fit_takes_the_question_back_with_its_calls(scripted_llm, monkeypatch):
    monkeypatch.setattr(FUNCTIONS["weather"], "_function", lambda city: "x" * 2000)
    chat, screen, _ = talk_with_functions(scripted_llm(CALL, "Fine."), ["weather?", "hi"])
    assert "but the context holds 512" in screen
    assert [turn["content"] for turn in chat.session.turns] == ["hi", "Fine."]


def test_a_model_that_never_stops_calling_is_stopped_and_may_go_on(scripted_llm, monkeypatch):
    monkeypatch.setattr("kaishu.agent.DEFAULT_LIMIT", 3)
    llm = scripted_llm(*[call_of(city) for city in "ABC"], "Enough.")
    chat, screen, _ = talk_with_functions(llm, ["weather?", "go on"])
    assert screen.index('"city": "C"') < screen.index("still calling functions") < screen.index("Enough.")
    assert roles(chat) == ["user", *["assistant", "tool"] * 3, "user", "assistant"]


def test_a_pipe_gets_the_answer_alone_and_the_calls_on_stderr(scripted_llm, capsys):
    session = Session("tiny", tools=[FUNCTIONS["weather"].definition])
    note = lambda text: print(text, file=sys.stderr)  # noqa: E731
    answer_once(scripted_llm(CALL, "Sunny."), session, "weather?", ChatTools(FUNCTIONS, None, note))
    captured = capsys.readouterr()
    assert captured.out == "Sunny.\n"
    assert captured.err == '→ weather {"city": "Paris"}\nlooking it up\n← {"city": "Paris", "temperature": 24}\n'


def test_a_pipe_without_yes_refuses_calls_and_says_so(scripted_llm, capsys):
    llm = scripted_llm(CALL, "I may not look.")
    session = Session("tiny", tools=[FUNCTIONS["weather"].definition])
    said: list[str] = []
    answer_once(llm, session, "weather?", ChatTools(FUNCTIONS, refusing(said.append), said.append))
    assert capsys.readouterr().out == "I may not look.\n"
    assert said[0] == "weather was not run: there is no terminal to ask at. Add --yes to run calls without being asked."
    assert NOT_ALLOWED in prompt_of(llm, 1)


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["--yes"], "--yes is about running functions, but there are none."),
        (["--tools", "tools.json", "--yes"], "--yes is about running functions, but there are none."),
        (["--tools", "broken.py"], "broken.py, line 1: NameError: name 'x' is not defined"),
    ],
)
def test_tools_that_cannot_be_used_are_an_error_before_the_model_is_loaded(
    arguments, message, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tools.json").write_text("[]")
    (tmp_path / "broken.py").write_text("x\n")
    monkeypatch.setattr("kaishu.cli.options.ModelOptions.load", lambda *_: pytest.fail("loaded"))
    with pytest.raises(SystemExit) as ended:
        main(["chat", "tiny", *arguments])
    assert ended.value.code == 2 and message in capsys.readouterr().err


def test_the_command_runs_a_file_of_functions(scripted_llm, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "path", [*sys.path])
    file = tmp_path / "weather.py"
    file.write_text("def weather(city: str) -> str:\n    return 'rain in ' + city\n")
    monkeypatch.setattr("kaishu.cli.options.ModelOptions.load", lambda *_: scripted_llm(CALL, "Rain."))
    for arguments, result in ((["--yes"], "← rain in Paris"), ([], f"← {NOT_ALLOWED}")):
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"weather?\n")))
        with pytest.raises(SystemExit) as ended:
            main(["chat", "tiny", "--tools", str(file), *arguments])
        captured = capsys.readouterr()
        assert (ended.value.code, captured.out) == (0, "Rain.\n")
        assert result in captured.err
