"""The page's modules that need no page: streams however they are cut, trees of messages, Markdown that grows."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.page.conftest import ChatPage

ANSWER = """# Title

Some *words* with a [link][later] and `code`.

- one
- two

  more of two

1. first

   ```python
   x = 1
   ```

> quote
lazy

| a | b |
|---|---|
| 1 | 2 |

    indented

***

Last \u2028 line with 五 and 🙂.

[later]: https://example.org/
"""


@pytest.fixture(scope="module")
def module_page(browser, server):
    """A page for all of these tests, since they leave nothing behind on it."""
    context = browser.new_context()
    yield ChatPage(context, server.url).open()
    context.close()


def run(page: ChatPage, module: str, code: str, value: Any = None) -> Any:
    """Evaluate code with the module's exports as `m` and the value as `v`."""
    return page.window.evaluate(
        f"async (v) => {{ const m = await import('/page/{module}.js'); {code} }}",
        value,
    )


@pytest.mark.parametrize("line_end", ["\n", "\r\n", "\r"])
def test_events_are_the_same_however_the_bytes_are_cut(module_page: ChatPage, line_end):
    said = ['{"a":"五🙂"}', "two\nlines", "[DONE]"]
    events = "".join("".join(f"data: {line}\n" for line in one.split("\n")) + "\n" for one in said)
    raw = list((": comment\nevent: x\n" + events.replace("data: [", "data:[")).replace("\n", line_end).encode())
    found = run(
        module_page,
        "event_stream",
        """
        const all = [];
        for (let size = 1; size <= v.length; size += 1) {
          const stream = new ReadableStream({
            start(controller) {
              for (let at = 0; at < v.length; at += size) controller.enqueue(Uint8Array.from(v.slice(at, at + size)));
              controller.close();
            },
          });
          const events = [];
          for await (const data of m.eventData(stream)) events.push(data);
          all.push(JSON.stringify(events));
        }
        return [...new Set(all)];
        """,
        raw,
    )
    assert [json.loads(one) for one in found] == [said]


def test_markdown_that_grew_is_what_it_is_at_once(module_page: ChatPage):
    grown, whole = run(
        module_page,
        "render_markdown",
        """
        const show = (steps) => {
          const place = document.createElement("div");
          const markdown = new m.Markdown(place);
          for (const step of steps) markdown.update(step, step.length < v.length);
          return place.innerHTML;
        };
        return [show(Array.from({ length: v.length }, (_, index) => v.slice(0, index + 1))), show([v])];
        """,
        ANSWER,
    )
    assert grown == whole
    assert 'href="https://example.org/"' in whole


def test_blocks_that_dont_change_stay_the_nodes_they_are(module_page: ChatPage):
    """So a selection in them, and the place where a person reads, survive what comes after."""
    kept = run(
        module_page,
        "render_markdown",
        """
        const place = document.createElement("div");
        const markdown = new m.Markdown(place);
        markdown.update("First.\\n\\nSecond", true);
        const first = place.firstElementChild;
        markdown.update("First.\\n\\nSecond and\\n\\nthird.", true);
        markdown.update("First.\\n\\nSecond and\\n\\nthird.", false);
        return [first === place.firstElementChild, place.textContent];
        """,
    )
    assert kept == [True, "First.\nSecond and\nthird.\n"]


def test_a_tree_keeps_what_was_and_shows_one_path(module_page: ChatPage):
    messages = [
        {"id": "1", "parent": None, "created": 1},
        {"id": "2", "parent": "1", "created": 2},
        {"id": "3", "parent": "1", "created": 3},
        {"id": "4", "parent": "2", "created": 4},
        {"id": "5", "parent": None, "created": 5},
    ]
    found = run(
        module_page,
        "tree",
        """
        const ids = (all) => all.map((one) => one.id).join("");
        const tree = new m.Tree(v, "3");
        const seen = [ids(tree.path()), ids(tree.siblings("3")), ids(tree.siblings("5"))];
        tree.select("2");
        seen.push(ids(tree.path()));
        tree.add({ id: "6", parent: "4", created: 6 });
        tree.select("1");
        seen.push(ids(tree.path()));
        tree.remove("6");
        seen.push(ids(tree.path()), ids(new m.Tree(v, "gone").path()), ids(new m.Tree().path()));
        return seen;
        """,
        messages,
    )
    assert found == ["13", "23", "15", "124", "1246", "124", "5", ""]


@pytest.mark.parametrize(
    "probability, shown",
    [(1.0, "100 %"), (0.9999, "100 %"), (0.973, "97.3 %"), (0.0312, "3.12 %"), (0.00004, "< 0.01 %"), (0.0, "0 %")],
)
def test_probabilities_are_short_and_never_a_zero_that_isnt(module_page: ChatPage, probability, shown):
    assert run(module_page, "tokens", "return m.percent(v, 'en');", probability) == shown


def test_settings_from_anywhere_are_made_ones_that_the_server_takes(module_page: ChatPage):
    odd = {"temperature": 99, "topP": "1", "topK": 2.5, "seed": -1, "thinking": "maybe", "system": None, "maxTokens": 5}
    cleaned = run(module_page, "settings", "return m.cleanSettings(v);", odd)
    assert cleaned == run(module_page, "settings", "return { ...m.DEFAULTS, maxTokens: 5 };")


def test_a_function_alone_is_a_tool_too(module_page: ChatPage):
    function = {"name": "now", "parameters": {"type": "object"}}
    tools = run(module_page, "settings", "return m.readTools(v);", json.dumps(function))
    assert tools == [{"type": "function", "function": function}]
