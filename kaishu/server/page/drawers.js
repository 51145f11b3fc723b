/**
 * The two panels beside the conversation: the list at one side, the settings at the other.
 *
 * Owns which is open. On a narrow screen the list lies over the conversation and is closed at first; where there is
 * room it is always there. What lies over the conversation keeps the keyboard to itself.
 */

const at = (id) => document.getElementById(id);

export class Drawers {
  constructor(frame) {
    this.frame = frame;
    this.isNarrow = matchMedia("(max-width: 60rem)"); // as layout.css has it
    this.isNarrow.addEventListener("change", () => this.#shade());
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

  get isOpen() {
    return this.frame.classList.contains("side-open") || !at("settings").hidden;
  }

  /** Whether one lies over the conversation. */
  get covers() {
    return this.isOpen && this.isNarrow.matches;
  }

  closeAll() {
    this.side(false);
    this.settings(false);
  }

  #shade() {
    at("shade").hidden = !this.isOpen;
    this.frame.querySelector("main").inert = this.covers;
  }
}
