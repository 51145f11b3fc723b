/**
 * What a person can do with a conversation: send, stop, edit, ask again, change branches, give a tool's result.
 *
 * Owns the running answers and when what is saved. Tells the page of changes through `hooks`, and knows nothing of the
 * document. An answer goes on when the person looks at another conversation.
 */

import { ApiError, chatChunks, stopThinking } from "./api.js";
import { emptyAnswer, Gathering } from "./answer.js";
import { requestBody } from "./settings.js";
import { Tree } from "./tree.js";

const SAVE_EVERY_MS = 1000;

export function newId() {
  // randomUUID is only there for https and this machine itself.
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  return [...bytes].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}

/** A conversation that is open: what the store has of it, its tree, and its running answer, if any. */
export class Session {
  constructor(conversation, messages = []) {
    this.conversation = conversation;
    this.tree = new Tree(messages, conversation.leaf);
    this.run = null; // {controller, gathering}
    this.isStored = messages.length > 0;
    this.isRemoved = false; // what is still running isn't kept
  }

  get path() {
    return this.tree.path();
  }

  /** Take over what another tab has kept. The path stays, and goes on to what was written last after it. */
  refresh(conversation, messages) {
    if (this.run) {
      const { title, settings } = conversation;
      Object.assign(this.conversation, { title, settings }); // the rest is written here
      return;
    }
    const { leaf } = this.tree;
    const isOver = (message) => message && message.finish !== null;
    const newest = messages.map((message) => (isOver(this.tree.get(message.id)) ? this.tree.get(message.id) : message));
    this.conversation = conversation;
    this.tree = new Tree(newest, leaf);
    if (this.tree.get(leaf)) this.tree.select(leaf);
  }
}

export function newConversation(settings) {
  const now = Date.now();
  return { id: newId(), title: "", created: now, updated: now, leaf: null, settings: { ...settings } };
}

export class Chat {
  /**
   * store:   of store.js
   * options: () → {model, recordsTokens}
   * hooks:   {changed(session): another path or another message, grown(session): its running answer has more,
   *          failed(session, problem), listed(session): it was kept with another title, place or end, unsaved(problem)}
   */
  constructor(store, options, hooks) {
    this.store = store;
    this.options = options;
    this.hooks = hooks;
    this.isLeaving = false; // the page is being closed or put aside, and the browser cuts off what runs
  }

  /** Add a message of the person's and have it answered. */
  async send(session, content, parent = session.tree.leaf) {
    if (session.run || !content.trim()) return;
    const { conversation } = session;
    if (!conversation.title) conversation.title = titleOf(content);
    this.#add(session, { id: newId(), parent, created: Date.now(), role: "user", content });
    await this.#answer(session);
  }

  /** Say something else in a message's place; what was there stays, as another branch. */
  edit(session, id, content) {
    return this.send(session, content, session.tree.get(id).parent);
  }

  /** Answer again, beside the answer that is there. */
  async regenerate(session, id) {
    const message = session.tree.get(id);
    if (session.run || !message) return;
    if (message.finish === "failed" && !message.content && !message.reasoning) {
      session.tree.remove(id); // it said nothing, so there is nothing to keep
      this.#kept(this.store.removeMessage(id));
    }
    session.tree.leaf = message.parent;
    await this.#answer(session);
  }

  /** What the called functions returned, one for each call of the answer. */
  async giveResults(session, id, results) {
    if (session.run) return;
    let parent = id;
    session.tree.get(id).toolCalls.forEach((call, index) => {
      const message = { role: "tool", toolCallId: call.id, content: results[index] };
      const made = { id: newId(), parent, created: Date.now() + index, ...message };
      this.#add(session, made);
      parent = made.id;
    });
    await this.#answer(session);
  }

  /** Show another branch. */
  async select(session, id) {
    session.tree.select(id);
    await this.#save(session);
    this.hooks.changed(session);
  }

  stop(session) {
    session.run?.controller.abort();
  }

  /** return: whether the server could */
  async stopThinking(session) {
    const id = session.run?.gathering.serverId;
    return id ? stopThinking(id) : false;
  }

  async rename(session, title) {
    session.conversation.title = title;
    await this.#save(session);
    this.hooks.listed(session);
  }

  async saveSettings(session) {
    if (!session.isStored) return;
    await this.#save(session);
    this.hooks.listed(session);
  }

  #add(session, message) {
    session.tree.add(message);
    session.conversation.updated = Date.now();
    session.isStored = true;
    this.#save(session, message).then(() => this.hooks.listed(session));
  }

  async #answer(session) {
    const { model, recordsTokens } = this.options();
    const path = session.path;
    const message = emptyAnswer(newId(), session.tree.leaf, Date.now());
    const controller = new AbortController();
    const gathering = new Gathering(message, performance.now());
    session.run = { controller, gathering, message };
    this.#add(session, message);
    this.hooks.changed(session);
    try {
      const body = requestBody(session.conversation.settings, model, path, recordsTokens);
      await this.#gather(session, gathering, chatChunks(body, controller.signal));
      message.finish ??= "stop";
    } catch (problem) {
      if (!this.isLeaving) this.#ended(session, message, problem); // else it stays without an end
    }
    session.run = null;
    await this.#save(session, message);
    this.hooks.changed(session);
    this.hooks.listed(session);
  }

  async #gather(session, gathering, chunks) {
    let saved = performance.now();
    for await (const chunk of chunks) {
      const now = performance.now();
      gathering.push(chunk, now);
      this.hooks.grown(session);
      if (now - saved > SAVE_EVERY_MS) {
        saved = now;
        this.#save(session, { ...gathering.message, tokens: null }); // they are much, and follow at the end
      }
    }
  }

  #ended(session, message, problem) {
    if (problem.name === "AbortError") {
      message.finish = "stopped";
      return;
    }
    message.finish = "failed";
    message.problem = problem instanceof ApiError ? problem.message : String(problem);
    if (!(problem instanceof ApiError)) console.error(problem);
    this.hooks.failed(session, problem);
  }

  async #save(session, ...messages) {
    if (session.isRemoved) return;
    session.conversation.leaf = session.tree.leaf;
    await this.#kept(this.store.save(session.conversation, messages));
  }

  /** What the browser can't keep doesn't end a conversation; it is told of. */
  async #kept(work) {
    try {
      await work;
    } catch (problem) {
      this.hooks.unsaved(problem);
    }
  }
}

function titleOf(content) {
  const line = [...content.trim().split("\n")[0]]; // by characters, so that none is cut in half
  return line.length > 60 ? `${line.slice(0, 59).join("").trimEnd()}…` : line.join("");
}
