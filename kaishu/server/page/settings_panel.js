/**
 * The panel of settings.
 *
 * Owns its elements and says what is wrong with what was typed. Which settings there are is settings.js's. What is
 * wrong isn't taken over: the value before it stays in use.
 */

import { button, element } from "./elements.js";
import { NUMBERS, readNumber, readTools, THINKING } from "./settings.js";
import { text } from "./strings.js";

export class SettingsPanel {
  /** changed: (name, value) → nothing. closed: () → nothing */
  constructor(place, changed, closed) {
    this.place = place;
    this.changed = changed;
    const groups = [
      this.#group("system", this.#area("system", "systemHint", 4)),
      this.#group(
        "thinkingMode",
        this.#choice("thinking", "thinkingMode", THINKING, {
          auto: "thinkingAuto",
          on: "thinkingOn",
          off: "thinkingOff",
        }),
        this.#number("thinkingBudget"),
      ),
      this.#group(
        "sampling",
        ...["temperature", "topP", "topK", "maxTokens", "seed"].map((name) => this.#number(name)),
      ),
      this.#group("display", this.#check("recordTokens")),
      this.#group("tools", this.#area("tools", "toolsHint", 5, readTools, "toolsWrong")),
    ];
    const head = element(
      "div",
      { class: "settings-head" },
      element("h2", {}, text("settings")),
      button(text("close"), closed, { class: "plain", id: "close-settings" }),
    );
    place.replaceChildren(head, ...groups);
  }

  /** Show values. */
  show(values) {
    for (const [name, value] of Object.entries(values)) {
      const field = this.place.querySelector(`[name="${name}"]`);
      if (!field) continue;
      if (field.type === "radio") this.place.querySelector(`[name="${name}"][value="${value}"]`).checked = true;
      else if (field.type === "checkbox") field.checked = value;
      else field.value = value ?? "";
      this.#problem(field, "");
    }
  }

  #group(title, ...fields) {
    return element("fieldset", {}, element("legend", {}, text(title)), ...fields);
  }

  #field(name, label, hint, control) {
    control.id = `setting-${name}`;
    control.name = name;
    control.setAttribute("aria-describedby", `hint-${name} problem-${name}`);
    return element(
      "div",
      { class: "field" },
      element("label", { for: control.id }, label),
      control,
      element("p", { class: "quiet", id: `hint-${name}` }, hint),
      element("p", { class: "problem", id: `problem-${name}`, role: "alert" }),
    );
  }

  #number(name) {
    const { low, high, step } = NUMBERS[name];
    const field = element("input", {
      type: "number",
      min: low,
      max: high,
      step,
      placeholder: text("modelsOwn"),
      inputmode: "decimal",
    });
    field.addEventListener("input", () =>
      this.#take(
        field,
        name,
        () => readNumber(name, field.validity.badInput ? "?" : field.value),
        "numberWrong",
        "range",
      ),
    );
    return this.#field(name, text(name), text(`${name}Hint`), field);
  }

  #area(name, hint, rows, read = (typed) => typed, wrong = null) {
    const field = element("textarea", { rows, spellcheck: wrong ? "false" : null, class: wrong ? "mono" : null });
    const kept = () => {
      read(field.value); // only whether it can be
      return field.value;
    };
    field.addEventListener("input", () => this.#take(field, name, kept, wrong, "problem"));
    return this.#field(name, text(name), text(hint), field);
  }

  #choice(name, label, values, words) {
    const options = values.map((value) =>
      element(
        "label",
        {},
        element("input", { type: "radio", name, value, onchange: () => this.changed(name, value) }),
        text(words[value]),
      ),
    );
    return element("div", { class: "choice", role: "radiogroup", "aria-label": text(label) }, ...options);
  }

  #check(name) {
    const field = element("input", {
      type: "checkbox",
      name,
      id: `setting-${name}`,
      "aria-describedby": `hint-${name}`,
    });
    field.addEventListener("change", () => this.changed(name, field.checked));
    return element(
      "div",
      { class: "field" },
      element("label", { class: "check" }, field, text(name)),
      element("p", { class: "quiet", id: `hint-${name}` }, text(`${name}Hint`)),
    );
  }

  #take(field, name, read, wrong, placeholder) {
    try {
      this.changed(name, read());
      this.#problem(field, "");
    } catch (problem) {
      this.#problem(field, text(wrong, { [placeholder]: problem.message }));
    }
  }

  #problem(field, words) {
    const line = this.place.querySelector(`#problem-${field.name}`);
    if (!line) return;
    line.textContent = words;
    if (words) field.setAttribute("aria-invalid", "true");
    else field.removeAttribute("aria-invalid");
  }
}
