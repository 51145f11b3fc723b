"""What is computed of a chat: the next turn finds it, in the same process or from a file, and nothing depends on it."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from kaishu.byte_sizes import size
from kaishu.cli.chat import converse
from kaishu.cli.chat_commands import Chat
from kaishu.cli.chat_pages import ChatPages
from kaishu.cli.chat_session import Session
from kaishu.engine.core import EngineSettings
from kaishu.errors import SavedPagesError
from kaishu.llm import LLM
from kaishu.text.template import ChatTemplate
from kaishu.text.tokenizer import Tokenizer
from tests.qwen3_files import find_qwen3_files
from tests.scripted import Script, ScriptedExecutor

PAGE = 16
QWEN3_ROWS = 151_936
TOOL = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "properties": {}}}}
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Paris"}}\n</tool_call>'
THOUGHT = "<think>\nThe user counts. I go on where the user has stopped, one number after another.\n</think>\n\n"
ONE = "Please count from one to twelve, in words, and say nothing else."
TWO = "And now backwards, please."


def talk(llm: LLM, *messages: str, session: Session | None = None) -> tuple[Chat, str]:
    """return: the chat when it is over, and the screen"""
    console = Console(file=io.StringIO(), width=300)
    chat = Chat(session or Session("tiny"), console, llm.context_tokens, "scripted", pages=ChatPages(llm))
    rest = iter(messages)
    converse(llm, chat, lambda: next(rest, None))
    return chat, console.file.getvalue()


class Counted:
    """A model that says these texts, whose prompts and computed tokens are counted."""

    def __init__(self, loaded, *texts: str, num_pages: int = 256):
        answers = [loaded.tokenizer.encode(text, allow_control=True) for text in texts]
        end = loaded.tokenizer.control_tokens["<|im_end|>"]
        self.script = Script(answers, end)
        self.executor = ScriptedExecutor(self.script, vocab_size=loaded.config.vocab_size, num_pages=num_pages)
        self.llm = LLM.of(replace(loaded, executor=self.executor), EngineSettings(speculation=False))

    def known(self, turn: int) -> list[int]:
        """All tokens that were computed for an answer: its prompt and the answer without its last token."""
        return [*self.script.prompts[turn], *self.script._given[turn][:-1]]

    @property
    def num_tokens(self) -> int:
        return sum(len(step.token_ids) for step in self.executor.steps)


def common_pages(one, another) -> int:
    """The tokens in full pages that both begin with."""
    pairs = enumerate(zip(one, another, strict=False))
    same = next((place for place, (left, right) in pairs if left != right), min(len(one), len(another)))
    return same // PAGE * PAGE


def cached(chat: Chat) -> int:
    return chat.session.last_answer.usage.cached_tokens


@pytest.fixture(scope="session")
def loaded(loaded_llm):
    return loaded_llm.loaded


@pytest.fixture(scope="session")
def qwen3(loaded):
    """Qwen3's own tokenizer and template, before a model that has a row for each of its tokens."""
    folder = find_qwen3_files()
    tokenizer = Tokenizer.from_folder(folder)
    template = ChatTemplate.from_folder(folder, control_tokens=tokenizer.control_tokens)
    config = replace(loaded.config, vocab_size=QWEN3_ROWS, eos_token_ids=tuple(tokenizer.eos_token_ids))
    checkpoint = replace(loaded.checkpoint, config=config)
    return replace(loaded, tokenizer=tokenizer, template=template, checkpoint=checkpoint, context_tokens=2048)


@pytest.mark.parametrize("thinking", [None, True, False])
@pytest.mark.parametrize("thought", ["", THOUGHT])
def test_without_saving_the_second_turn_computes_only_what_the_template_has_changed(qwen3, thinking, thought):
    answer = "one two three four five six seven eight nine ten eleven twelve " * 6
    model = Counted(qwen3, thought + answer, answer, "bye")
    chat, _ = talk(model.llm, ONE, session=Session("q", thinking=thinking))
    assert cached(chat) == 0
    for turn, question in enumerate((TWO, "Thank you."), start=1):
        before = model.num_tokens
        chat, _ = talk(model.llm, question, session=chat.session)
        prompt = model.script.prompts[turn]
        common = common_pages(model.known(turn - 1), prompt)
        assert cached(chat) == common > 0
        assert model.num_tokens - before == len(prompt) - common + len(model.script._given[turn]) - 1
    is_rewritten = bool(thought) or thinking is False  # the template drops the thought, or its empty tags
    asked = model.llm.template.render([{"role": "user", "content": ONE}], thinking=thinking)
    length = len(qwen3.tokenizer.encode_prompt(asked))
    first = common_pages(model.known(0), model.script.prompts[1])
    assert (first <= length) if is_rewritten else (first > length + 30)


def test_a_thought_before_a_call_stays_and_so_do_its_pages(qwen3):
    model = Counted(qwen3, THOUGHT + CALL, "Sunny.")
    chat, _ = talk(model.llm, "weather?", "/tool 24 degrees", session=Session("q", tools=[TOOL]))
    length = len(model.script.prompts[0])
    assert cached(chat) == common_pages(model.known(0), model.script.prompts[1]) > length + 20


@pytest.mark.parametrize(
    "text, tools", [("one two three four " * 20, None), (THOUGHT + "one two", None), (CALL, [TOOL])]
)
def test_after_load_the_next_turn_computes_only_its_new_tokens(qwen3, tmp_path, text, tools):
    file = tmp_path / "chat.json"
    first = Counted(qwen3, text)
    _, screen = talk(first.llm, ONE, f"/save {file}", session=Session("q", tools=tools))
    following = "/tool fine" if tools else TWO
    there = Counted(qwen3, text, "done")
    expected, _ = talk(there.llm, ONE, following, session=Session("q", tools=tools))
    num_saved = cached(expected)  # the two turns in one process
    assert num_saved > 0
    pages = tmp_path / "chat.json.pages"
    length = size(pages.stat().st_size)
    assert f"What is computed of it, {num_saved} tokens, is in {pages} ({length}).\n" in screen
    second = Counted(qwen3, "done")
    chat, screen = talk(second.llm, f"/load {file}", following)
    assert f"What was computed of it is back from {pages}: {num_saved} tokens.\n" in screen
    assert cached(chat) == num_saved
    assert second.num_tokens == len(second.script.prompts[0]) - num_saved + len(second.script._given[0]) - 1
    said, said_there = ([turn["content"] for turn in one.session.turns] for one in (chat, expected))
    assert said == said_there


def test_a_real_model_goes_on_bit_for_bit(tmp_path):
    long = "Hello! I have a question about sums, and I would like an answer: 12+30=?"

    def session() -> Session:
        return Session("tiny", sampling={"temperature": 0, "logprobs": 2, "seed": 1})

    here = LLM("tiny", threads=1)
    kept, _ = talk(here, long, f"/save {tmp_path}/a", "27+15=?", session=session())
    assert (tmp_path / "a.pages").stat().st_size > here.executor.page_bytes
    there, cold = LLM("tiny", threads=2), LLM("tiny", threads=1)
    loaded, _ = talk(there, f"/load {tmp_path}/a", "27+15=?")
    (tmp_path / "a.pages").unlink()
    alone, screen = talk(cold, f"/load {tmp_path}/a", "27+15=?")
    assert screen.startswith("Loaded 2 messages from ") and "computed" not in screen
    assert cached(loaded) == cached(kept) > 0 == cached(alone)
    for chat in (loaded, alone):
        assert chat.session.last_answer.logprobs == kept.session.last_answer.logprobs
        assert chat.session.turns == kept.session.turns


@pytest.mark.parametrize("kv", ["bf16", "int8"])
def test_the_python_api_carries_a_prompt_bit_for_bit(tmp_path, kv):
    here, there = LLM("tiny", threads=1, kv=kv), LLM("tiny", threads=1, kv=kv)
    prompt = here.render([{"role": "user", "content": "What is 12 plus 30? Think well, and say all of your steps."}])
    assert here.save_pages(prompt, tmp_path / "x") is None
    ids = here.tokenizer.encode_prompt(prompt)
    assert len(ids) > here.executor.page_tokens
    fields = {"max_tokens": 24, "temperature": 1.0, "seed": 3, "logprobs": 1}
    expected = here.generate(ids, **fields)
    saved = here.save_pages(prompt, str(tmp_path / "x"))
    assert saved is not None and saved.saved_tokens == len(ids) // here.executor.page_tokens * here.executor.page_tokens
    assert there.load_pages(str(tmp_path / "x")).ready_tokens == saved.saved_tokens
    found = there.generate(ids, **fields)
    assert found.usage.cached_tokens == (len(ids) - 1) // here.executor.page_tokens * here.executor.page_tokens
    assert (found.token_ids, found.logprobs) == (expected.token_ids, expected.logprobs)
    other = LLM("tiny", threads=1, kv="int8" if kv == "bf16" else "bf16")
    with pytest.raises(SavedPagesError, match="other options for its weights, keys and values"):
        other.load_pages(tmp_path / "x")


def test_a_chat_of_which_nothing_is_computed_saves_the_conversation_alone(loaded, tmp_path):
    _, screen = talk(Counted(loaded).llm, f"/save {tmp_path}/a")
    assert screen.strip() == f"Saved 0 messages to {tmp_path}/a."
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_saving_again_with_nothing_computed_takes_away_what_was_of_another_chat(loaded, tmp_path):
    model = Counted(loaded, "one two three four")
    talk(model.llm, ONE, f"/save {tmp_path}/a")
    assert (tmp_path / "a.pages").exists()
    talk(Counted(loaded).llm, f"/save {tmp_path}/a")
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_a_chat_saved_before_there_were_pages_still_loads(loaded, tmp_path):
    turns = '[{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}]'
    (tmp_path / "old").write_text(
        f'{{"format": "kaishu chat 1", "model": "tiny", "sampling": {{}}, "messages": {turns}}}'
    )
    chat, screen = talk(Counted(loaded, "fine").llm, f"/load {tmp_path}/old", "how are you?")
    assert screen.startswith(f"Loaded 2 messages from {tmp_path}/old.\n\nfine\n")
    assert cached(chat) == 0 and len(chat.session.turns) == 4


def spoil(pages: Path) -> None:
    content = bytearray(pages.read_bytes())
    content[-1] ^= 1
    pages.write_bytes(content)


@pytest.mark.parametrize(
    "change, message",
    [
        (spoil, "a.pages is damaged: its SHA-256 isn't the one that was written."),
        (lambda pages: pages.write_bytes(pages.read_bytes()[:-1]), "a.pages is damaged: it is cut short"),
        (lambda pages: pages.write_bytes(b""), "a.pages is damaged: it is cut short"),
        (lambda pages: (pages.unlink(), pages.mkdir()), "a.pages is no file."),
    ],
)
def test_pages_that_do_not_hold_are_named_and_the_chat_is_computed_again(loaded, tmp_path, change, message):
    talk(Counted(loaded, "one two three four").llm, ONE, f"/save {tmp_path}/a")
    change(tmp_path / "a.pages")
    chat, screen = talk(Counted(loaded, "four three").llm, f"/load {tmp_path}/a", TWO)
    assert message in screen
    assert "The conversation is computed again with the next message.\n" in screen
    assert cached(chat) == 0
    assert [turn["content"] for turn in chat.session.turns] == [ONE, "one two three four", TWO, "four three"]


def test_pages_of_another_model_are_not_used(loaded, tmp_path):
    talk(Counted(loaded, "one two three four").llm, ONE, f"/save {tmp_path}/a")
    other = Counted(replace(loaded, identity=b"another"), "four three")
    chat, screen = talk(other.llm, f"/load {tmp_path}/a", TWO)
    assert "a.pages was saved with another model" in screen
    assert cached(chat) == 0 and chat.session.turns[-1]["content"] == "four three"


def test_a_foreign_file_in_the_place_of_the_pages_stays(loaded, tmp_path):
    (tmp_path / "a.pages").write_text("precious")
    _, screen = talk(Counted(loaded, "one two three four").llm, ONE, f"/save {tmp_path}/a")
    assert "Saved 2 messages" in screen
    assert "What is computed of it could not be kept: " in screen and "exists and is no file of saved pages" in screen
    assert (tmp_path / "a.pages").read_text() == "precious"


def test_with_little_room_as_much_comes_back_as_fits(loaded, tmp_path):
    talk(Counted(loaded, "one two three four " * 20).llm, ONE, f"/save {tmp_path}/a")
    small = Counted(replace(loaded, context_tokens=128), "x", num_pages=8)
    _, screen = talk(small.llm, f"/load {tmp_path}/a")
    assert ": 128 tokens of " in screen and ", as many as there is room for.\n" in screen
