/**
 * Conversations in the browser's own database (IndexedDB).
 *
 * Owns what is kept and how. A message is a record of its own, so that two tabs with one conversation lose nothing of
 * each other's. Where the browser gives no database (some private windows), all is kept until the tab is closed.
 */

const NAME = "kaishu";
const VERSION = 1;

/** The store. Its methods are those of Database, in either case. */
export async function openStore() {
  try {
    return new Database(await opened());
  } catch {
    return new Memory();
  }
}

function opened() {
  return new Promise((resolve, reject) => {
    const request = indexedDB.open(NAME, VERSION);
    request.onupgradeneeded = () => {
      request.result.createObjectStore("conversations", { keyPath: "id" });
      request.result.createObjectStore("messages", { keyPath: "id" }).createIndex("conversation", "conversation");
    };
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
    request.onblocked = () => reject(new Error("blocked"));
  });
}

class Database {
  constructor(database) {
    this.database = database;
    this.isLasting = true;
  }

  /** All conversations, the latest first: [{id, title, created, updated, leaf, settings}]. */
  async conversations() {
    return latestFirst(await this.#work("readonly", (of) => of("conversations").getAll()));
  }

  /** The messages of a conversation. */
  messages(conversation) {
    return this.#work("readonly", (of) => of("messages").index("conversation").getAll(conversation));
  }

  /** Keep a conversation and, of its messages, those that are new or changed: all of it or nothing. */
  save(conversation, messages = []) {
    return this.#work("readwrite", (of) => {
      for (const message of messages) of("messages").put({ ...message, conversation: conversation.id });
      return of("conversations").put(conversation);
    });
  }

  removeMessage(id) {
    return this.#work("readwrite", (of) => of("messages").delete(id));
  }

  /** Remove a conversation and its messages. */
  remove(id) {
    return this.#work("readwrite", (of) => {
      const request = of("messages").index("conversation").openKeyCursor(id);
      request.onsuccess = () => {
        const cursor = request.result;
        if (!cursor) return;
        of("messages").delete(cursor.primaryKey);
        cursor.continue();
      };
      return of("conversations").delete(id);
    });
  }

  /** The ids of conversations with a message that `matches` says yes to. */
  async search(matches) {
    const found = new Set();
    await this.#work("readonly", (of) => {
      const request = of("messages").openCursor();
      request.onsuccess = () => {
        const cursor = request.result;
        if (!cursor) return;
        if (!found.has(cursor.value.conversation) && matches(cursor.value)) found.add(cursor.value.conversation);
        cursor.continue();
      };
      return request;
    });
    return found;
  }

  /** work: (name → object store) → the request whose result is the answer, once all is done */
  #work(mode, work) {
    return new Promise((resolve, reject) => {
      const transaction = this.database.transaction(["conversations", "messages"], mode);
      const request = work((name) => transaction.objectStore(name));
      transaction.oncomplete = () => resolve(request.result);
      transaction.onabort = () => reject(transaction.error ?? new Error("aborted"));
    });
  }
}

class Memory {
  constructor() {
    this.isLasting = false;
    this.kept = new Map();
    this.said = new Map();
  }

  async conversations() {
    return latestFirst([...this.kept.values()]);
  }

  async messages(conversation) {
    return [...this.said.values()].filter((message) => message.conversation === conversation);
  }

  async save(conversation, messages = []) {
    this.kept.set(conversation.id, structuredClone(conversation));
    for (const message of messages) {
      this.said.set(message.id, structuredClone({ ...message, conversation: conversation.id }));
    }
  }

  async removeMessage(id) {
    this.said.delete(id);
  }

  async remove(id) {
    this.kept.delete(id);
    for (const message of await this.messages(id)) this.said.delete(message.id);
  }

  async search(matches) {
    return new Set([...this.said.values()].filter(matches).map((message) => message.conversation));
  }
}

function latestFirst(conversations) {
  return conversations.sort((one, other) => other.updated - one.updated);
}
