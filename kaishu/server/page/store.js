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
    return latestFirst(await this.#ask("conversations", "readonly", (store) => store.getAll()));
  }

  /** The messages of a conversation. */
  messages(conversation) {
    return this.#ask("messages", "readonly", (store) => store.index("conversation").getAll(conversation));
  }

  saveConversation(conversation) {
    return this.#ask("conversations", "readwrite", (store) => store.put(conversation));
  }

  saveMessage(conversation, message) {
    return this.#ask("messages", "readwrite", (store) => store.put({ ...message, conversation }));
  }

  removeMessage(id) {
    return this.#ask("messages", "readwrite", (store) => store.delete(id));
  }

  /** Remove a conversation and its messages. */
  async remove(id) {
    await this.#ask("conversations", "readwrite", (store) => store.delete(id));
    const keys = await this.#ask("messages", "readonly", (store) => store.index("conversation").getAllKeys(id));
    await this.#ask("messages", "readwrite", (store) => {
      const requests = keys.map((key) => store.delete(key));
      return requests.at(-1) ?? store.count();
    });
  }

  /** The ids of conversations with a message that `matches` says yes to. */
  search(matches) {
    return new Promise((resolve, reject) => {
      const found = new Set();
      const request = this.database.transaction("messages").objectStore("messages").openCursor();
      request.onerror = () => reject(request.error);
      request.onsuccess = () => {
        const cursor = request.result;
        if (!cursor) return resolve(found);
        if (!found.has(cursor.value.conversation) && matches(cursor.value)) found.add(cursor.value.conversation);
        return cursor.continue();
      };
    });
  }

  #ask(name, mode, work) {
    return new Promise((resolve, reject) => {
      const transaction = this.database.transaction(name, mode);
      const request = work(transaction.objectStore(name));
      transaction.oncomplete = () => resolve(request.result);
      transaction.onerror = transaction.onabort = () => reject(transaction.error ?? request.error);
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

  async saveConversation(conversation) {
    this.kept.set(conversation.id, structuredClone(conversation));
  }

  async saveMessage(conversation, message) {
    this.said.set(message.id, structuredClone({ ...message, conversation }));
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
