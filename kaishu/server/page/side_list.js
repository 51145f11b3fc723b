/**
 * The list of conversations at the side.
 *
 * Owns its elements, the search, renaming in place. What is done with a conversation is main.js's, through `acts`.
 */

import { button, element, isSendKey } from "./elements.js";
import { text } from "./strings.js";

export class SideList {
  /** acts: {open(id), rename(id, title), remove(id), exportJson(id), exportMarkdown(id), search(matches) → ids} */
  constructor(list, searchField, acts) {
    this.list = list;
    this.field = searchField;
    this.acts = acts;
    this.conversations = [];
    this.current = null;
    this.renaming = null;
    this.found = null;
    searchField.addEventListener("input", () => this.#search());
  }

  /** conversations: the latest first. current: the id of the one that is shown */
  show(conversations, current) {
    this.conversations = conversations;
    this.current = current;
    this.#draw();
  }

  async #search() {
    const wanted = this.field.value.trim().toLowerCase();
    const has = (words) => words.toLowerCase().includes(wanted);
    const found = wanted ? await this.acts.search((message) => has(message.content)) : null;
    if (this.field.value.trim().toLowerCase() !== wanted) return; // more was typed meanwhile
    this.found =
      found && new Set([...found, ...this.conversations.filter((one) => has(one.title)).map((one) => one.id)]);
    this.#draw();
  }

  #draw() {
    if (this.list.querySelector("input")) return; // a title is being typed; `end` draws
    const focused = this.list.contains(document.activeElement) ? document.activeElement.dataset.focus : null;
    const shown = this.conversations.filter((one) => !this.found || this.found.has(one.id));
    const empty = text(this.found ? "nothingFound" : "noConversations");
    const items = shown.length
      ? shown.map((conversation) => this.#item(conversation))
      : [element("li", { class: "quiet" }, empty)];
    this.list.replaceChildren(...items);
    if (focused) this.list.querySelector(`[data-focus="${focused}"]`)?.focus();
  }

  #item(conversation) {
    const { id } = conversation;
    if (this.renaming === id) return element("li", {}, this.#renameField(conversation));
    const isCurrent = id === this.current;
    const open = button(conversation.title || text("untitled"), () => this.acts.open(id), {
      class: "conversation",
      dir: "auto",
      "aria-current": isCurrent ? "true" : null,
      "data-focus": `open-${id}`,
    });
    return element("li", {}, open, isCurrent ? this.#actions(id) : null);
  }

  #actions(id) {
    const act = (name, run) => button(text(name), run, { class: "plain", "data-focus": `${name}-${id}` });
    const rename = () => {
      this.renaming = id;
      this.#draw();
      this.list.querySelector("input").select();
    };
    return element(
      "div",
      { class: "conversation-acts" },
      act("rename", rename),
      act("exportJson", () => this.acts.exportJson(id)),
      act("exportMarkdown", () => this.acts.exportMarkdown(id)),
      act("remove", () => this.acts.remove(id)),
    );
  }

  #renameField({ id, title }) {
    const field = element("input", {
      type: "text",
      "aria-label": text("renameTo"),
      maxlength: "200",
      "data-focus": "rename",
    });
    field.value = title;
    const end = (isWanted) => {
      if (this.renaming !== id) return;
      this.renaming = null;
      field.remove();
      if (isWanted && field.value.trim()) this.acts.rename(id, field.value.trim());
      this.#draw();
      this.list.querySelector(`[data-focus="open-${id}"]`)?.focus();
    };
    field.addEventListener("keydown", (event) => {
      if (isSendKey(event)) end(true);
      if (event.key === "Escape" && !event.isComposing) {
        event.stopPropagation();
        end(false);
      }
    });
    field.addEventListener("blur", () => end(true));
    return field;
  }
}
