/**
 * The message field.
 *
 * Owns its keys and its height. Enter sends and Shift + Enter makes a new line.
 */

import { isSendKey } from "./elements.js";

export class Composer {
  /** acts: {send(text) → whether it was taken, stop()} */
  constructor(form, acts) {
    this.field = form.querySelector("textarea");
    this.sendButton = form.querySelector("#send");
    this.stopButton = form.querySelector("#stop");
    this.acts = acts;
    this.isBusy = false;
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.#send();
    });
    this.stopButton.addEventListener("click", () => acts.stop());
    this.field.addEventListener("keydown", (event) => {
      if (!isSendKey(event)) return;
      event.preventDefault();
      this.#send();
    });
    this.field.addEventListener("input", () => this.#fit());
  }

  /** Show whether an answer is being written. */
  showBusy(isBusy) {
    const hadFocus = document.activeElement === this.sendButton || document.activeElement === this.stopButton;
    this.isBusy = isBusy;
    this.sendButton.hidden = isBusy;
    this.stopButton.hidden = !isBusy;
    if (hadFocus) this.field.focus();
  }

  /** Go to what there is to do now: stop what runs, or write. */
  focus() {
    (this.isBusy ? this.stopButton : this.field).focus();
  }

  #send() {
    if (this.isBusy || !this.field.value.trim() || !this.acts.send(this.field.value)) return;
    this.field.value = "";
    this.#fit();
  }

  #fit() {
    this.field.style.blockSize = "auto";
    const border = this.field.offsetHeight - this.field.clientHeight;
    this.field.style.blockSize = `${this.field.scrollHeight + border}px`;
  }
}
