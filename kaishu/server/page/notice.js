/** A line above the message field that tells of what happened, with at most one thing to do about it. */

import { button, element } from "./elements.js";

export class Notice {
  constructor(place) {
    this.place = place;
    this.timer = null;
    this.sentence = null; // that is shown
  }

  /** seconds: for which it stays; null until something else is said. action: {label, run} */
  show(sentence, { seconds = 8, action = null, isProblem = false } = {}) {
    clearTimeout(this.timer);
    const act = () => {
      this.clear();
      action.run();
    };
    // A screen reader would say what is written anew again.
    if (sentence !== this.sentence || action) {
      this.place.replaceChildren(
        element("span", { class: isProblem ? "problem" : null }, sentence),
        ...(action ? [button(action.label, act, { class: "plain" })] : []),
      );
    }
    this.sentence = sentence;
    if (seconds !== null) this.timer = setTimeout(() => this.clear(), seconds * 1000);
  }

  /** sentence: the one to take away; another stays */
  clear(sentence = this.sentence) {
    if (sentence !== this.sentence) return;
    clearTimeout(this.timer);
    this.sentence = null;
    this.place.replaceChildren();
  }
}
