/**
 * A conversation as a tree of messages.
 *
 * Owns who follows whom. Editing or asking again makes a sibling; what was there stays. A conversation shows one path,
 * from a root to its leaf. Pure: knows nothing of the document, the store or the server.
 */

export class Tree {
  /**
   * messages: each {id, parent, created, …}; parent is null for a root
   * leaf:     the id where the path ends; null for an empty conversation
   */
  constructor(messages = [], leaf = null) {
    this.byId = new Map(messages.map((message) => [message.id, message]));
    this.leaf = this.byId.has(leaf) ? leaf : (this.#newest([...this.byId.values()])?.id ?? null);
  }

  get(id) {
    return this.byId.get(id);
  }

  get messages() {
    return [...this.byId.values()];
  }

  /** Add a message after `message.parent`; the path then ends with it. */
  add(message) {
    this.byId.set(message.id, message);
    this.leaf = message.id;
  }

  /** Take away a message that nothing follows; the path then ends before it. */
  remove(id) {
    this.leaf = this.byId.get(id).parent;
    this.byId.delete(id);
  }

  /** The messages from the root to the leaf, or to another one. */
  path(id = this.leaf) {
    const found = [];
    const seen = new Set();
    for (let at = this.byId.get(id); at && !seen.has(at.id); at = this.byId.get(at.parent)) {
      seen.add(at.id);
      found.unshift(at);
    }
    return found;
  }

  /** The messages with the same parent, in the order in which they were made, itself among them. */
  siblings(id) {
    return this.children(this.byId.get(id).parent);
  }

  children(parent) {
    return this.messages
      .filter((message) => message.parent === parent)
      .sort((one, other) => one.created - other.created);
  }

  /** Show the path through a message, down to what was written last after it. */
  select(id) {
    const below = [];
    const open = [id];
    while (open.length) {
      const at = open.pop();
      below.push(this.byId.get(at));
      open.push(...this.children(at).map((child) => child.id));
    }
    const leaves = below.filter((message) => !this.children(message.id).length);
    this.leaf = this.#newest(leaves).id;
  }

  #newest(messages) {
    return messages.reduce((best, one) => (!best || one.created >= best.created ? one : best), null);
  }
}
