/**
 * One message on the page.
 *
 * Owns its element: text, thought, calls, branches and what can be done with it. What is done is chat.js's; a view only
 * calls `acts`.
 */

import { button, element, isSendKey, signButton } from "./elements.js";
import { answerFigures } from "./figures.js";
import { copyText, Markdown } from "./render_markdown.js";
import { text, tokenCount } from "./strings.js";
import { TokenView } from "./token_view.js";
import { ToolCards } from "./tool_cards.js";

const DOUBLE_CLICK_MS = 300; // for so long, a click may be the first of two, which select a word

/** How an answer ended, in words; null where there is nothing to say. */
export function endingOf({ finish, problem }) {
  if (finish === null) return text("interrupted");
  if (finish === "failed") {
    const reason = problem === "" ? text("brokenOff") : (problem ?? ""); // without words: nothing answered, or no more
    return text("finishFailed", { reason }).trimEnd();
  }
  return { length: text("finishLength"), stopped: text("finishStopped") }[finish] ?? null;
}

export class MessageView {
  /**
   * acts: {edit(id, content), regenerate(id), select(id), giveResults(id, results), stopThinking(), record()}
   */
  constructor(message, acts) {
    this.message = message;
    this.acts = acts;
    this.text = element("div", { class: message.role === "assistant" ? "text markdown" : "text plain-text" });
    this.ending = element("p", { class: "ending", hidden: true });
    this.foot = element("div", { class: "foot" });
    this.node = element(
      "article",
      {
        class: `message ${message.role}`,
        "aria-label": text({ user: "you", assistant: "assistant", tool: "toolResult" }[message.role]),
      },
      this.text,
      this.ending,
      this.foot,
    );
    if (message.role === "assistant") this.#makeAnswer();
    else this.text.textContent = message.content;
  }

  #makeAnswer() {
    this.markdown = new Markdown(this.text);
    this.cards = new ToolCards((results) => this.acts.giveResults(this.message.id, results));
    this.text.after(this.cards.node);
    this.text.addEventListener("click", (event) => this.#clicked(event));
    this.summary = element("summary");
    this.thoughtNode = document.createTextNode("");
    this.stopThinking = button(text("stopThinking"), () => this.acts.stopThinking(), { class: "plain", hidden: true });
    const thoughtText = element("div", { class: "thought-text" }, this.thoughtNode);
    const details = element("details", {}, this.summary, thoughtText);
    this.thought = element("div", { class: "thought", hidden: true }, details, this.stopThinking);
    this.node.prepend(this.thought);
  }

  /**
   * Show the message as it is now.
   *
   * place: {siblings, gathering: of its running answer or null, isBusy: an answer of this conversation is running,
   *        isLast: nothing follows on the path}
   */
  update(place) {
    const { message } = this;
    this.place = place;
    if (message.role === "assistant") {
      this.grow(place.gathering);
      this.cards.update(message.toolCalls, message.finish === "tool_calls" && place.isLast && !place.isBusy);
      this.#showEnding(place);
    }
    this.#showFoot(place);
  }

  /** Show what a running answer has more. */
  grow(gathering) {
    const { message } = this;
    this.node.setAttribute("aria-busy", String(Boolean(gathering)));
    this.markdown.update(message.content, Boolean(gathering));
    this.text.classList.toggle("writing", Boolean(gathering && !gathering.isThinking));
    this.#showThought(gathering);
    if (gathering && message.toolCalls.length) this.cards.update(message.toolCalls, false);
    if (this.figures) this.figures.textContent = answerFigures(message).join(" · ");
  }

  #showThought(gathering) {
    const { message } = this;
    const isThinking = Boolean(gathering?.isThinking);
    this.thought.hidden = !message.reasoning;
    this.thought.classList.toggle("running", isThinking);
    const words = text(isThinking ? "thinking" : "thought");
    this.summary.textContent = `${words} · ${tokenCount(message.reasoningTokens)}`;
    this.thoughtNode.appendData(message.reasoning.slice(this.thoughtNode.length)); // it only grows
    if (!isThinking && document.activeElement === this.stopThinking) this.summary.focus();
    this.stopThinking.hidden = !isThinking;
  }

  #showEnding({ gathering }) {
    const words = gathering ? null : endingOf(this.message);
    this.ending.hidden = !words;
    this.ending.classList.toggle("problem", this.message.finish === "failed");
    this.ending.textContent = words ?? "";
  }

  #showFoot({ siblings, gathering, isBusy }) {
    const { message } = this;
    this.figures = null;
    const parts = siblings.length > 1 && !gathering ? [this.#branches(siblings, isBusy)] : [];
    const act = (name, run, attributes = {}) => parts.push(button(text(name), run, { class: "plain", ...attributes }));
    if (message.role === "user" && !this.editor) {
      act("edit", () => this.#edit(), { disabled: isBusy, "data-do": "edit" });
    }
    if (message.role === "assistant") {
      const saysSomething = message.content || message.reasoning || message.toolCalls.length;
      if (!gathering && saysSomething) {
        act("showTokens", () => this.toggleTokens(), {
          "aria-pressed": String(Boolean(this.tokens)),
          "data-do": "tokens",
        });
      }
      if (!gathering) act("regenerate", () => this.acts.regenerate(message.id), { disabled: isBusy });
      this.figures = element("span", { class: "figures" }, answerFigures(message).join(" · "));
    }
    if (!gathering && message.content) {
      const copy = button(text("copy"), () => copyText(message.content, copy), { class: "plain" });
      parts.push(copy);
    }
    const focused = this.foot.contains(document.activeElement) ? document.activeElement.textContent : null;
    this.foot.replaceChildren(...parts, ...(this.figures ? [this.figures] : []));
    if (focused) [...this.foot.querySelectorAll("button")].find((one) => one.textContent === focused)?.focus();
  }

  #branches(siblings, isBusy) {
    const index = siblings.findIndex((one) => one.id === this.message.id);
    const go = (step) => () => this.acts.select(siblings[index + step].id);
    return element(
      "span",
      { class: "branches", role: "group", "aria-label": text("branch", { index: index + 1, count: siblings.length }) },
      signButton("‹", text("previousBranch"), go(-1), { disabled: index === 0 || isBusy }),
      element("span", { class: "count" }, `${index + 1} / ${siblings.length}`),
      signButton("›", text("nextBranch"), go(1), { disabled: index === siblings.length - 1 || isBusy }),
    );
  }

  #edit() {
    const field = element("textarea", { class: "edit", "aria-label": text("edit"), rows: "1", dir: "auto" });
    field.value = this.message.content;
    const close = () => {
      this.editor.remove();
      this.editor = null;
      this.text.hidden = false;
      this.update(this.place);
      this.foot.querySelector("[data-do=edit]").focus();
    };
    const send = () => {
      const content = field.value;
      if (this.place.isBusy || !content.trim()) return; // it stays, to be sent later
      close();
      this.acts.edit(this.message.id, content);
    };
    field.addEventListener("keydown", (event) => {
      if (isSendKey(event)) {
        event.preventDefault();
        send();
      } else if (event.key === "Escape" && !event.isComposing) {
        event.stopPropagation();
        close();
      }
    });
    const row = element(
      "div",
      { class: "row end" },
      button(text("cancel"), close, { class: "plain" }),
      button(text("saveEdit"), send, { class: "seal-button" }),
    );
    this.editor = element("div", { class: "editor" }, field, row);
    this.text.hidden = true;
    this.text.after(this.editor);
    this.#showFoot(this.place);
    field.focus();
  }

  /** A click on the text shows its tokens, unless it selected something or was for a control in it. */
  #clicked(event) {
    clearTimeout(this.clicking);
    const isForSomething = event.target.closest("a, button, pre, summary");
    if (isForSomething || event.detail > 1 || this.place.gathering) return;
    this.clicking = setTimeout(() => {
      if (getSelection().isCollapsed && !this.tokens) this.toggleTokens();
    }, DOUBLE_CLICK_MS);
  }

  /** Change between text and tokens. */
  toggleTokens() {
    if (this.tokens) {
      this.tokens.remove();
      this.tokens = null;
    } else {
      this.tokens = this.message.tokens?.length ? new TokenView(this.message).node : this.#notRecorded();
      this.tokens.addEventListener("keydown", (event) => this.#keyInTokens(event));
      this.foot.before(this.tokens);
    }
    for (const part of [this.text, this.thought, this.cards.node])
      part.classList.toggle("covered", Boolean(this.tokens));
    const control = this.foot.querySelector("[data-do=tokens]");
    control?.setAttribute("aria-pressed", String(Boolean(this.tokens)));
  }

  #keyInTokens(event) {
    if (event.key !== "Escape") return;
    event.stopPropagation();
    this.toggleTokens();
    this.foot.querySelector("[data-do=tokens]")?.focus();
  }

  #notRecorded() {
    return element(
      "div",
      { class: "token-view" },
      element("p", {}, text("tokensNotRecorded")),
      button(text("turnOnRecording"), () => this.acts.record(), { class: "plain" }),
    );
  }
}
