/**
 * The path of messages that is shown.
 *
 * Owns which message views there are, when a growing answer is drawn, and scrolling along with it.
 */

import { MessageView } from "./message_view.js";

const NEAR_END_PX = 80;
const MOST_OF_THE_TIME = 4; // drawing takes at most one part in so many, however long the answer

export class ConversationView {
  /** acts: of MessageView, and drawn(): a running answer is shown as it is now; focusLost(): what had it is gone */
  constructor(place, scroller, acts) {
    this.place = place;
    this.scroller = scroller;
    this.acts = acts;
    this.views = new Map();
    this.session = null;
    this.drawn = { at: 0, took: 0 };
    this.isWaiting = false;
    this.follows = true;
    scroller.addEventListener("scroll", () => {
      this.follows = scroller.scrollHeight - scroller.scrollTop - scroller.clientHeight < NEAR_END_PX;
    });
  }

  /** Show a session's path. */
  show(session) {
    const isOther = session !== this.session;
    if (isOther) this.views.clear();
    this.session = session;
    const hadFocus = this.place.contains(document.activeElement);
    const path = session.path;
    const kept = new Map();
    path.forEach((message, index) => {
      const known = this.views.get(message.id);
      const view = known?.message === message ? known : new MessageView(message, this.acts);
      kept.set(message.id, view);
      view.update({
        siblings: session.tree.siblings(message.id),
        gathering: session.run?.message === message ? session.run.gathering : null,
        isBusy: Boolean(session.run),
        isLast: index === path.length - 1,
      });
    });
    this.views = kept;
    this.#arrange([...kept.values()].map((view) => view.node));
    if (hadFocus && !this.place.contains(document.activeElement)) this.acts.focusLost();
    if (isOther || session.run || this.follows) this.toEnd();
  }

  /** Put nodes in order, moving none that is in its place, so that what has the focus keeps it. */
  #arrange(nodes) {
    for (const node of [...this.place.children]) if (!nodes.includes(node)) node.remove();
    nodes.forEach((node, index) => {
      if (this.place.children[index] !== node) this.place.insertBefore(node, this.place.children[index] ?? null);
    });
  }

  /** A running answer has more: draw it with the next frame that may. */
  grown() {
    if (this.isWaiting) return;
    this.isWaiting = true;
    const rest = this.drawn.at + this.drawn.took * MOST_OF_THE_TIME - performance.now();
    if (rest > 0) setTimeout(() => requestAnimationFrame(() => this.#draw()), rest);
    else requestAnimationFrame(() => this.#draw());
  }

  #draw() {
    this.isWaiting = false;
    const run = this.session?.run;
    const view = run && this.views.get(run.message.id);
    if (!view) return;
    const began = performance.now();
    view.grow(run.gathering);
    this.acts.drawn();
    if (this.follows) this.toEnd();
    this.drawn = { at: performance.now(), took: performance.now() - began };
  }

  toEnd() {
    this.follows = true;
    this.scroller.scrollTop = this.scroller.scrollHeight;
  }
}
