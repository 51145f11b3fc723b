"""The slash commands."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from kaishu.cli.chat_commands import COMMANDS, Chat, Next, help_text, is_command, run_command
from kaishu.cli.chat_session import Session
from kaishu.errors import KaishuError
from kaishu.llm import LLM
from kaishu.results import ChatCompletion, Timing, Usage


@pytest.fixture
def chat() -> Chat:
    console = Console(file=io.StringIO(), width=200)
    return Chat(Session("tiny"), console, context_tokens=512, description="scripted")


def said(chat: Chat, message: str) -> str:
    """What a command prints."""
    chat.console.file.truncate(0)
    chat.console.file.seek(0)
    assert run_command(chat, message) is Next.READ
    return chat.console.file.getvalue()


@pytest.mark.parametrize(
    "message", ["/help", "/set temperature 1", "/SYSTEM x", "/system\nlong text", "/nonsense", "/?"]
)
def test_a_slash_and_a_word_is_a_command(message):
    assert is_command(message)


@pytest.mark.parametrize("message", ["/usr/bin/python is gone", "//help", "/ hi", "a /help", "/2 is half", "/", "hi"])
def test_other_text_with_slashes_is_not(message):
    assert not is_command(message)


def test_help_names_every_command_and_key(chat):
    shown = said(chat, "/help")
    assert all(name in shown for name in COMMANDS)
    assert "Alt-Enter" in shown
    assert shown.strip() == help_text().strip()


@pytest.mark.parametrize(
    "message, near", [("/hlep", "Did you mean /help"), ("/xyzzy", "/help lists"), ("/?", "/help lists")]
)
def test_an_unknown_command_is_an_error_with_a_way_on(chat, message, near):
    with pytest.raises(KaishuError, match=near):
        run_command(chat, message)


def test_thinking_is_switched(chat):
    said(chat, "/think")
    assert chat.session.thinking is True
    said(chat, "/nothink")
    assert chat.session.thinking is False


def test_the_system_message_is_shown_set_and_removed(chat):
    assert said(chat, "/system") == "No system message.\n"
    assert said(chat, "/system Be [bold]brief.") == "System message: Be [bold]brief.\n"
    said(chat, "/system\nTwo\nlines")
    assert chat.session.system == "Two\nlines"
    assert "Two\nlines" in said(chat, "/system")
    said(chat, "/system none")
    assert chat.session.system is None


def test_set_shows_sets_and_unsets(chat):
    assert "temperature" in said(chat, "/set")
    assert said(chat, "/set temperature 0.7") == "Set: temperature 0.7.\n"
    assert said(chat, "/set stop two words") == "Set: temperature 0.7, stop 'two words'.\n"
    said(chat, "/set temperature default")
    said(chat, "/set stop default")
    assert chat.session.sampling == {}
    with pytest.raises(KaishuError, match="needs a value"):
        run_command(chat, "/set temperature")
    with pytest.raises(KaishuError, match="Did you mean temperature"):
        run_command(chat, "/set temprature 1")


def test_fold_is_switched(chat):
    said(chat, "/fold off")
    assert not chat.fold
    said(chat, "/fold")
    assert chat.fold
    with pytest.raises(KaishuError, match="on or off"):
        run_command(chat, "/fold maybe")


def test_the_last_thought_is_shown(chat):
    assert "without a thought" in said(chat, "/thoughts")
    chat.session.ask("q")
    chat.session.keep(ChatCompletion("a", "carry\n\x1b[2J1\n", (), "stop", (), Usage(3, 4), Timing(0.1, 0.5, 3)))
    assert said(chat, "/thoughts") == "carry\n␛[2J1\n"


def test_stats_add_up(chat):
    for _ in range(2):
        chat.session.ask("q")
        chat.session.keep(ChatCompletion("a", "", (), "stop", (), Usage(100, 6), Timing(0.1, 0.5, 5)))
    shown = said(chat, "/stats")
    assert "2 answers, 12 tokens, 10.0 tok/s" in shown
    assert "106 of 512 tokens" in shown


def test_stats_say_what_the_engine_has_saved(chat, loaded_llm):
    llm = LLM.of(loaded_llm.loaded)
    chat.statistics = llm.statistics
    assert "cache: 0 of 0 prompt tokens found in it, 0 of " in said(chat, "/stats")
    assert "speculation: 0 of 0 guessed tokens right" in said(chat, "/stats")
    for _ in range(2):
        llm.generate("a b c d " * 20, max_tokens=20, temperature=0, ignore_eos=True)
    found, shown = llm.statistics(), said(chat, "/stats")
    assert found.prompt_tokens == 320 and 100 < found.cached_tokens < 160 and found.guessed > 0
    assert (
        f"cache: {found.cached_tokens} of 320 prompt tokens found in it, {found.cached_pages} of {found.pages}" in shown
    )
    assert f"speculation: {found.accepted} of {found.guessed} guessed tokens right" in shown


def test_save_and_load_bring_a_conversation_back(chat, tmp_path):
    chat.session.ask("remember me")
    chat.session.set_field("seed", "5")
    assert "Saved 1 message to" in said(chat, f"/save {tmp_path}/chat.json")
    said(chat, "/reset")
    assert chat.session.turns == []
    chat.session.set_field("seed", None)
    assert "Loaded 1 message from" in said(chat, f"/load {tmp_path}/chat.json")
    assert chat.session.turns == [{"role": "user", "content": "remember me"}]
    assert chat.session.sampling == {"seed": 5}


@pytest.mark.parametrize(
    "name", ["x" * 300, "x" * 250, "~nobody-of-this-name/x", "a\0b", "\ud83d", ".", "/", "..", "~"]
)
@pytest.mark.parametrize("command", ["/save", "/load"])
def test_a_name_that_no_file_can_have_is_an_error(chat, tmp_path, monkeypatch, command, name):
    monkeypatch.chdir(tmp_path)
    session = chat.session
    with pytest.raises(KaishuError, match=r"can't be (read|written)|is nobody's home|exists and is not a saved chat"):
        run_command(chat, f"{command} {name}")
    assert chat.session is session and list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("field", ["temperature", "top_k", "seed", "max_tokens", "logprobs", "logit_bias"])
@pytest.mark.parametrize("digits", [400, 5000])
def test_a_setting_of_many_digits_is_set_or_refused(chat, field, digits):
    try:
        run_command(chat, f"/set {field} {'1' * digits}")
    except KaishuError:
        assert chat.session.sampling == {}


def test_a_file_that_cannot_be_loaded_leaves_the_session(chat, tmp_path):
    chat.session.ask("still here")
    (tmp_path / "bad.json").write_text("{}")
    for message in (f"/load {tmp_path}/bad.json", f"/load {tmp_path}/none", "/load", "/save"):
        with pytest.raises(KaishuError):
            run_command(chat, message)
    assert chat.session.turns == [{"role": "user", "content": "still here"}]


def test_exit_leaves(chat):
    assert run_command(chat, "/exit") is Next.LEAVE
