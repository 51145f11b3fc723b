/**
 * Small values in the browser's storage: the theme, the settings that new conversations begin with, the API key.
 *
 * Owns what happens where the browser refuses to keep them, which it may at any time: they then last as long as the
 * page. Conversations are store.js's.
 */

class Kept {
  /** storage: () → a Storage; asking for it can raise already */
  constructor(storage) {
    this.storage = storage;
    this.instead = new Map();
  }

  /** return: the text, or null */
  get(name) {
    if (this.instead.has(name)) return this.instead.get(name);
    try {
      return this.storage().getItem(name);
    } catch {
      return null;
    }
  }

  set(name, value) {
    try {
      this.storage().setItem(name, value);
      this.instead.delete(name);
    } catch {
      this.instead.set(name, value);
    }
  }
}

/** For all tabs, and after they are closed. */
export const lasting = new Kept(() => localStorage);

/** Until the tab is closed. */
export const ofThisTab = new Kept(() => sessionStorage);
