/**
 * What screen readers hear while an answer is written.
 *
 * Owns the polite live region. An answer is announced paragraph by paragraph, each once it is complete, instead of
 * every token; the visible text isn't live, so nothing is said twice.
 */

export class Announcer {
  constructor(region) {
    this.region = region;
    this.said = 0; // characters of the running answer
  }

  say(sentence) {
    const line = document.createElement("p");
    line.textContent = sentence;
    this.region.append(line);
    while (this.region.childElementCount > 20) this.region.firstElementChild.remove();
  }

  begin(sentence) {
    this.said = 0;
    this.say(sentence);
  }

  /** More of the answer: say the paragraphs that are complete. */
  grow(content) {
    const end = content.lastIndexOf("\n\n");
    if (end > this.said) this.#part(content, end);
  }

  /** The answer is over: say the rest of it, and how it ended. */
  finish(content, sentence) {
    if (content.length > this.said) this.#part(content, content.length);
    this.say(sentence);
  }

  #part(content, end) {
    const part = content.slice(this.said, end).trim();
    if (part) this.say(part);
    this.said = end;
  }
}
