/**
 * Making elements.
 *
 * Owns the one way in which the page's modules put text and controls into the document: text is always text, never
 * markup. Markdown goes another way, through render_markdown.js.
 */

/**
 * An element with attributes and children. Keys that begin with "on" are listeners; null, undefined and false leave an
 * attribute out; children that are null are left out, strings become text.
 */
export function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else made.setAttribute(key, value === true ? "" : value);
  }
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

/** A button that shows its words. */
export function button(label, onclick, attributes = {}) {
  return element("button", { type: "button", onclick, ...attributes }, label);
}

/** A button that shows a sign, and says its words to those who can't see it or don't know it. */
export function signButton(sign, label, onclick, attributes = {}) {
  const shown = element("span", { "aria-hidden": "true" }, sign);
  return element(
    "button",
    { type: "button", class: "sign", "aria-label": label, title: label, onclick, ...attributes },
    shown,
  );
}

/** Whether a key says "send it": Enter alone, and not while an input method (Chinese, Japanese, Korean) composes. */
export function isSendKey(event) {
  // keyCode 229 is how Safari tells that the key which ends a composition was the input method's.
  return event.key === "Enter" && !event.shiftKey && !event.isComposing && event.keyCode !== 229;
}

/** Hand a file to the person. */
export function download(name, type, text) {
  const url = URL.createObjectURL(new Blob([text], { type }));
  const link = element("a", { href: url, download: name });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}
