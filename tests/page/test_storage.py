"""A browser that keeps nothing, or no more; and several tabs that keep the same conversation."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import expect

from tests.page.conftest import ChatPage, Model


def another_tab(chat: ChatPage) -> ChatPage:
    """The same browser's second tab, on the conversation that the first shows, once its address says which."""
    expect(chat.window).to_have_url(re.compile("#.+"))
    tab = ChatPage(chat.window.context, chat.window.url)
    return tab.open()


def test_a_full_storage_is_told_of_and_ends_nothing(chat: ChatPage, model: Model):
    chat.window.evaluate(
        """() => {
          IDBObjectStore.prototype.put = () => {
            throw new DOMException("The quota has been exceeded.", "QuotaExceededError");
          };
        }"""
    )
    model.says("First.", "Second.")
    chat.ask("Hello")
    expect(chat.answers).to_have_text("First.")
    expect(chat.window.locator("#notice")).to_contain_text("takes nothing more (The quota has been exceeded.)")
    chat.ask("And?")
    expect(chat.answers).to_have_text(["First.", "Second."])


@pytest.mark.parametrize("name", ["localStorage", "sessionStorage"])
def test_a_browser_that_forbids_small_values_has_the_page_nevertheless(chat: ChatPage, model: Model, name):
    chat.window.add_init_script(
        f"Object.defineProperty(window, '{name}', {{ get() {{ throw new DOMException('no', 'SecurityError'); }} }})"
    )
    chat.window.reload()
    expect(chat.window.locator("#model")).to_have_text("tiny")
    chat.window.locator("#theme").click()
    expect(chat.window.locator("html")).to_have_attribute("data-theme", "light")
    model.says("Yes.")
    chat.ask("Hello")
    expect(chat.answers).to_have_text("Yes.")


def test_what_is_removed_stays_so_whatever_is_being_saved(chat: ChatPage):
    left = chat.window.evaluate(
        """async () => {
          const store = await (await import("/page/store.js")).openStore();
          const conversation = { id: "a", title: "", updated: 1 };
          const saved = store.save(conversation, [{ id: "1", content: "x" }, { id: "2", content: "y" }]);
          await Promise.all([saved, store.remove("a")]);
          return [await store.conversations(), await store.messages("a"), [...await store.search(() => true)]];
        }"""
    )
    assert left == [[], [], []]


def test_another_tab_sees_an_answer_come_to_its_end(chat: ChatPage, model: Model):
    model.says("One two three. Four.", hold_before="Four")
    chat.send("Count")
    expect(chat.answers).to_contain_text("three.")
    expect(chat.window.locator("#conversations")).to_contain_text("Count")
    tab = another_tab(chat)
    expect(tab.window.locator(".assistant .ending")).to_contain_text("another tab is writing it")
    model.go_on()
    expect(tab.answers).to_have_text("One two three. Four.")
    expect(tab.window.locator(".assistant .ending")).to_be_hidden()


def test_a_title_that_another_tab_gave_isnt_written_over(chat: ChatPage, model: Model):
    model.says("Yes.", "No.")
    chat.ask("Hello")
    tab = another_tab(chat)
    tab.button("Rename").click()
    tab.window.get_by_role("textbox", name="New title").fill("Another title")
    tab.window.keyboard.press("Enter")
    expect(chat.window.locator("#title")).to_have_text("Another title")
    chat.ask("And?")
    tab.window.reload()
    expect(tab.window.locator("#title")).to_have_text("Another title")
    expect(tab.answers).to_have_text(["Yes.", "No."])


def test_a_conversation_that_another_tab_deletes_is_left(chat: ChatPage, model: Model):
    model.says("Yes.")
    chat.ask("Hello")
    tab = another_tab(chat)
    tab.button("Delete").click()
    expect(chat.answers).to_have_count(0)
    expect(chat.window.locator(".conversation")).to_have_count(0)
    tab.button("Undo").click()
    expect(chat.window.locator(".conversation")).to_have_text("Hello")
    expect(tab.answers).to_have_text("Yes.")


def test_the_conversation_that_was_asked_for_last_is_shown_whichever_comes_first(chat: ChatPage, model: Model):
    for question in ("slow", "quick"):
        chat.button("New conversation").click()
        model.says(f"The {question} one.")
        chat.ask(question)
    chat.button("New conversation").click()
    chat.window.evaluate(
        """() => {
          const getAll = IDBIndex.prototype.getAll;
          const ids = [...document.querySelectorAll(".conversation")].map((one) => one.dataset.focus.slice(5));
          const set = Object.getOwnPropertyDescriptor(IDBTransaction.prototype, "oncomplete").set;
          IDBIndex.prototype.getAll = function (id) {
            this.objectStore.transaction.isSlow = id === ids[1];
            return getAll.call(this, id);
          };
          Object.defineProperty(IDBTransaction.prototype, "oncomplete", {
            set(run) { set.call(this, () => (this.isSlow ? setTimeout(run, 300) : run())); },
          });
        }"""
    )
    chat.window.locator(".conversation", has_text="slow").click()
    chat.window.locator(".conversation", has_text="quick").click()
    expect(chat.answers).to_have_text("The quick one.")
    chat.window.wait_for_timeout(500)
    expect(chat.answers).to_have_text("The quick one.")
