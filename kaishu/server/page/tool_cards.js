/**
 * Tool calls of an answer, as cards; the person can be the tool.
 *
 * Owns the cards and the form for results. What becomes of results is chat.js's.
 */

import { button, element, isSendKey } from "./elements.js";
import { text } from "./strings.js";

/** Arguments as people read JSON; as they are where they aren't JSON (yet). */
export function pretty(argumentsText) {
  try {
    return JSON.stringify(JSON.parse(argumentsText), null, 2);
  } catch {
    return argumentsText;
  }
}

export class ToolCards {
  /** give: (results) → nothing, called with one text for each call */
  constructor(give) {
    this.give = give;
    this.node = element("div", { class: "cards" });
    this.cards = [];
  }

  /** calls: so far. wantsResults: whether the answer is over and nothing was given yet */
  update(calls, wantsResults) {
    calls.forEach((call, index) => {
      this.cards[index] ??= this.#card(index);
      const card = this.cards[index];
      card.name.textContent = call.name;
      card.node.setAttribute("aria-label", text("toolCall", { name: call.name }));
      card.arguments.textContent = pretty(call.arguments);
      card.field.setAttribute("aria-label", text("toolResultFor", { name: call.name }));
      card.field.hidden = !wantsResults;
    });
    this.#sending(wantsResults && calls.length > 0);
  }

  #card(index) {
    const name = element("strong", { class: "tool-name" });
    const given = element("pre", {
      class: "tool-arguments",
      tabindex: "0",
      "aria-label": text("toolArguments"),
      role: "region",
    });
    const field = element("textarea", {
      rows: "2",
      class: "tool-result",
      placeholder: text("toolResultPlaceholder"),
      onkeydown: (event) => {
        if (!isSendKey(event)) return;
        event.preventDefault();
        this.#send();
      },
    });
    const head = element(
      "div",
      { class: "tool-head" },
      element("span", { class: "tool-sign", "aria-hidden": "true" }, "ƒ"),
      name,
    );
    const node = element("section", { class: "card" }, head, given, field);
    this.node.insertBefore(node, this.node.children[index] ?? null);
    return { node, name, arguments: given, field };
  }

  #sending(isShown) {
    if (!isShown) {
      this.row?.remove();
      this.row = null;
      return;
    }
    if (this.row) return;
    const words = text(this.cards.length > 1 ? "sendManyResults" : "sendResults");
    this.row = element(
      "div",
      { class: "row" },
      button(words, () => this.#send(), { class: "seal-button" }),
    );
    this.node.append(this.row);
  }

  #send() {
    const missing = this.cards.find((card) => !card.field.value.trim());
    if (missing) missing.field.focus();
    else this.give(this.cards.map((card) => card.field.value));
  }
}
