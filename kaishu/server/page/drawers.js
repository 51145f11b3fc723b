/**
 * The two panels beside the conversation: the list at one side, the settings at the other.
 *
 * Owns which is open. On a narrow screen the list lies over the conversation and is closed at first; where there is
 * room it is always there.
 */

const at = (id) => document.getElementById(id);

export class Drawers {
  constructor(frame) {
    this.frame = frame;
    at("open-side").addEventListener("click", () => this.side(!frame.classList.contains("side-open")));
    at("open-settings").addEventListener("click", () => this.settings(at("settings").hidden));
    at("shade").addEventListener("click", () => this.closeAll());
  }

  side(isOpen) {
    if (isOpen === this.frame.classList.contains("side-open")) return;
    this.frame.classList.toggle("side-open", isOpen);
    at("open-side").setAttribute("aria-expanded", String(isOpen));
    this.#shade();
    at(isOpen ? "new" : "open-side").focus();
  }

  settings(isOpen) {
    if (isOpen === !at("settings").hidden) return;
    at("settings").hidden = !isOpen;
    this.frame.classList.toggle("settings-open", isOpen);
    at("open-settings").setAttribute("aria-expanded", String(isOpen));
    this.#shade();
    if (isOpen) at("close-settings").focus();
    else at("open-settings").focus();
  }

  closeAll() {
    this.side(false);
    this.settings(false);
  }

  #shade() {
    at("shade").hidden = !(this.frame.classList.contains("side-open") || !at("settings").hidden);
  }
}
