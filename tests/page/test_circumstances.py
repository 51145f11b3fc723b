"""What is around the page: a server that is still loading, or strict, or away; a browser that keeps nothing."""

from __future__ import annotations

import threading
from dataclasses import replace

from playwright.sync_api import expect

from kaishu.server.settings import ServerSettings
from tests.page.conftest import ChatPage, Model
from tests.server.conftest import live, service_on


def test_it_waits_for_a_server_that_is_loading_and_sends_only_what_a_strict_one_knows(
    open_page, model: Model, loaded_tiny
):
    may_load = threading.Event()
    load = service_on(replace(loaded_tiny, executor=model), speculation=False)

    def load_later(settings, metrics):
        assert may_load.wait(60)
        return load(settings, metrics)

    with live(load_later, ServerSettings(port=0, strict=True), waits=False) as server:
        chat = open_page(url=server.url, waits=False)
        expect(chat.window.locator("#notice")).to_have_text("The model is being loaded …")
        may_load.set()
        expect(chat.window.locator("#model")).to_have_text("tiny")
        expect(chat.window.locator("#notice")).to_be_empty()
        chat.button("Settings").click()
        for label in ("Temperature", "Top p", "Top k", "Seed", "Thinking budget"):
            chat.window.get_by_label(label, exact=True).fill("1")
        chat.window.get_by_label("Most tokens").fill("64")
        chat.window.get_by_label("System prompt").fill("Be brief.")
        chat.window.get_by_role("radio", name="on").check()
        model.says("Yes.")
        chat.ask("Hello")
        expect(chat.answers).to_have_text("Yes.")
        chat.problems = [one for one in chat.problems if "503" not in one]


def test_a_server_that_goes_away_is_told_of_and_what_was_said_stays(chat: ChatPage, model: Model):
    model.says("First.")
    chat.ask("Hello")
    chat.window.context.set_offline(True)
    chat.ask("Still there?")
    expect(chat.window.locator(".assistant .ending").last).to_have_text("This answer failed. The connection broke off.")
    chat.window.context.set_offline(False)
    model.says("Here again.")
    chat.button("Answer again").last.click()
    expect(chat.answers).to_have_text(["First.", "Here again."])
    chat.problems.clear()  # the console tells of it


def test_a_stream_that_ends_without_its_end_is_a_failure_that_keeps_what_came(chat: ChatPage):
    piece = 'data: {"id": "chatcmpl-1", "choices": [{"index": 0, "delta": {"content": "Half a sen"}}]}\n\n'
    chat.window.route(
        "**/v1/chat/completions", lambda route: route.fulfill(body=piece, content_type="text/event-stream")
    )
    chat.ask("Hello")
    expect(chat.answers).to_have_text("Half a sen")
    expect(chat.window.locator(".assistant .ending")).to_contain_text("This answer failed.")


def test_an_error_in_the_middle_of_a_stream_is_shown(chat: ChatPage):
    body = (
        'data: {"id": "chatcmpl-1", "choices": [{"index": 0, "delta": {"content": "Half"}}]}\n\n'
        'data: {"error": {"message": "The numbers overflowed.", "code": "numerical_error"}}\n\n'
    )
    chat.window.route(
        "**/v1/chat/completions", lambda route: route.fulfill(body=body, content_type="text/event-stream")
    )
    chat.ask("Hello")
    expect(chat.window.locator(".assistant .ending")).to_have_text("This answer failed. The numbers overflowed.")
    expect(chat.answers).to_have_text("Half")


def test_a_browser_without_a_database_talks_and_says_that_nothing_is_kept(chat: ChatPage, model: Model):
    chat.window.add_init_script("Object.defineProperty(window, 'indexedDB', { value: undefined })")
    chat.window.reload()
    expect(chat.window.locator("#notice")).to_contain_text("This browser keeps no data for this page")
    expect(chat.window.locator("#model")).to_have_text("tiny")
    model.says("Yes.")
    chat.ask("Hello")
    expect(chat.answers).to_have_text("Yes.")
    chat.button("New conversation").click()
    chat.window.locator(".conversation", has_text="Hello").click()
    expect(chat.answers).to_have_text("Yes.")
    chat.button("Delete").click()
    expect(chat.window.locator(".conversation")).to_have_count(0)


def test_several_names_of_the_model_are_a_choice(chat: ChatPage, model: Model):
    names = [{"id": name, "context_length": length} for name, length in (("tiny", 1024), ("other", None))]
    chat.window.route("**/v1/models", lambda route: route.fulfill(json={"object": "list", "data": names}))
    chat.window.reload()
    choice = chat.window.get_by_role("combobox", name="Model")
    choice.select_option("other")
    with chat.window.expect_request("**/v1/chat/completions") as asked:
        chat.send("Hello")
    assert asked.value.post_data_json["model"] == "other"
    expect(chat.window.locator(".assistant .ending")).to_contain_text("There is no model")
    chat.problems.clear()  # the console tells of the 404


def test_a_connection_that_breaks_is_told_of_in_words(chat: ChatPage):
    chat.window.evaluate(
        """() => {
          const piece = 'data: {"id": "c", "choices": [{"index": 0, "delta": {"content": "Half a sen"}}]}\\n\\n';
          const body = new ReadableStream({
            start(controller) { controller.enqueue(new TextEncoder().encode(piece)); },
            pull(controller) { controller.error(new TypeError("network error")); },
          }, { highWaterMark: 0 });
          window.fetch = async () => new Response(body);
        }"""
    )
    chat.ask("Hello")
    expect(chat.answers).to_have_text("Half a sen")
    expect(chat.window.locator(".assistant .ending")).to_have_text("This answer failed. The connection broke off.")


def test_a_page_that_was_put_aside_while_it_was_answered_goes_on(chat: ChatPage, model: Model, server):
    """As browsers do with pages that are gone back to: what ran was cut off."""
    model.says("One two three. Four.", "Here again.", hold_before="Four")
    chat.send("Count")
    expect(chat.answers).to_contain_text("three.")
    chat.window.evaluate("dispatchEvent(new Event('pagehide'))")
    chat.button("Stop").click()
    chat.window.evaluate("dispatchEvent(new Event('pageshow'))")
    model.go_on()
    server.wait_until_idle()
    expect(chat.window.locator(".assistant .ending")).to_contain_text("This answer isn't complete")
    chat.ask("And?")
    expect(chat.answers.last).to_have_text("Here again.")


def test_a_server_that_was_started_again_with_another_model_is_asked_for_it(chat: ChatPage, model: Model):
    names = [{"id": "older"}]
    chat.window.route("**/v1/models", lambda route: route.fulfill(json={"data": names}), times=1)
    chat.window.reload()
    expect(chat.window.locator("#model")).to_have_text("older")
    chat.ask("Hello")
    expect(chat.window.locator(".assistant .ending")).to_contain_text("There is no model 'older' here")
    expect(chat.window.locator("#model")).to_have_text("tiny")
    model.says("Yes.")
    chat.button("Answer again").click()
    expect(chat.answers).to_have_text("Yes.")
    chat.problems.clear()  # the console tells of the 404


def test_waiting_for_the_server_isnt_said_again_and_again(chat: ChatPage):
    chat.window.route("**/v1/models", lambda route: route.abort(), times=3)
    chat.window.reload()
    notice = chat.window.locator("#notice span")
    expect(notice).to_have_text("The server doesn't answer.")
    notice.evaluate("(node) => { window.first = node; }")
    with chat.window.expect_event("requestfailed"):
        pass
    assert notice.evaluate("(node) => node === window.first")
    expect(chat.window.locator("#model")).to_have_text("tiny")
    expect(notice).to_have_count(0)
    chat.problems.clear()  # the console tells of it
