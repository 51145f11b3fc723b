/**
 * What screen readers hear while an answer is written.
 *
 * Owns the polite live region. An answer is announced paragraph by paragraph, each once it is complete, instead of
 * every token; the visible text isn't live, so nothing is said twice.
 */

export class Announcer {
  constructor(region) {
    this.region = region;
    this.message = null; // of the running answer that is shown
    this.said = 0; // characters of it
  }

  say(sentence) {
    const line = document.createElement("p");
    line.textContent = sentence;
    this.region.append(line);
    while (this.region.childElementCount > 20) this.region.firstElementChild.remove();
  }

  /** Another conversation is shown; message: of its running answer, whose beginning can be read, or null */
  turnTo(message) {
    this.message = message;
    this.said = message?.content.length ?? 0;
  }

  /** An answer begins to be written. Does nothing for one that is known. */
  begin(message, sentence) {
    if (message === this.message) return;
    this.message = message;
    this.said = 0;
    this.say(sentence);
  }

  /** More of the answer: say the paragraphs that are complete. */
  grow() {
    const end = this.message?.content.lastIndexOf("\n\n") ?? 0;
    if (end > this.said) this.#part(end);
  }

  /** The answer is over: say the rest of it, and how it ended. */
  finish(sentence) {
    this.#part(this.message.content.length);
    this.message = null;
    this.say(sentence);
  }

  #part(end) {
    const parts = this.message.content.slice(this.said, end).split(/\n{2,}/);
    for (const part of parts) if (part.trim()) this.say(part.trim());
    this.said = end;
  }
}
