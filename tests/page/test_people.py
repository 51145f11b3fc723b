"""Whoever uses it: by keyboard, with an input method, with a screen reader, in Chinese, in the dark, on a phone."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from playwright.sync_api import expect

from kaishu.server.settings import ServerSettings
from tests.page.conftest import ChatPage, Model
from tests.page.test_safety import stream_of
from tests.server.conftest import live, service_on

AXE = Path(__file__).parent / "vendor" / "axe.min.js"
KEY = "a-key-for-the-tests-of-the-page"


def focused(chat: ChatPage) -> str:
    """The name of what has the focus."""
    return chat.window.evaluate(
        """() => {
          const at = document.activeElement;
          return at.getAttribute("aria-label") ?? at.textContent.trim();
        }"""
    )


def test_everything_is_done_with_the_keyboard(chat: ChatPage, model: Model):
    keys = chat.window.keyboard
    expect(chat.input).to_be_focused()
    model.says("First.")
    keys.type("Hello")
    keys.press("Shift+Enter")
    keys.type("you")
    keys.press("Enter")
    chat.wait_until_answered()
    expect(chat.window.locator("article.user .text")).to_have_text("Hello\nyou")
    expect(chat.input).to_be_focused()
    names = []
    while "Answer again" not in names:
        keys.press("Shift+Tab")
        names.append(focused(chat))
        assert len(names) < 5
    model.says("Second.")
    keys.press("Enter")
    expect(chat.answers).to_have_text("Second.")
    chat.wait_until_answered()
    chat.button("Edit").focus()
    keys.press("Enter")
    keys.press("Escape")
    expect(chat.button("Edit")).to_be_focused()


def test_escape_stops(chat: ChatPage, model: Model, server):
    model.says("One two three. Four.", hold_before="Four")
    chat.send("Count")
    expect(chat.answers).to_contain_text("three.")
    chat.window.keyboard.press("Escape")
    expect(chat.window.locator(".assistant .ending")).to_have_text("Stopped here.")
    model.go_on()
    server.wait_until_idle()


def test_the_first_tab_stop_leads_past_the_list(chat: ChatPage):
    first = chat.window.locator("a[href], button, input, textarea").first
    expect(first).to_have_text("Skip to the message field")
    first.focus()
    expect(first).to_be_in_viewport()
    chat.window.keyboard.press("Enter")
    expect(chat.input).to_be_focused()


def test_enter_belongs_to_the_input_method_while_it_composes(chat: ChatPage, model: Model):
    chat.input.fill("ni hao")
    for options in ({"isComposing": True}, {"keyCode": 229}):
        chat.input.dispatch_event("keydown", {"key": "Enter", "bubbles": True, **options})
    expect(chat.window.locator("article")).to_have_count(0)
    expect(chat.input).to_have_value("ni hao")
    model.says("你好！")
    chat.input.press("Enter")
    expect(chat.answers).to_have_text("你好！")


def test_a_chinese_browser_gets_chinese(open_page, model: Model):
    chat = open_page(locale="zh-CN")
    expect(chat.window.locator("html")).to_have_attribute("lang", "zh-CN")
    expect(chat.button("发送")).to_be_visible()
    model.says("<think>\n嗯。\n</think>\n\n你好！")
    chat.ask("你好")
    expect(chat.window.locator(".thought summary")).to_contain_text("思考 ·")
    assert not chat.window.evaluate("/[A-Za-z]{4,}/.exec(document.querySelector('.side-foot').textContent)")


@pytest.mark.parametrize(
    "languages, chosen",
    [(["zh-TW", "en"], "zh"), (["de", "en", "zh"], "en"), (["fr"], "en"), (["ja", "zh-Hans"], "zh"), ([], "en")],
)
def test_the_browsers_first_language_that_is_known_is_chosen(chat: ChatPage, languages, chosen):
    found = chat.window.evaluate(
        "async (wanted) => (await import('/page/strings.js')).chosenLanguage(wanted)", languages
    )
    assert found == chosen


def test_dark_follows_the_system_until_the_person_chooses(open_page):
    chat = open_page(color_scheme="dark")

    def brightness() -> float:
        return chat.window.evaluate(
            "getComputedStyle(document.documentElement).backgroundColor.match(/\\d+/g).slice(0, 3)"
            ".reduce((sum, value) => sum + Number(value), 0) / 765"
        )

    switch = chat.window.locator("#theme")
    expect(switch).to_have_attribute("aria-label", "Light or dark: as the system")
    assert brightness() < 0.2
    switch.click()
    expect(switch).to_have_attribute("aria-label", "Light or dark: light")
    assert brightness() > 0.8
    chat.window.reload()
    expect(switch).to_have_attribute("aria-label", "Light or dark: light")
    assert brightness() > 0.8


@pytest.mark.parametrize("locale", ["en-GB", "zh-CN"])
def test_nothing_sticks_out_at_320_pixels(open_page, model: Model, locale):
    chat = open_page(viewport={"width": 320, "height": 640}, locale=locale)
    code, table = "x = 1 + " * 40, f"|{' wide cell |' * 20}\n|{'---|' * 20}"
    wide = f"A {'long' * 60}\n\n```python\n{code}\n```\n\n{table}\n\nhttps://example.org/{'a' * 200}"
    body = stream_of(wide)
    chat.window.route(
        "**/v1/chat/completions", lambda route: route.fulfill(body=body, content_type="text/event-stream"), times=1
    )
    chat.ask("b" * 300)

    def assert_fits() -> None:
        width = chat.window.evaluate(
            "Math.max(document.documentElement.scrollWidth, document.getElementById('scroll').scrollWidth)"
        )
        assert width <= 320

    assert_fits()
    chat.window.locator("#open-side").click()
    chat.window.locator("#new").click()
    model.says("It is a word and another word.")
    chat.ask("c")
    chat.window.locator("[data-do=tokens]").click()
    chat.window.locator(".token").nth(5).focus()
    assert_fits()
    chat.window.locator("#open-settings").click()
    assert_fits()
    chat.window.locator("#close-settings").click()
    chat.window.locator("#open-side").click()
    expect(chat.window.locator("#new")).to_be_focused()
    assert_fits()
    chat.window.keyboard.press("Escape")
    expect(chat.window.locator("#open-side")).to_be_focused()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_to_complain_of(open_page, model: Model, scheme):
    """axe-core's rules for WCAG 2.2 A and AA, with everything open that can be."""
    chat = open_page(color_scheme=scheme, bypass_csp=True)  # for axe itself, which is put into the page
    model.says(
        "<think>\nHm.\n</think>\n\n# Title\n\nA [link](https://example.org) and `code`.\n\n```python\n"
        "# comment\ndef f(x: int) -> str:\n    return 'a' + str(1)\n```\n\n> quote\n\n|a|b|\n|---|---|\n|1|2|"
    )
    chat.ask("Show me")
    model.says("Again.")
    chat.button("Answer again").click()
    chat.wait_until_answered()
    chat.button("Previous branch").click()
    chat.window.locator(".thought summary").click()
    chat.button("Settings").click()
    chat.window.get_by_label("Top p", exact=True).fill("7")
    assert_accessible(chat)
    chat.button("Tokens").click()
    chat.window.locator(".token").nth(3).focus()
    assert_accessible(chat)


def assert_accessible(chat: ChatPage) -> None:
    chat.window.evaluate(AXE.read_text(encoding="utf-8"))
    found = chat.window.evaluate(
        "async () => (await axe.run({ runOnly: ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa', 'wcag22aa'] })).violations"
    )
    assert not [(one["id"], [node["html"][:200] for node in one["nodes"]][:3]) for one in found]


def test_an_answer_is_announced_paragraph_by_paragraph(chat: ChatPage, model: Model):
    region = chat.window.locator("#announcer")
    expect(region).to_have_attribute("aria-live", "polite")
    model.says("The first part.\n\nThe second part.", hold_before=" part.")
    chat.send("Go")
    expect(region.locator("p")).to_have_text(["The answer is being written."])
    model.go_on()
    chat.wait_until_answered()
    expect(region.locator("p")).to_have_text(
        ["The answer is being written.", "The first part.", "The second part.", "The answer is complete."]
    )


def test_a_server_with_keys_is_asked_with_the_one_that_the_person_gives(open_page, model: Model, loaded_tiny, tmp_path):
    file = tmp_path / "keys"
    file.write_text(KEY)
    file.chmod(0o600)
    settings = ServerSettings(port=0, api_keys_file=file)
    loaded = replace(loaded_tiny, executor=model)
    with live(service_on(loaded, speculation=False), settings) as server:
        chat = open_page(url=server.url, waits=False)
        dialog = chat.window.get_by_role("dialog", name="API key")
        dialog.get_by_label("Key").fill("another-key-than-the-right-one")
        chat.button("Use this key").click()
        expect(dialog.get_by_role("alert")).to_have_text("The server doesn't know this key.")
        dialog.get_by_label("Key").fill(KEY)
        chat.button("Use this key").click()
        expect(dialog).to_be_hidden()
        expect(chat.window.locator("#model")).to_have_text("tiny")
        model.says("Welcome.")
        chat.ask("Hello")
        expect(chat.answers).to_have_text("Welcome.")
        kept = chat.window.evaluate("[JSON.stringify({...localStorage}), JSON.stringify({...sessionStorage})]")
        assert KEY not in kept[0]
        assert KEY in kept[1]
        chat.window.evaluate("sessionStorage.clear()")
        model.says("Still here.")
        chat.send("Again")
        dialog.get_by_label("Key").fill(KEY)
        chat.button("Use this key").click()
        expect(chat.answers.last).to_have_text("Still here.")
        chat.problems = [one for one in chat.problems if "401" not in one]


@pytest.mark.parametrize("options", [{"isComposing": True}, {"keyCode": 229}], ids=["composing", "safari"])
def test_no_field_sends_while_an_input_method_composes(chat: ChatPage, model: Model, options):
    enter = {"key": "Enter", "bubbles": True, **options}
    model.says('<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>')
    chat.button("Settings").click()
    chat.window.locator("#setting-tools").fill('{"name": "f"}')
    chat.ask("Hello")
    result = chat.window.get_by_role("textbox", name="Result of f")
    result.fill("ni hao")
    result.dispatch_event("keydown", enter)
    chat.button("Edit").click()
    chat.window.get_by_role("textbox", name="Edit").dispatch_event("keydown", enter)
    expect(chat.window.get_by_role("textbox", name="Edit")).to_be_visible()
    chat.button("Rename").click()
    title = chat.window.get_by_role("textbox", name="New title")
    title.dispatch_event("keydown", enter)
    expect(title).to_be_visible()
    expect(chat.window.locator("article")).to_have_count(2)


def test_the_focus_goes_where_there_is_something_to_do(chat: ChatPage, model: Model):
    model.says("First.")
    chat.ask("Hello")
    model.says("One two three. Four.", hold_before="Four")
    chat.button("Answer again").focus()
    chat.window.keyboard.press("Enter")
    expect(chat.button("Stop")).to_be_focused()
    model.go_on()
    chat.wait_until_answered()
    expect(chat.input).to_be_focused()
    chat.button("Edit").click()
    chat.button("Cancel").click()
    expect(chat.button("Edit")).to_be_focused()


def test_what_lies_over_the_conversation_keeps_the_keyboard(open_page, model: Model):
    chat = open_page(viewport={"width": 400, "height": 700})
    model.says("One two three. Four.", hold_before="Four")
    chat.send("Count")
    expect(chat.answers).to_contain_text("three.")
    for opener, place in (("#open-side", "#side"), ("#open-settings", "#settings")):
        chat.window.locator(opener).click()
        for _ in range(30):
            chat.window.keyboard.press("Tab")
            assert chat.window.evaluate(
                "(place) => document.activeElement.closest(`${place}, body`).matches(`${place}, body`)", place
            )
            assert not chat.window.evaluate("Boolean(document.activeElement.closest('main'))")
        chat.window.keyboard.press("Escape")  # closes what is open before it stops anything
        expect(chat.window.locator(opener)).to_be_focused()
    expect(chat.button("Stop")).to_be_visible()
    model.go_on()
    chat.wait_until_answered()


def test_another_conversation_isnt_read_out_and_a_failure_is_no_answer(chat: ChatPage, model: Model):
    region = chat.window.locator("#announcer")
    model.says("An answer of before.")
    chat.ask("Before")
    model.says("One two three. Four.", hold_before="Four")
    chat.button("New conversation").click()
    chat.send("Count")
    expect(chat.answers).to_contain_text("three.")
    said = region.locator("p").count()
    chat.window.locator(".conversation", has_text="Before").click()
    expect(chat.answers).to_have_text("An answer of before.")
    chat.window.wait_for_timeout(100)
    assert region.locator("p").count() == said
    chat.window.locator(".conversation", has_text="Count").click()
    model.go_on()
    chat.wait_until_answered()
    expect(region.locator("p").last).to_have_text("The answer is complete.")
    chat.window.route("**/v1/chat/completions", lambda route: route.abort())
    chat.ask("And?")
    expect(region.locator("p").last).to_have_text("This answer failed. The connection broke off.")
    chat.problems.clear()  # the console tells of it


def test_a_server_with_keys_lets_a_person_without_one_read_what_is_here(open_page, model: Model):
    chat = open_page()
    model.says("Yes.")
    chat.ask("Hello")
    refusal = {"error": {"message": "No.", "code": "invalid_api_key"}}
    chat.window.route("**/v1/models", lambda route: route.fulfill(status=401, json=refusal), times=2)
    chat.window.reload()
    dialog = chat.window.get_by_role("dialog", name="API key")
    expect(dialog).to_be_visible()
    chat.window.keyboard.press("Escape")
    expect(dialog).to_be_hidden()
    expect(chat.answers).to_have_text("Yes.")
    expect(chat.window.locator("#notice")).to_contain_text("This server asks for an API key.")
    chat.button("Enter a key").click()
    dialog.get_by_label("Key").fill("密钥")  # can't be sent in a header
    chat.button("Use this key").click()
    expect(dialog.get_by_role("alert")).to_have_text("The server doesn't know this key.")
    dialog.get_by_label("Key").fill("right")
    chat.button("Use this key").click()
    expect(chat.window.locator("#model")).to_have_text("tiny")
    expect(chat.window.locator("#notice")).to_be_empty()
    chat.problems = [one for one in chat.problems if "401" not in one]


def test_nothing_moves_where_a_person_wants_no_motion(open_page, model: Model):
    chat = open_page(reduced_motion="reduce")
    model.says("One two three. Four.", hold_before="Four")
    chat.send("Count")
    stroke = chat.window.locator(".writing > p")
    expect(stroke).to_contain_text("three.")
    assert stroke.evaluate("(node) => getComputedStyle(node, '::after').animationName") == "none"
    model.go_on()
    chat.wait_until_answered()


def test_all_of_a_conversation_is_printed_and_nothing_else(open_page):
    chat = open_page(color_scheme="dark")
    body = stream_of("\n\n".join(f"Paragraph {number}." for number in range(120)))
    chat.window.route(
        "**/v1/chat/completions", lambda route: route.fulfill(body=body, content_type="text/event-stream")
    )
    chat.ask("Much, please")
    assert len(re.findall(rb"/Type /Page\b", chat.window.pdf())) > 2
    chat.window.emulate_media(media="print")
    for hidden in ("#side", "#composer", ".foot", "#open-settings"):
        expect(chat.window.locator(hidden).first).to_be_hidden()
    expect(chat.window.locator("#title")).to_be_visible()
    ink = chat.window.evaluate("getComputedStyle(document.body).color.match(/\\d+/g).map(Number)")
    assert max(ink) < 100


def test_what_is_written_from_right_to_left_stands_so(chat: ChatPage, model: Model):
    model.says("مرحبا.\n\n- عنصر\n\nEnglish.\n\n```\ncode\n```")
    chat.ask("مرحبا")
    blocks = chat.answers.locator(":scope > *")
    directions = blocks.evaluate_all("(all) => all.map((one) => getComputedStyle(one).direction)")
    assert directions == ["rtl", "rtl", "ltr", "ltr"]
    for name in ("#title", ".conversation"):
        assert chat.window.locator(name).evaluate("(node) => getComputedStyle(node).direction") == "rtl"
    chat.input.fill("مرحبا")
    assert chat.input.evaluate("(node) => getComputedStyle(node).direction") == "rtl"


def test_thinking_is_named_as_a_setting_and_as_what_happens(open_page):
    chat = open_page(locale="zh-CN")
    chat.button("设置").click()
    expect(chat.window.locator("legend")).to_have_text(["系统提示词", "思考", "采样", "词元视图", "工具"])


def test_a_large_zoom_leaves_room_to_read(open_page, model: Model):
    chat = open_page(viewport={"width": 320, "height": 256})  # 1280 × 1024 at 400 %
    model.says("Yes.")
    chat.ask("Hello")
    assert chat.window.locator("#scroll").bounding_box()["height"] > 256 / 2
    chat.window.locator("#open-side").click()
    chat.button("Delete").scroll_into_view_if_needed()
    expect(chat.button("Delete")).to_be_in_viewport(ratio=1)
