/**
 * The page's words, in the browser's language.
 *
 * Owns the choice between English and Chinese, and the filling of placeholders. What comes out is text, to be put into
 * the document as text.
 */

import { english } from "./strings_en.js";
import { chinese } from "./strings_zh.js";

/** "zh" where the browser asks for Chinese before it asks for English, else "en". */
export function chosenLanguage(wanted) {
  const known = wanted.map((tag) => tag.toLowerCase().split("-")[0]).find((tag) => tag === "zh" || tag === "en");
  return known ?? "en";
}

export const language = chosenLanguage(navigator.languages ?? [navigator.language]);
const words = { en: english, zh: chinese }[language];

/** The text of a key, with {names} replaced by values. */
export function text(key, values = {}) {
  const found = words[key];
  if (found === undefined) throw new Error(`no text ${key}`);
  return found.replace(/\{(\w+)\}/g, (_, name) => String(values[name]));
}

/** So many tokens, in words. */
export function tokenCount(count) {
  return count === 1 ? text("tokenCountOne") : text("tokenCount", { count: numeral(count) });
}

/** A number as the language writes it. */
export function numeral(value, digits = 0) {
  return new Intl.NumberFormat(language, { maximumFractionDigits: digits, minimumFractionDigits: digits }).format(
    value,
  );
}

/** Fill a document's data-text, data-label and data-placeholder attributes. */
export function fillTexts(root) {
  for (const found of root.querySelectorAll("[data-text]")) found.textContent = text(found.dataset.text);
  for (const found of root.querySelectorAll("[data-label]")) {
    found.setAttribute("aria-label", text(found.dataset.label));
    if (found.localName === "button") found.title = text(found.dataset.label);
  }
  for (const found of root.querySelectorAll("[data-placeholder]")) {
    found.placeholder = text(found.dataset.placeholder);
  }
}
