"""Conversations in the browser: kept, found, renamed, deleted and brought back; as files, out and in again."""

from __future__ import annotations

import json
import re
from pathlib import Path

from playwright.sync_api import expect

from tests.page.conftest import ChatPage, Model


def saved(chat: ChatPage, button: str) -> str:
    with chat.window.expect_download() as download:
        chat.button(button).click()
    return Path(download.value.path()).read_text(encoding="utf-8")


def test_reloading_shows_what_was_there_with_all_branches(chat: ChatPage, model: Model):
    model.says("<think>\nHm.\n</think>\n\nFirst.")
    chat.ask("Say something")
    model.says("Second.")
    chat.button("Answer again").click()
    chat.wait_until_answered()
    chat.window.reload()
    expect(chat.answers).to_have_text("Second.")
    chat.button("Previous branch").click()
    expect(chat.answers).to_have_text("First.")
    expect(chat.window.locator(".thought summary")).to_have_text(re.compile("Thought"))
    chat.window.reload()
    expect(chat.answers).to_have_text("First.")


def test_an_answer_that_the_page_was_closed_on_keeps_what_was_said(chat: ChatPage, model: Model, server):
    model.says("One two three. Four five six.", hold_before="Four")
    chat.send("Count")
    expect(chat.answers).to_contain_text("three.")
    expect(chat.window.locator("#conversations")).to_contain_text("Count")  # it is kept
    chat.window.reload()
    model.go_on()
    server.wait_until_idle()
    expect(chat.window.locator(".assistant .ending")).to_have_text(
        "This answer isn't complete: the page was closed meanwhile, or another tab is writing it."
    )
    expect(chat.button("Answer again")).to_be_visible()


def test_conversations_are_listed_and_found_by_what_was_said_in_them(chat: ChatPage, model: Model):
    for question, answer in {"About cats": "They purr.", "About dogs": "They bark."}.items():
        chat.button("New conversation").click()
        model.says(answer)
        chat.ask(question)
    listed = chat.window.locator(".conversation")
    expect(listed).to_have_text(["About dogs", "About cats"])
    search = chat.window.get_by_role("searchbox", name="Search conversations")
    search.fill("PURR")
    expect(listed).to_have_text(["About cats"])
    listed.click()
    expect(chat.answers).to_have_text("They purr.")
    search.fill("dogs")
    expect(listed).to_have_text(["About dogs"])
    search.fill("elephant")
    expect(chat.window.locator("#conversations")).to_have_text("Nothing found.")
    search.fill("")
    expect(listed).to_have_count(2)


def test_a_conversation_is_renamed_deleted_and_brought_back(chat: ChatPage, model: Model):
    model.says("Yes.")
    chat.ask("Hello")
    chat.button("Rename").click()
    field = chat.window.get_by_role("textbox", name="New title")
    field.fill("Greeting 你好")
    field.press("Enter")
    expect(chat.window.locator("#title")).to_have_text("Greeting 你好")
    chat.window.reload()
    expect(chat.window.locator(".conversation")).to_have_text("Greeting 你好")
    chat.button("Delete").click()
    expect(chat.window.locator(".conversation")).to_have_count(0)
    expect(chat.answers).to_have_count(0)
    chat.button("Undo").click()
    expect(chat.answers).to_have_text("Yes.")
    chat.button("Delete").click()
    expect(chat.window.locator("#notice")).to_contain_text("“Greeting 你好” is deleted.")
    chat.window.reload()
    expect(chat.window.locator(".conversation")).to_have_count(0)


def test_a_conversation_deleted_while_it_is_answered_stays_deleted(chat: ChatPage, model: Model, server):
    model.says("One two three. Four.", hold_before="Four")
    chat.send("Count")
    expect(chat.answers).to_contain_text("three.")
    chat.button("Delete").click()
    expect(chat.window.locator("#notice")).to_contain_text("is deleted.")  # what is closed before isn't
    model.go_on()
    server.wait_until_idle()
    chat.window.reload()
    expect(chat.window.locator("#conversations")).to_have_text("What you talk about here stays in this browser.")


def test_a_saved_file_brings_the_whole_conversation_to_another_browser(open_page, model: Model, tmp_path):
    chat = open_page()
    model.says("<think>\nHm.\n</think>\n\nFirst.")
    chat.ask("Say `something`")
    model.says("Second, 二.")
    chat.button("Answer again").click()
    chat.wait_until_answered()
    chat.button("Settings").click()
    chat.window.get_by_label("System prompt").fill("Be brief.")
    file = tmp_path / "out.json"
    file.write_text(saved(chat, "Save as JSON"), encoding="utf-8")

    other = open_page()
    other.window.locator("#file").set_input_files(file)
    expect(other.answers).to_have_text("Second, 二.")
    other.button("Previous branch").click()
    expect(other.answers).to_have_text("First.")
    other.button("Settings").click()
    expect(other.window.get_by_label("System prompt")).to_have_value("Be brief.")
    again = json.loads(saved(other, "Save all"))["conversations"]
    first = json.loads(file.read_text(encoding="utf-8"))["conversations"]

    def told(conversations):
        return [
            (one["title"], one["settings"], [{**message, "id": 0, "parent": 0} for message in one["messages"]])
            for one in conversations
        ]

    assert told(again) == told(first)
    assert len(first[0]["messages"]) == 3
    assert first[0]["messages"][1]["tokens"][0]["top"], "token probabilities are saved, too"


def test_a_conversation_is_saved_as_markdown(chat: ChatPage, model: Model):
    model.says("<think>\nHm.\n</think>\n\nHere:\n\n```python\nx = 1\n```")
    chat.ask("Code, please")
    assert saved(chat, "Save as Markdown") == (
        "# Code, please\n\n## You\n\nCode, please\n\n## Answer\n\n"
        "<details><summary>Thought</summary>\n\nHm.\n\n</details>\n\nHere:\n\n```python\nx = 1\n```\n"
    )


def test_settings_belong_to_a_conversation_and_new_ones_begin_with_the_last(chat: ChatPage, model: Model):
    model.says("Yes.")
    chat.ask("Hello")
    chat.button("Settings").click()
    system = chat.window.get_by_label("System prompt")
    system.fill("Be brief.")
    chat.button("New conversation").click()
    expect(system).to_have_value("Be brief.")
    system.fill("Be long.")
    chat.window.locator(".conversation", has_text="Hello").click()
    expect(system).to_have_value("Be brief.")


def test_a_title_being_typed_stays_when_an_answer_is_complete(chat: ChatPage, model: Model):
    model.says("One two three. Four.", hold_before="Four")
    chat.send("Count")
    expect(chat.answers).to_contain_text("three.")
    chat.button("Rename").click()
    field = chat.window.get_by_role("textbox", name="New title")
    field.fill("Cou")
    field.evaluate("(node) => { node.isTheSame = true; }")
    model.go_on()
    chat.wait_until_answered()
    chat.window.wait_for_timeout(200)
    assert field.evaluate("(node) => node.isTheSame && node.value") == "Cou"
    field.press("Enter")
    expect(chat.window.locator(".conversation")).to_have_text("Cou")


def test_a_message_whose_parent_is_lost_can_be_saved_and_opened(chat: ChatPage, model: Model, tmp_path):
    model.says("Yes.")
    chat.ask("Hello")
    chat.window.evaluate(
        """async () => {
          const store = await (await import("/page/store.js")).openStore();
          const [conversation] = await store.conversations();
          await store.removeMessage((await store.messages(conversation.id)).find((one) => one.role === "user").id);
        }"""
    )
    chat.window.reload()
    file = tmp_path / "out.json"
    file.write_text(saved(chat, "Save all"), encoding="utf-8")
    chat.button("Delete").click()
    chat.window.locator("#file").set_input_files(file)
    expect(chat.answers).to_have_text("Yes.")


def test_tools_of_a_file_that_are_none_dont_stop_a_conversation(chat: ChatPage, model: Model, tmp_path):
    conversation = {"title": "In", "settings": {"tools": "[{"}, "messages": []}
    file = tmp_path / "in.json"
    file.write_text(json.dumps({"form": "kaishu-conversations", "version": 1, "conversations": [conversation]}))
    chat.window.locator("#file").set_input_files(file)
    expect(chat.window.locator("#title")).to_have_text("In")
    model.says("Yes.")
    chat.ask("Hello")
    expect(chat.answers).to_have_text("Yes.")


def test_the_way_past_the_list_doesnt_lose_the_conversation(chat: ChatPage, model: Model):
    model.says("Yes.")
    chat.ask("Hello")
    chat.window.locator(".skip").focus()
    chat.window.keyboard.press("Enter")
    expect(chat.input).to_be_focused()
    chat.window.reload()
    expect(chat.answers).to_have_text("Yes.")
