"""The token view: every token with its probability, its alternatives, and what speculation and the cache did for it."""

from __future__ import annotations

import json
import math

import pytest
from playwright.sync_api import Route, expect

from tests.page.conftest import ChatPage, Model
from tests.page.test_safety import stream_of

TEXT = "Two and three\nmake 五 🙂."


@pytest.fixture
def answered(chat: ChatPage, model: Model) -> ChatPage:
    model.certainty = lambda rng: 12.0
    model.says(TEXT)
    chat.ask("2+3?")
    return chat


def test_a_click_on_an_answer_shows_its_tokens_and_they_add_up_to_it(answered: ChatPage):
    answered.answers.click()
    flow = answered.window.locator(".token-flow")
    said = flow.evaluate("(node) => node.textContent")
    assert said.replace("↵", "").replace("·", "") == TEXT
    expect(answered.answers).to_be_hidden()
    expect(answered.button("Tokens")).to_have_attribute("aria-pressed", "true")
    answered.button("Tokens").click()
    expect(answered.answers).to_be_visible()


def test_colour_and_numbers_are_the_probabilities_that_the_server_gave(chat: ChatPage):
    entries = [
        {"token": "Yes", "logprob": math.log(0.5), "bytes": [89, 101, 115], "top_logprobs": [
            {"token": "No", "logprob": math.log(0.5), "bytes": [78, 111]},
        ]},
        {"token": "\ufffd", "logprob": 0.0, "bytes": [0xF0, 0x9F, 0x99], "top_logprobs": []},
        {"token": "\ufffd", "logprob": -0.0001, "bytes": [0x82], "top_logprobs": []},
        {"token": "\n", "logprob": math.log(1 / 64), "bytes": [10], "top_logprobs": []},
    ]  # fmt: skip
    chunk = {
        "id": "chatcmpl-1",
        "choices": [{"index": 0, "delta": {"content": "Yes🙂\n"}, "logprobs": {"content": entries}}],
        "kaishu": {},
    }
    chunk["choices"][0]["kaishu"] = {"origins": ["sampled", "guessed", "guessed", "forced"]}
    usage = {"prompt_tokens": 40, "completion_tokens": 4, "prompt_tokens_details": {"cached_tokens": 32}}
    body = f"data: {json.dumps(chunk)}\n\n" + stream_of("").replace(
        "data: [DONE]", f"data: {json.dumps({'choices': [], 'usage': usage})}\n\ndata: [DONE]"
    )
    chat.window.route(
        "**/v1/chat/completions", lambda route: route.fulfill(body=body, content_type="text/event-stream")
    )
    chat.ask("?")
    chat.button("Tokens").click()
    tokens = chat.window.locator(".token")
    assert tokens.evaluate_all("(all) => all.map((one) => one.textContent)") == ["Yes", "·", "🙂", "↵\n"]
    surprise = tokens.evaluate_all("(all) => all.map((one) => Number(one.style.getPropertyValue('--surprise')))")
    assert surprise == pytest.approx([math.log(2) / math.log(64), 0, 0, 1], abs=0.001)
    names = tokens.evaluate_all("(all) => all.map((one) => one.getAttribute('aria-label'))")
    assert names == ["Yes, 50 %", "F0 9F 99, 100 %", "82, 100 %", "↵, 1.56 %"]
    expect(chat.window.locator(".token.guessed")).to_have_count(2)
    expect(chat.window.locator(".token.forced")).to_have_count(1)
    legend = chat.window.locator(".token-legend")
    expect(legend).to_contain_text("guessed ahead: 2 of 4")
    expect(legend).to_contain_text("forced: 1")
    expect(legend).to_contain_text("32 of 40 tokens of the prompt were in the cache")
    perplexity = math.exp((math.log(2) + 0.0001 + math.log(64)) / 4)
    expect(legend).to_contain_text(f"perplexity {perplexity:.2f}")
    tokens.first.hover()
    rows = chat.window.locator(".token-detail li")
    expect(rows).to_have_count(2)
    expect(rows.first).to_contain_text("50 %")
    expect(chat.window.locator(".token-detail .chosen .name")).to_have_text("Yes")
    expect(chat.window.locator(".token-detail")).to_contain_text("Computed in a step of its own")


def test_hover_and_focus_show_five_alternatives_and_arrow_keys_go_on(answered: ChatPage):
    answered.button("Tokens").click()
    detail = answered.window.locator(".token-detail")
    tokens = answered.window.locator(".token")
    tokens.nth(1).hover()
    expect(detail.locator("li")).to_have_count(5)
    expect(detail).to_contain_text("Token 2 of")
    expect(detail).to_contain_text("Computed in a step of its own")  # as this server's chunks tell
    answered.window.mouse.move(5, 5)
    expect(detail).to_be_hidden()
    tokens.first.focus()
    answered.window.keyboard.press("ArrowRight")
    expect(tokens.nth(1)).to_be_focused()
    expect(detail).to_contain_text("Token 2 of")
    answered.window.keyboard.press("End")
    expect(tokens.last).to_be_focused()
    answered.window.keyboard.press("ArrowUp")
    expect(tokens.last).not_to_be_focused()
    answered.window.keyboard.press("Home")
    expect(tokens.first).to_be_focused()
    answered.window.keyboard.press("Escape")
    expect(answered.window.locator(".token-view")).to_have_count(0)
    expect(answered.button("Tokens")).to_be_focused()


def test_where_no_origins_were_told_nothing_is_said_of_them(chat: ChatPage, model: Model):
    """Chunks of other servers have no `kaishu`."""

    def without(route: Route) -> None:
        answer = route.fetch()
        chunks = [json.loads(line[6:]) for line in answer.text().splitlines() if line.startswith("data: {")]
        for chunk in chunks:
            for choice in chunk["choices"]:
                choice.pop("kaishu", None)
        lines = "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks)
        route.fulfill(body=f"{lines}data: [DONE]\n\n", content_type="text/event-stream")

    chat.window.route("**/v1/chat/completions", without)
    model.says("Yes.")
    chat.ask("?")
    chat.button("Tokens").click()
    chat.window.locator(".token").first.hover()
    expect(chat.window.locator(".token-detail li").first).to_be_visible()
    expect(chat.window.locator(".token-view")).not_to_contain_text("guessed")
    expect(chat.window.locator(".token-detail")).not_to_contain_text("step")


def test_an_answer_without_tokens_says_how_to_have_them(chat: ChatPage, model: Model):
    chat.button("Settings").click()
    chat.window.get_by_role("checkbox").uncheck()
    model.says("Yes.", "No.")
    chat.ask("?")
    chat.button("Tokens").click()
    expect(chat.window.locator(".token-view")).to_contain_text("weren't recorded")
    chat.button("Switch it on").click()
    expect(chat.window.get_by_role("checkbox")).to_be_checked()
    chat.ask("Again?")
    chat.button("Tokens").last.click()
    expect(chat.window.locator(".token").first).to_be_visible()


def test_selecting_text_or_following_a_link_doesnt_open_it(chat: ChatPage, model: Model):
    model.says("Some words and `code`.\n\n```\nblock\n```")
    chat.ask("?")
    chat.answers.locator("p").first.dblclick()
    expect(chat.window.locator(".token-view")).to_have_count(0)
    chat.window.evaluate("getSelection().removeAllRanges()")
    chat.answers.locator("pre").click()
    expect(chat.window.locator(".token-view")).to_have_count(0)


def test_alternatives_are_seen_whole_wherever_the_token_stands(answered: ChatPage):
    for question in ("And?", "More?", "Still?"):
        answered.ask(question)
    answered.button("Tokens").last.click()
    answered.window.locator(".token").first.focus()
    answered.window.locator("#scroll").evaluate("(node) => { node.scrollTop = 1e6; }")
    answered.window.locator(".token").last.focus()
    detail = answered.window.locator(".token-detail").bounding_box()
    seen = answered.window.locator("#scroll").bounding_box()
    assert detail["y"] >= seen["y"]
    assert detail["y"] + detail["height"] <= seen["y"] + seen["height"]


def test_arrow_keys_go_on_from_the_focus_wherever_the_mouse_is(answered: ChatPage):
    answered.button("Tokens").click()
    tokens = answered.window.locator(".token")
    tokens.first.focus()
    tokens.nth(4).hover()
    answered.window.keyboard.press("ArrowRight")
    expect(tokens.nth(1)).to_be_focused()
