/**
 * The page, put together.
 *
 * Owns which conversation is shown and what the parts tell each other. Begin here to read: api.js asks the server,
 * chat.js is what a person can do, tree.js how branches hang together, conversation_view.js and message_view.js show
 * it, store.js keeps it.
 */

import { ApiError, models } from "./api.js";
import { Announcer } from "./announce.js";
import { Chat, newConversation, newId, Session } from "./chat.js";
import { Composer } from "./composer.js";
import { ConversationView } from "./conversation_view.js";
import { Drawers } from "./drawers.js";
import { download } from "./elements.js";
import { showContext, usedTokens } from "./figures.js";
import { KeyDialog } from "./key_dialog.js";
import { endingOf } from "./message_view.js";
import { Notice } from "./notice.js";
import { readPreferences, writePreferences } from "./preferences.js";
import { SettingsPanel } from "./settings_panel.js";
import { SideList } from "./side_list.js";
import { openStore } from "./store.js";
import { fillTexts, language, text } from "./strings.js";
import { themeSwitch } from "./theme.js";
import { fromJson, parentsFirst, toJson, toMarkdown } from "./transfer.js";

const at = (id) => document.getElementById(id);
const RETRY_MS = 1000;

class Page {
  constructor(store) {
    this.store = store;
    this.preferences = readPreferences();
    this.models = [];
    this.open = new Map(); // id → Session, of those with a running answer, and the one that is shown
    this.notice = new Notice(at("notice"));
    this.announcer = new Announcer(at("announcer"));
    this.keyDialog = new KeyDialog(at("key-dialog"));
    this.chat = new Chat(store, () => ({ model: this.model, recordsTokens: this.preferences.recordTokens }), {
      changed: (session) => this.#changed(session),
      grown: (session) => session === this.session && this.view.grown(),
      failed: (session, problem) => this.#failed(session, problem),
      listed: (session) => {
        this.#list();
        this.otherTabs.postMessage(session.conversation.id);
      },
      unsaved: (problem) => this.#notKept(problem),
    });
    this.otherTabs = new BroadcastChannel("kaishu.conversations");
    this.otherTabs.onmessage = ({ data }) => this.#changedElsewhere(data);
    this.view = new ConversationView(at("messages"), at("scroll"), {
      edit: (id, content) => this.chat.edit(this.session, id, content),
      regenerate: (id) => this.chat.regenerate(this.session, id),
      select: (id) => this.chat.select(this.session, id),
      giveResults: (id, results) => this.chat.giveResults(this.session, id, results),
      stopThinking: () => this.#stopThinking(),
      record: () => this.#record(),
      drawn: () => {
        this.announcer.grow();
        this.#showContext();
      },
      focusLost: () => this.composer.focus(),
    });
    this.composer = new Composer(at("composer"), {
      send: (content) => this.#send(content),
      stop: () => this.chat.stop(this.session),
    });
    this.drawers = new Drawers(at("frame"));
    this.panel = new SettingsPanel(
      at("settings"),
      (name, value) => this.#set(name, value),
      () => this.drawers.settings(false),
    );
    this.list = new SideList(at("conversations"), at("search"), {
      open: (id) => this.show(id),
      rename: async (id, title) => this.chat.rename(await this.#sessionOf(id), title),
      remove: (id) => this.#remove(id),
      exportJson: (id) => this.#exportJson([id]),
      exportMarkdown: (id) => this.#exportMarkdown(id),
      search: (matches) => this.store.search(matches),
    });
    themeSwitch(at("theme"));
    this.#listen();
  }

  get model() {
    return at("model").querySelector("select")?.value ?? this.models[0]?.id ?? "";
  }

  #listen() {
    at("new").addEventListener("click", () => this.showNew());
    at("import").addEventListener("click", () => at("file").click());
    at("file").addEventListener("change", () => this.#import());
    at("export-all").addEventListener("click", () => this.#exportJson());
    document.querySelector(".skip").addEventListener("click", (event) => {
      event.preventDefault(); // the address names the conversation
      at("input").focus();
    });
    document.addEventListener("keydown", (event) => {
      if (event.key !== "Escape" || event.isComposing || at("key-dialog").open) return;
      if (this.session.run && !this.drawers.covers) this.chat.stop(this.session);
      else this.drawers.closeAll();
    });
    window.addEventListener("pagehide", () => {
      this.chat.isLeaving = true;
    });
    window.addEventListener("pageshow", () => {
      this.chat.isLeaving = false;
    });
    document.addEventListener("visibilitychange", () => {
      if (!document.hidden) this.#list(); // another tab may have changed it
    });
  }

  /** Show the conversation that was shown last, or a new one. */
  async begin() {
    if (!this.store.isLasting) this.notice.show(text("notStored"), { seconds: null });
    const wanted = location.hash.slice(1);
    const known = await this.store.conversations();
    if (known.some((one) => one.id === wanted)) await this.show(wanted);
    else this.showNew();
    at("input").focus();
    await this.#findModels();
    if (!this.store.isLasting) this.notice.show(text("notStored"), { seconds: null });
  }

  showNew() {
    this.wanted = null;
    this.#showSession(new Session(newConversation(this.preferences.settings)));
    at("input").focus();
  }

  async show(id) {
    this.wanted = id;
    const session = await this.#sessionOf(id);
    if (this.wanted !== id) return; // another was asked for meanwhile
    if (session) this.#showSession(session);
    else this.#list();
  }

  /** return: null where it was deleted, in another tab */
  async #sessionOf(id) {
    if (this.open.has(id)) return this.open.get(id);
    const conversation = await this.#stored(id);
    return conversation && new Session(conversation, await this.store.messages(id));
  }

  async #stored(id) {
    return (await this.store.conversations()).find((one) => one.id === id) ?? null;
  }

  async #changedElsewhere(id) {
    const session = this.open.get(id);
    const conversation = session?.isStored ? await this.#stored(id) : null;
    if (conversation) session.refresh(conversation, await this.store.messages(id));
    else if (session?.isStored) this.#close(session);
    if (conversation && session === this.session) {
      this.panel.show(conversation.settings);
      this.#changed(session);
    }
    this.#list();
  }

  /** Leave a conversation that is deleted. */
  #close(session) {
    const { id } = session.conversation;
    session.isRemoved = true;
    this.chat.stop(session);
    this.open.delete(id);
    if (id === this.session.conversation.id) this.showNew();
  }

  #showSession(session) {
    for (const [id, other] of this.open) if (!other.run) this.open.delete(id);
    this.session = session;
    this.open.set(session.conversation.id, session);
    history.replaceState(null, "", session.isStored ? `#${session.conversation.id}` : "#");
    this.panel.show({ ...session.conversation.settings, recordTokens: this.preferences.recordTokens });
    this.drawers.side(false);
    this.announcer.turnTo(session.run?.message ?? null);
    this.#changed(session);
    this.#list();
  }

  #changed(session) {
    if (session !== this.session) return;
    const written = this.announcer.message;
    if (session.run) this.announcer.begin(session.run.message, text("writing"));
    else if (written) this.announcer.finish(endingOf(written) ?? text("answered"));
    at("greeting").hidden = session.path.length > 0;
    this.composer.showBusy(Boolean(session.run));
    this.view.show(session);
    this.#showContext();
  }

  #showContext() {
    const length = this.models.find((one) => one.id === this.model)?.contextLength ?? null;
    showContext(at("context"), usedTokens(this.session.path, this.session.run?.gathering), length);
  }

  async #failed(session, problem) {
    if (problem.status === 401) {
      const message = session.path.at(-1);
      if (!(await this.keyDialog.ask())) return;
      if (!this.models.length) await this.#findModels();
      this.chat.regenerate(session, message.id);
    } else if (problem.status === 404) {
      this.#findModels(); // the server may have been started again, with another model
    }
  }

  #notKept(problem) {
    this.notice.show(text("notKept", { problem: problem.message }), { isProblem: true, seconds: null });
  }

  async #list() {
    const conversations = await this.store.conversations();
    const { id, title } = this.session.conversation;
    this.list.show(conversations, id);
    at("title").textContent = title;
    document.title = title ? `${title} · Kaishu` : "Kaishu 楷书";
    if (this.session.isStored) history.replaceState(null, "", `#${id}`);
  }

  #send(content) {
    this.notice.clear();
    this.chat.send(this.session, content);
    return true;
  }

  async #stopThinking() {
    if (!(await this.chat.stopThinking(this.session))) this.notice.show(text("cantStopThinking"), { isProblem: true });
  }

  #record() {
    this.#set("recordTokens", true);
    this.panel.show({ recordTokens: true });
    this.notice.show(text("recordingOn"));
  }

  #set(name, value) {
    if (name === "recordTokens") {
      this.preferences.recordTokens = value;
    } else {
      this.session.conversation.settings[name] = value;
      this.preferences.settings[name] = value;
      this.chat.saveSettings(this.session);
    }
    writePreferences(this.preferences);
  }

  async #remove(id) {
    const session = await this.#sessionOf(id);
    this.#close(session);
    await this.store.remove(id);
    this.otherTabs.postMessage(id);
    this.#list();
    const undo = async () => {
      await this.#keep(session.conversation, session.tree.messages);
      await this.show(id);
      at("input").focus();
    };
    const title = session.conversation.title || text("untitled");
    this.notice.show(text("removed", { title }), { seconds: 15, action: { label: text("undo"), run: undo } });
  }

  /** return: whether the browser could */
  async #keep(conversation, messages) {
    try {
      await this.store.save(conversation, messages);
      this.otherTabs.postMessage(conversation.id);
      return true;
    } catch (problem) {
      this.#notKept(problem);
      return false;
    }
  }

  /** ids: null for all */
  async #exportJson(ids = null) {
    const wanted = (await this.store.conversations()).filter((one) => !ids || ids.includes(one.id));
    const all = [];
    for (const conversation of wanted) {
      const messages = this.open.get(conversation.id)?.tree.messages ?? (await this.store.messages(conversation.id));
      all.push({ conversation, messages: parentsFirst(messages) });
    }
    const title = ids ? fileName(wanted[0].title) : "kaishu";
    download(`${title}.json`, "application/json", toJson(all));
  }

  async #exportMarkdown(id) {
    const session = await this.#sessionOf(id);
    const { title, settings } = session.conversation;
    const names = {
      user: text("you"),
      assistant: text("assistant"),
      tool: text("toolResult"),
      thinking: text("thought"),
    };
    download(`${fileName(title)}.md`, "text/markdown", toMarkdown(title, settings.system, session.path, names));
  }

  async #import() {
    const [file] = at("file").files;
    at("file").value = "";
    if (!file) return;
    let found;
    try {
      found = fromJson(await file.text(), newId, Date.now());
    } catch {
      this.notice.show(text("importFailed"), { isProblem: true, seconds: null });
      return;
    }
    for (const { conversation, messages } of found) if (!(await this.#keep(conversation, messages))) return;
    this.notice.show(found.length === 1 ? text("importedOne") : text("imported", { count: found.length }));
    if (found.length) await this.show(found[0].conversation.id);
  }

  /** Ask for the models until the server is ready and lets us in. */
  async #findModels() {
    let said = "";
    for (;;) {
      try {
        this.models = await models();
        break;
      } catch (problem) {
        if (!(problem instanceof ApiError)) throw problem;
        if (problem.status === 401) {
          if (await this.keyDialog.ask()) continue;
          const action = { label: text("giveKey"), run: () => this.#findModels() };
          this.notice.show(text("keyNeeded"), { seconds: null, action });
          return;
        }
        const words = { 0: text("offline"), 503: problem.code === "loading" ? text("loading") : problem.message };
        said = words[problem.status] ?? problem.message;
        this.notice.show(said, { seconds: null, isProblem: problem.code !== "loading" });
        await new Promise((resolve) => setTimeout(resolve, RETRY_MS));
      }
    }
    if (said) this.notice.clear(said);
    showModels(at("model"), this.models, this.model);
    this.#showContext();
  }
}

/** One model is a name; several are a choice. */
function showModels(place, found, chosen) {
  if (found.length < 2) {
    place.textContent = found[0]?.id ?? "";
    return;
  }
  const select = document.createElement("select");
  select.setAttribute("aria-label", text("model"));
  for (const { id } of found) select.append(new Option(id, id, false, id === chosen));
  place.replaceChildren(select);
}

function fileName(title) {
  return (
    title
      .replace(/[^\p{L}\p{N}]+/gu, "-")
      .slice(0, 60)
      .replace(/^-|-$/g, "") || "kaishu"
  );
}

document.documentElement.lang = { en: "en", zh: "zh-CN" }[language];
fillTexts(document);
const page = new Page(await openStore());
await page.begin();
