/** Light or dark. Owns the person's choice, kept in the browser; "auto" follows the system. */

import { lasting } from "./kept.js";
import { text } from "./strings.js";

const NAME = "kaishu.theme";
const CHOICES = ["auto", "light", "dark"];

/** Make a button that goes through the choices. */
export function themeSwitch(button) {
  const show = (choice) => {
    document.documentElement.dataset.theme = choice;
    button.textContent = { auto: "◐", light: "○", dark: "●" }[choice];
    const name = text({ auto: "themeAuto", light: "themeLight", dark: "themeDark" }[choice]);
    const label = text("theme", { choice: name });
    button.setAttribute("aria-label", label);
    button.title = label;
  };
  let choice = lasting.get(NAME);
  if (!CHOICES.includes(choice)) choice = "auto";
  show(choice);
  button.addEventListener("click", () => {
    choice = CHOICES[(CHOICES.indexOf(choice) + 1) % CHOICES.length];
    lasting.set(NAME, choice);
    show(choice);
  });
}
