/**
 * The message field.
 *
 * Owns its keys and its height. Enter sends and Shift + Enter makes a new line; while an input method composes
 * (Chinese, Japanese, Korean), Enter is the input method's.
 */

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
      // keyCode 229 is how Safari tells that the key which ends a composition was the input method's.
      if (event.key !== "Enter" || event.shiftKey || event.isComposing || event.keyCode === 229) return;
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

  #send() {
    if (this.isBusy || !this.field.value.trim() || !this.acts.send(this.field.value)) return;
    this.field.value = "";
    this.#fit();
  }

  #fit() {
    this.field.style.blockSize = "auto";
    this.field.style.blockSize = `${this.field.scrollHeight}px`;
  }
}
