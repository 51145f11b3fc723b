/**
 * The token view: an answer as the tokens it was made of.
 *
 * Owns how they are drawn and gone through. The redder a token's ground, the more it surprised the model; a line below
 * says that it had been guessed ahead, or that nothing else could come. Pointing at a token, or going to it with the
 * arrow keys, shows its alternatives.
 */

import { element } from "./elements.js";
import { language, numeral, text, tokenCount } from "./strings.js";
import { alternatives, named, percent, probability, shownTexts, summary, surprise } from "./tokens.js";

export class TokenView {
  /** message: an answer whose tokens were recorded */
  constructor(message) {
    this.tokens = message.tokens;
    this.detail = element("div", { class: "token-detail", role: "status", hidden: true });
    this.flow = this.#flow();
    this.node = element(
      "div",
      { class: "token-view" },
      this.#legend(message.usage),
      this.flow,
      this.detail,
      element("p", { class: "quiet token-keys" }, text("tokenKeys")),
    );
    this.at = 0;
  }

  #flow() {
    const texts = shownTexts(this.tokens);
    const spans = this.tokens.map((token, index) => {
      const shown = texts[index];
      const span = element(
        "span",
        {
          role: "option",
          class: `token ${token.origin ?? ""}`,
          tabindex: index ? "-1" : "0",
          "aria-selected": "false",
          "aria-label": text("tokenLabel", { token: named(token), probability: percent(probability(token), language) }),
          "data-index": index,
        },
        shown === "" ? element("span", { class: "part" }, "·") : visible(shown),
      );
      span.style.setProperty("--surprise", surprise(token).toFixed(3));
      return span;
    });
    return element(
      "div",
      {
        class: "token-flow",
        role: "listbox",
        "aria-label": text("tokenView"),
        "aria-orientation": "horizontal",
        onkeydown: (event) => this.#key(event),
        onfocusin: (event) => this.#show(event.target),
        onfocusout: () => this.#hide(),
        onpointerover: (event) => this.#show(event.target),
        onpointerleave: () => this.#hide(),
        onclick: (event) => event.target.closest(".token")?.focus(),
      },
      ...spans,
    );
  }

  #legend(usage) {
    const { count, perplexity, guessed, forced } = summary(this.tokens);
    const facts = [
      tokenCount(count),
      text("perplexity", { value: numeral(perplexity, 2) }),
    ];
    const legend = element(
      "div",
      { class: "token-legend" },
      element(
        "span",
        { class: "scale" },
        element("span", {}, text("likely")),
        element("span", { class: "scale-bar", "aria-hidden": "true" }),
        element("span", {}, text("surprising")),
      ),
      ...facts.map((fact) => element("span", {}, fact)),
    );
    const mark = (origin, words) =>
      legend.append(element("span", { class: "origin" }, element("span", { class: `origin-mark ${origin}` }), words));
    if (guessed) mark("guessed", text("guessedLegend", { guessed: numeral(guessed), count: numeral(count) }));
    if (forced) mark("forced", text("forcedLegend", { forced: numeral(forced) }));
    if (usage) legend.append(promptBar(usage));
    return legend;
  }

  #key(event) {
    const last = this.tokens.length - 1;
    const at = Number(event.target.dataset.index); // the mouse may point to another one
    const to = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: last }[event.key] ?? this.#line(event.key, at);
    if (to === null || to === undefined) return;
    event.preventDefault();
    this.flow.children[Math.max(0, Math.min(last, to))].focus();
  }

  /** The token nearest to this one in the next or the last line; null where the key says no such thing. */
  #line(key, at) {
    if (key !== "ArrowDown" && key !== "ArrowUp") return null;
    const here = this.flow.children[at].getBoundingClientRect();
    const step = key === "ArrowDown" ? 1 : -1;
    let best = null;
    for (let index = at + step; this.flow.children[index]; index += step) {
      const there = this.flow.children[index].getBoundingClientRect();
      const lines = Math.abs(there.top - here.top) / here.height;
      if (lines < 0.5) continue;
      if (best && Math.abs(there.top - best.top) > here.height / 2) break;
      const distance = Math.abs(there.left - here.left);
      if (!best || distance < best.distance) best = { index, distance, top: there.top };
    }
    return best?.index ?? null;
  }

  #show(target) {
    const span = target.closest?.(".token");
    if (!span) return;
    const index = Number(span.dataset.index);
    const previous = this.flow.children[this.at];
    previous.tabIndex = -1;
    previous.setAttribute("aria-selected", "false");
    this.at = index;
    span.tabIndex = 0;
    span.setAttribute("aria-selected", "true");
    this.detail.replaceChildren(...this.#details(this.tokens[index], index));
    this.detail.hidden = false;
    this.#place(span);
  }

  #hide() {
    const focused = document.activeElement;
    if (this.flow.contains(focused) && focused.dataset.index) this.#show(focused);
    else this.detail.hidden = true;
  }

  #details(token, index) {
    const rows = alternatives(token).map(({ token: other, isChosen }) => {
      const share = probability(other);
      const bar = element("span", { class: "bar", "aria-hidden": "true" });
      bar.style.setProperty("--share", share.toFixed(4));
      return element(
        "li",
        { class: isChosen ? "chosen" : null },
        element("span", { class: "name" }, named(other)),
        bar,
        element("span", { class: "share" }, percent(share, language)),
        isChosen ? element("span", { class: "unseen" }, text("chosen")) : null,
      );
    });
    const title = text("tokenTitle", { index: numeral(index + 1), count: numeral(this.tokens.length) });
    const made = [
      element("p", { class: "quiet" }, title),
      element("ol", { "aria-label": text("alternatives") }, ...rows),
    ];
    const origins = { sampled: "fromItsStep", guessed: "fromGuess", forced: "fromForce" };
    if (token.origin) made.push(element("p", { class: "quiet" }, text(origins[token.origin])));
    return made;
  }

  /** Below its token, or above where there is no room below, and within the answer's width. */
  #place(span) {
    const box = this.node.getBoundingClientRect();
    const token = span.getClientRects()[0] ?? span.getBoundingClientRect();
    const { offsetWidth: width, offsetHeight: height } = this.detail;
    const left = Math.max(0, Math.min(token.left - box.left, box.width - width));
    const seen = (this.node.closest(".scroll") ?? document.body).getBoundingClientRect();
    const hasRoom = token.bottom + height + 12 < seen.bottom || token.top - height - 12 < seen.top;
    const top = hasRoom ? token.bottom - box.top + 6 : token.top - box.top - height - 6;
    this.detail.style.left = `${left}px`;
    this.detail.style.top = `${top}px`;
  }
}

/** A token's text with its line ends marked. */
function visible(shown) {
  return shown.replaceAll("\n", "↵\n");
}

function promptBar({ prompt, cached }) {
  const words = cached
    ? text("cachedPrompt", { cached: numeral(cached), prompt: numeral(prompt) })
    : text("uncachedPrompt", { prompt: numeral(prompt) });
  const fill = element("span", { class: "cached" });
  fill.style.inlineSize = `${prompt ? (cached / prompt) * 100 : 0}%`;
  const bar = element("span", { class: "prompt-bar", "aria-hidden": "true" }, fill);
  return element(
    "span",
    { class: "prompt-line" },
    element("span", {}, text("prompt")),
    bar,
    element("span", {}, words),
  );
}
