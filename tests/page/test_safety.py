"""What models and people write stays text: nothing of it runs, asks for anything, or leads where it shouldn't."""

from __future__ import annotations

import json

import pytest
from playwright.sync_api import expect

from tests.page.conftest import ChatPage, Model

HOSTILE = [
    "<script>window.hurt = 1</script>",
    "<img src=x onerror='window.hurt = 1'>",
    "<svg onload=window.hurt=1><animate onbegin=window.hurt=1 attributeName=x dur=1s>",
    "<iframe srcdoc='<script>parent.hurt = 1</script>'></iframe>",
    "<math><mtext><table><mglyph><style><img src=x onerror=window.hurt=1>",
    "<details open ontoggle=window.hurt=1>x</details>",
    "<form action=javascript:window.hurt=1><button>x</button></form>",
    "<a href='javascript:window.hurt=1'>a</a>",
    "[b](javascript:window.hurt=1)",
    "[c](JaVaScRiPt:window.hurt=1)",
    "[d](&#106;avascript:window.hurt=1)",
    "[e](data:text/html,<script>window.hurt=1</script>)",
    "[f](vbscript:x) [g](file:///etc/passwd) [h](blob:x) [i](//evil.example/x) [j](/v1/models)",
    "![k](x\" onerror=\"window.hurt=1) ![l](https://evil.example/pixel.png)",
    "[m](https://good.example/ \"t\\\" onmouseover=\\\"window.hurt=1\")",
    "<javascript:window.hurt=1> <https://good.example/auto>",
    "```\"><img src=x onerror=window.hurt=1>\ncode</code></pre><script>window.hurt=1</script>\n```",
    "`<img src=x onerror=window.hurt=1>`",
    "| <img src=x onerror=window.hurt=1> |\n|---|\n| <script>window.hurt=1</script> |",
    "<style>body { display: none }</style><link rel=stylesheet href=https://evil.example/x.css>",
    "<base href=https://evil.example/><meta http-equiv=refresh content='0;url=https://evil.example'>",
    "<div id=input class=unseen style='position:fixed;inset:0'>x</div>",
    "[n]: javascript:window.hurt=1\n\n[n]",
    "- [x] <input onfocus=window.hurt=1 autofocus>",
]  # fmt: skip
ALL = "\n\n".join(HOSTILE)


def assert_inert(chat: ChatPage) -> None:
    """Nothing ran, and what is on the page can't."""
    found = chat.window.evaluate(
        """() => {
          const bad = [];
          for (const node of document.querySelectorAll("#messages *, #conversations *, #title")) {
            for (const { name, value } of node.attributes) {
              if (name.startsWith("on") || name === "srcdoc" || name === "src") bad.push(node.outerHTML);
              if (name === "href" && !/^(https?:|mailto:)/.test(value)) bad.push(node.outerHTML);
              if (name === "style" && node.closest(".markdown")) bad.push(node.outerHTML);
              if (name === "id" && node.closest(".markdown")) bad.push(node.outerHTML);
            }
            if (/^(script|iframe|object|embed|img|style|link|base|meta|form|svg|math)$/.test(node.localName)) {
              bad.push(node.outerHTML);
            }
          }
          return { bad, hurt: window.hurt };
        }"""
    )
    assert found == {"bad": [], "hurt": None}


def test_a_hostile_answer_does_nothing_and_is_shown_as_the_text_it_is(chat: ChatPage, model: Model):
    chat.window.route(
        "**/v1/chat/completions", lambda route: route.fulfill(body=stream_of(ALL), content_type="text/event-stream")
    )
    chat.ask("Hurt me")
    expect(chat.answers).to_contain_text("<script>window.hurt = 1</script>")
    expect(chat.answers).to_contain_text("<img src=x onerror='window.hurt = 1'>")
    assert_inert(chat)
    links = chat.answers.locator("a[href]")
    assert links.count() >= 3
    for link in links.all():
        assert link.get_attribute("rel") == "noopener noreferrer"
        assert link.get_attribute("target") == "_blank"
        assert link.get_attribute("href").startswith(("https://good.example/", "https://evil.example/pixel.png"))


def test_a_hostile_person_thought_call_title_and_result_are_text(chat: ChatPage, model: Model):
    body = stream_of("", thought=ALL, call={"name": HOSTILE[1], "arguments": json.dumps({"a": HOSTILE[0]})})
    chat.window.route(
        "**/v1/chat/completions", lambda route: route.fulfill(body=body, content_type="text/event-stream")
    )
    chat.ask(HOSTILE[1])
    expect(chat.window.locator("#title")).to_have_text(HOSTILE[1])
    expect(chat.window.locator(".tool-name")).to_have_text(HOSTILE[1])
    chat.window.locator(".thought summary").click()
    chat.window.locator(".tool-result").fill(HOSTILE[0])
    chat.button("Send the result").click()
    chat.wait_until_answered()
    assert_inert(chat)


def test_the_sanitiser_alone_would_hold(chat: ChatPage):
    """Even if Markdown's HTML weren't shown as text."""
    left = chat.window.evaluate(
        """async (all) => {
          const { sanitised } = await import("/page/render_markdown.js");
          const place = document.getElementById("messages");
          for (const html of all) place.append(sanitised(html));
          await new Promise((resolve) => setTimeout(resolve, 50));
          return [...place.querySelectorAll("*")].map((node) => node.localName);
        }""",
        HOSTILE,
    )
    assert left
    assert_inert(chat)
    # The sanitiser parses the HTML in a document of its own, where the policy has its say already.
    assert all("Content Security Policy" in problem for problem in chat.problems)
    chat.problems.clear()


def test_text_cant_become_markup_by_any_other_way(chat: ChatPage):
    refused = chat.window.evaluate(
        """() => {
          try {
            document.getElementById("messages").innerHTML = "<b>x</b>";
          } catch (problem) {
            return problem.name;
          }
        }"""
    )
    assert refused == "TypeError"
    chat.problems.clear()  # the console tells of it


@pytest.mark.parametrize("place", ["title", "content", "tokens"])
def test_a_hostile_file_does_nothing(chat: ChatPage, tmp_path, place):
    token = {"text": HOSTILE[1], "logprob": -1, "top": [{"text": HOSTILE[0], "logprob": -2}], "origin": "<b>"}
    answer = {"id": "b", "parent": "a", "role": "assistant", "created": 2, "content": ALL, "finish": "<b>"}
    if place == "tokens":
        answer |= {"content": "x", "tokens": [token], "usage": {"prompt": "<img>", "cached": {}}}
    conversation = {
        "id": "<img>",
        "title": HOSTILE[1] if place == "title" else "Title",
        "leaf": "b",
        "settings": {"system": 5, "temperature": "<b>", "tools": HOSTILE[0], "__proto__": {"hurt": 1}},
        "messages": [{"id": "a", "parent": None, "role": "user", "created": 1, "content": HOSTILE[0]}, answer],
    }
    file = tmp_path / "in.json"
    file.write_text(json.dumps({"form": "kaishu-conversations", "version": 1, "conversations": [conversation]}))
    chat.window.locator("#file").set_input_files(file)
    expect(chat.window.locator("#notice")).to_have_text("The conversation is opened.")
    expect(chat.window.locator("article.user .text")).to_have_text(HOSTILE[0])
    if place == "tokens":
        chat.button("Tokens").click()
        chat.window.locator(".token").hover()
        expect(chat.window.locator(".token-detail li").first).to_contain_text("script")
    assert_inert(chat)


@pytest.mark.parametrize(
    "text",
    [
        "not json",
        "[]",
        "null",
        '{"form": "kaishu-conversations", "version": 2, "conversations": []}',
        '{"form": "kaishu-conversations", "version": 1, "conversations": [{"messages": [{"role": "root"}]}]}',
        '{"form": "kaishu-conversations", "version": 1, "conversations": [null]}',
        # A circle of parents would be followed for ever.
        '{"form": "kaishu-conversations", "version": 1, "conversations": [{"messages": ['
        '{"id": "a", "parent": "b", "role": "user"}, {"id": "b", "parent": "a", "role": "user"}]}]}',
    ],
)
def test_a_file_that_isnt_one_is_refused_with_words(chat: ChatPage, tmp_path, text):
    file = tmp_path / "in.json"
    file.write_text(text)
    chat.window.locator("#file").set_input_files(file)
    expect(chat.window.locator("#notice")).to_contain_text("This file has no conversations that were saved here")
    expect(chat.window.locator(".conversation")).to_have_count(0)


def stream_of(content: str, *, thought: str = "", call: dict | None = None) -> str:
    """A stream as the server sends it, with pieces of seven characters."""
    deltas = [{"reasoning_content": thought[at : at + 7]} for at in range(0, len(thought), 7)]
    deltas += [{"content": content[at : at + 7]} for at in range(0, len(content), 7)]
    if call:
        deltas.append({"tool_calls": [{"index": 0, "id": "call_1", "type": "function", "function": call}]})
    chunks = [
        {"id": "chatcmpl-1", "choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in deltas
    ]
    end = "tool_calls" if call else "stop"
    chunks.append({"id": "chatcmpl-1", "choices": [{"index": 0, "delta": {}, "finish_reason": end}]})
    return "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks) + "data: [DONE]\n\n"


@pytest.mark.parametrize("text", [">" * 20_000, "1. " * 3000], ids=["quotes", "lists"])
def test_nesting_without_end_is_shown_as_it_is_and_hurts_nothing(chat: ChatPage, text):
    chat.window.route(
        "**/v1/chat/completions", lambda route: route.fulfill(body=stream_of(text), content_type="text/event-stream")
    )
    chat.ask("Hurt me")
    expect(chat.answers).to_have_text(text.strip())
    chat.window.reload()
    expect(chat.answers).to_have_text(text.strip())


def test_stars_without_end_are_read_in_time(chat: ChatPage):
    """marked's search for the ends of emphasis takes 20 seconds for these."""
    text = "*a **b " * 3000 + "c** d*" * 3000
    shown = chat.window.evaluate(
        """async (text) => {
          const { Markdown } = await import("/page/render_markdown.js");
          const place = document.createElement("div");
          new Markdown(place).update(text);
          return [place.textContent.trim(), place.querySelectorAll("em, strong").length];
        }""",
        text,
    )
    assert shown == [text, 0]
