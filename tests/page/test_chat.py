"""Talking: what streams is shown, as what it is; an answer can be stopped, thought ended, branches made and changed."""

from __future__ import annotations

import json
import re

from playwright.sync_api import expect

from tests.page.conftest import ChatPage, Model

CODE = "Here:\n\n```python\ndef double(x):\n    return 2 * x  # twice\n```\n\nThat is **all**."
THOUGHT = "<think>\nThe sum of two and three is five.\n</think>\n\nFive."
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "北京", "days": 2}}\n</tool_call>'
TOOLS = json.dumps(
    [
        {
            "type": "function",
            "function": {
                "name": "weather",
                "parameters": {
                    "type": "object",
                    "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
                },
            },
        }
    ]
)


def bodies_of(chat: ChatPage) -> list[dict]:
    """The chat requests of the page, gathered from now on."""
    found: list[dict] = []
    chat.window.on(
        "request", lambda request: found.append(request.post_data_json) if "/chat/completions" in request.url else None
    )
    return found


def test_an_answer_is_shown_while_it_is_written_and_as_markdown(chat: ChatPage, model: Model):
    model.says(CODE, hold_before="That is")
    chat.send("How do I double?")
    code = chat.window.locator("article.assistant pre code.language-python")
    expect(code.locator(".hljs-keyword").first).to_have_text("def")
    expect(chat.window.locator("article.assistant")).to_have_attribute("aria-busy", "true")
    expect(chat.answers).not_to_contain_text("all")
    model.go_on()
    chat.wait_until_answered()
    expect(chat.answers.locator("strong")).to_have_text("all")
    expect(code).to_have_text("def double(x):\n    return 2 * x  # twice\n")
    expect(chat.window.locator("article.user .text")).to_have_text("How do I double?")


def test_speed_and_context_are_shown(chat: ChatPage, model: Model):
    model.says("One two three four five.", hold_before="four")
    chat.send("Count")
    expect(chat.answers).to_contain_text("three")
    chat.window.wait_for_timeout(100)  # what takes no time has no speed
    model.go_on()
    chat.wait_until_answered()
    figures = chat.window.locator(".figures")
    expect(figures).to_have_text(re.compile(r"^\d+ tokens · [\d.,]+ tokens/s · first after \d+\.\d\d s"))
    meter = chat.window.get_by_role("meter", name="Context")
    expect(meter).to_have_attribute("aria-valuemax", "1024")
    usage = chat.window.evaluate("document.querySelector('.meter').getAttribute('aria-valuenow')")
    assert 10 < int(usage) < 200


def test_thought_is_folded_and_counted(chat: ChatPage, model: Model, loaded_tiny):
    model.says(THOUGHT)
    chat.ask("2+3?")
    expect(chat.answers).to_have_text("Five.")
    thought = chat.window.locator(".thought-text")
    expect(thought).to_be_hidden()
    summary = chat.window.locator(".thought summary")
    expect(summary).to_have_text(re.compile(r"^Thought · \d+ tokens$"))
    said = int(re.search(r"\d+", summary.inner_text()).group())
    assert said >= len(loaded_tiny.tokenizer.encode("The sum of two and three is five."))
    summary.click()
    expect(thought).to_have_text("The sum of two and three is five.")


def test_the_button_ends_a_thought_through_the_server(chat: ChatPage, model: Model):
    asked: list[str] = []
    chat.window.on("request", lambda request: asked.append(request.url) if "stop_thinking" in request.url else None)
    # Each token of the end that is forced makes it another prompt.
    model.says(THOUGHT, *["Five, I think."] * 8, hold_before="three")
    chat.send("2+3?")
    expect(chat.window.locator(".thought summary")).to_have_text(re.compile(r"^Thinking · \d+ tokens$"))
    with chat.window.expect_response("**/stop_thinking") as stopped:
        chat.button("Stop thinking").click()
    assert stopped.value.status == 204
    model.go_on()
    chat.wait_until_answered()
    expect(chat.answers).to_have_text("Five, I think.")
    expect(chat.button("Stop thinking")).to_be_hidden()
    (url,) = asked
    assert re.fullmatch(re.escape(chat.url) + r"/v1/chat/completions/chatcmpl-\w+/stop_thinking", url)


def test_a_server_that_cant_end_a_thought_is_told_of(chat: ChatPage, model: Model):
    chat.window.route("**/stop_thinking", lambda route: route.fulfill(status=404, json={"error": {"message": "over"}}))
    model.says(THOUGHT, hold_before="three")
    chat.send("2+3?")
    chat.button("Stop thinking").click()
    expect(chat.window.locator("#notice")).to_have_text("The server couldn't stop this thought.")
    model.go_on()
    chat.wait_until_answered()
    chat.problems.clear()  # the console tells of the 404


def test_stop_leaves_what_was_said_and_frees_the_engine(chat: ChatPage, model: Model, server):
    model.says("One two three. Four five six.", hold_before="Four")
    chat.send("Count")
    expect(chat.answers).to_contain_text("three.")
    chat.button("Stop").click()
    expect(chat.window.locator(".assistant .ending")).to_have_text("Stopped here.")
    model.go_on()
    server.wait_until_idle()
    expect(chat.answers).to_have_text("One two three.")
    model.says("Go on.")
    chat.ask("More")
    expect(chat.answers.last).to_have_text("Go on.")


def test_editing_makes_a_branch_and_the_arrows_go_between_them(chat: ChatPage, model: Model):
    model.says("You said blue.", "That is nice.")
    chat.ask("blue")
    chat.ask("And?")
    model.says("You said green.")
    chat.button("Edit").first.click()
    chat.window.get_by_role("textbox", name="Edit").fill("green")
    chat.button("Send as a new branch").click()
    chat.wait_until_answered()
    expect(chat.answers).to_have_text(["You said green."])
    branches = chat.window.get_by_role("group", name="Branch 2 of 2")
    expect(branches.locator(".count")).to_have_text("2 / 2")
    chat.button("Previous branch").click()
    expect(chat.answers).to_have_text(["You said blue.", "That is nice."])
    chat.button("Next branch").click()
    expect(chat.answers).to_have_text(["You said green."])


def test_answering_again_makes_a_sibling_and_sends_the_same_path(chat: ChatPage, model: Model):
    model.says("First.")
    chat.ask("Say something")
    model.says("Second.")
    sent = bodies_of(chat)
    chat.button("Answer again").click()
    expect(chat.answers).to_have_text("Second.")
    chat.wait_until_answered()
    assert [message["content"] for message in sent[0]["messages"]] == ["Say something"]
    chat.button("Previous branch").click()
    expect(chat.answers).to_have_text("First.")


def test_what_is_set_is_what_is_asked_for(chat: ChatPage, model: Model):
    chat.button("Settings").click()
    panel = chat.window.get_by_role("complementary", name="Settings")
    panel.get_by_label("System prompt").fill("Be brief.")
    for label, value in {"Temperature": "0.3", "Top p": "0.9", "Top k": "40", "Most tokens": "64", "Seed": "7"}.items():
        panel.get_by_label(label, exact=True).fill(value)
    panel.get_by_label("Thinking budget").fill("5")
    panel.get_by_role("radio", name="on").check()
    panel.get_by_role("checkbox").uncheck()
    sent = bodies_of(chat)
    model.says("Yes.")
    chat.ask("Hello")
    body = sent[0]
    assert body["messages"][0] == {"role": "system", "content": "Be brief."}
    assert {key: body[key] for key in ("temperature", "top_p", "top_k", "max_tokens", "seed", "thinking_budget")} == {
        "temperature": 0.3, "top_p": 0.9, "top_k": 40, "max_tokens": 64, "seed": 7, "thinking_budget": 5,
    }  # fmt: skip
    assert body["enable_thinking"] is True
    assert "logprobs" not in body


def test_a_setting_that_isnt_allowed_is_refused_where_it_was_typed(chat: ChatPage, model: Model):
    chat.button("Settings").click()
    field = chat.window.get_by_label("Top p", exact=True)
    field.fill("1.5")
    expect(field).to_have_attribute("aria-invalid", "true")
    expect(chat.window.locator("#problem-topP")).to_have_text("Allowed: 0 – 1")
    chat.window.locator("#setting-tools").fill("[{")
    expect(chat.window.locator("#problem-tools")).to_contain_text("This is no JSON of tools")
    sent = bodies_of(chat)
    model.says("Yes.")
    chat.ask("Hello")
    assert not {"top_p", "tools"} & set(sent[0])


def test_a_tool_call_is_a_card_whose_result_the_person_gives(chat: ChatPage, model: Model):
    chat.button("Settings").click()
    chat.window.locator("#setting-tools").fill(TOOLS)
    model.says(CALL, "It is sunny in 北京.")
    chat.ask("The weather in Beijing?")
    card = chat.window.get_by_role("region", name="The model calls weather")
    expect(card.locator(".tool-arguments")).to_have_text('{\n  "city": "北京",\n  "days": 2\n}')
    sent = bodies_of(chat)
    card.get_by_role("textbox", name="Result of weather").fill('{"sky": "clear"}')
    chat.button("Send the result").click()
    expect(chat.answers.last).to_have_text("It is sunny in 北京.")
    call, result = sent[0]["messages"][-2:]
    assert result == {"role": "tool", "tool_call_id": call["tool_calls"][0]["id"], "content": '{"sky": "clear"}'}
    assert json.loads(call["tool_calls"][0]["function"]["arguments"]) == {"city": "北京", "days": 2}
    expect(chat.button("Send the result")).to_be_hidden()


def test_an_error_of_the_server_is_shown_in_its_words_and_can_be_tried_again(chat: ChatPage, model: Model):
    said = {"error": {"message": "The queue is full.", "code": "queue_full"}}
    chat.window.route("**/v1/chat/completions", lambda route: route.fulfill(status=429, json=said), times=1)
    model.says("Now it works.")
    chat.ask("Hello")
    expect(chat.window.locator(".assistant .ending")).to_have_text("This answer failed. The queue is full.")
    chat.button("Answer again").click()
    expect(chat.answers).to_have_text("Now it works.")
    expect(chat.window.locator(".branches")).to_have_count(0)
    chat.problems.clear()  # the console tells of the 429


def test_an_answer_goes_on_while_another_conversation_is_shown(chat: ChatPage, model: Model):
    model.says("One two three. Four.", hold_before="Four")
    chat.send("Count")
    expect(chat.answers).to_contain_text("three.")
    chat.button("New conversation").click()
    expect(chat.answers).to_have_count(0)
    model.go_on()
    chat.button("Count").click()
    expect(chat.answers).to_have_text("One two three. Four.")


def test_answering_a_failure_again_twice_at_once_asks_once(chat: ChatPage, model: Model):
    chat.window.route("**/v1/chat/completions", lambda route: route.fulfill(status=429, json={}), times=1)
    chat.ask("Hello")
    sent = bodies_of(chat)
    model.says("Once.")
    chat.button("Answer again").evaluate("(button) => { button.click(); button.click(); }")
    expect(chat.answers).to_have_text("Once.")
    chat.wait_until_answered()
    assert len(sent) == 1
    chat.problems = [one for one in chat.problems if "429" not in one]


def test_a_call_that_was_cut_off_isnt_sent_again(chat: ChatPage, model: Model):
    """No server takes arguments that aren't JSON: each later message of the conversation would fail."""
    pieces = [
        {"tool_calls": [{"index": 0, "id": "a", "function": {"name": "whole", "arguments": '{"x": 1}'}}]},
        {"tool_calls": [{"index": 1, "id": "b", "function": {"name": "half", "arguments": '{"x":'}}]},
    ]
    chunks = [{"id": "c", "choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in pieces]
    chunks[-1]["choices"][0]["finish_reason"] = "length"
    body = "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks) + "data: [DONE]\n\n"
    chat.window.route(
        "**/v1/chat/completions", lambda route: route.fulfill(body=body, content_type="text/event-stream"), times=1
    )
    chat.ask("Hello")
    expect(chat.window.locator(".card")).to_have_count(2)
    sent = bodies_of(chat)
    model.says("Go on.")
    chat.ask("And?")
    expect(chat.answers.last).to_have_text("Go on.")
    assert [call["id"] for call in sent[0]["messages"][1]["tool_calls"]] == ["a"]


def test_what_is_being_edited_stays_while_another_answer_is_written(chat: ChatPage, model: Model):
    model.says("First.")
    chat.ask("Hello")
    chat.button("Edit").click()
    field = chat.window.get_by_role("textbox", name="Edit")
    field.fill("Good morning")
    model.says("One two three. Four.", hold_before="Four")
    chat.send("Count")
    expect(chat.answers.last).to_contain_text("three.")
    chat.button("Send as a new branch").click()
    expect(field).to_have_value("Good morning")
    model.go_on()
    chat.wait_until_answered()
    model.says("Good morning to you.")
    chat.button("Send as a new branch").click()
    expect(chat.answers).to_have_text("Good morning to you.")


def test_code_is_copied_where_the_browser_has_no_clipboard_interface(chat: ChatPage, model: Model):
    """As for http from another machine."""
    chat.window.add_init_script("Object.defineProperty(navigator, 'clipboard', { value: undefined })")
    chat.window.reload()
    model.says(CODE)
    chat.ask("How do I double?")
    copy = chat.button("Copy code")
    copy.click()
    expect(copy).to_have_text("Copied")
    copy.click()  # while it still says so
    chat.input.press("Control+V")
    expect(chat.input).to_have_value("def double(x):\n    return 2 * x  # twice\n")
    expect(copy).to_have_text("Copy")
    chat.window.wait_for_timeout(1600)
    expect(copy).to_have_text("Copy")


def test_tables_are_aligned_and_lists_numbered_as_they_say(chat: ChatPage, model: Model):
    model.says("| a | b |\n|---|---:|\n| 1 | 2 |\n\n7. seven\n8. eight")
    chat.ask("A table")
    expect(chat.answers.locator("ol")).to_have_attribute("start", "7")
    ends = chat.answers.locator("td").evaluate_all("(all) => all.map((one) => getComputedStyle(one).textAlign)")
    assert ends == ["start", "-webkit-right"]  # as Chromium names it


def test_a_title_isnt_cut_within_a_character(chat: ChatPage, model: Model):
    model.says("Yes.")
    chat.ask("a" * 58 + "🙂🙂🙂")
    expect(chat.window.locator("#title")).to_have_text("a" * 58 + "🙂…")
