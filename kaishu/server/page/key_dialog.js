/** Asking for the API key, when the server answers 401. */

import { apiKey, setApiKey } from "./api.js";

export class KeyDialog {
  constructor(dialog) {
    this.dialog = dialog;
    this.waiting = [];
    dialog.querySelector("form").addEventListener("submit", (event) => {
      event.preventDefault();
      const field = dialog.querySelector("input");
      setApiKey(field.value.trim());
      field.value = "";
      dialog.close("given");
    });
    dialog.addEventListener("close", () => {
      const isGiven = dialog.returnValue === "given";
      dialog.returnValue = "";
      for (const done of this.waiting.splice(0)) done(isGiven);
    });
  }

  /** return: whether a key was given */
  ask() {
    this.dialog.querySelector("#key-problem").hidden = !apiKey();
    if (!this.dialog.open) this.dialog.showModal();
    return new Promise((resolve) => this.waiting.push(resolve));
  }
}
