/**
 * Markdown into the document: what a model wrote, and so what anybody may have written.
 *
 * Owns the only way from strings to markup. HTML in the Markdown is shown as the text it is; what marked makes of the
 * rest goes through DOMPurify with a short list of elements and attributes; links lead to web pages and mail only, and
 * pictures become links, since the page fetches nothing from elsewhere. A growing text is rendered block by block, so
 * that a long answer costs no more at its end than at its beginning.
 */

import { button, element } from "./elements.js";
import { text as say } from "./strings.js";
import { Marked } from "./vendor/marked.esm.js";
import DOMPurify from "./vendor/purify.es.mjs";
import highlight from "./vendor/highlight.min.js";

const ALLOWED = Object.freeze({
  ALLOWED_TAGS: [
    "a", "blockquote", "br", "code", "del", "em", "h1", "h2", "h3", "h4", "h5", "h6", "hr", "li", "ol", "p", "pre",
    "span", "strong", "table", "tbody", "td", "th", "thead", "tr", "ul",
  ], // prettier-ignore
  ALLOWED_ATTR: ["align", "class", "href", "start", "title"],
  ALLOWED_URI_REGEXP: /^(?:https?:\/\/|mailto:)/i,
  ALLOW_ARIA_ATTR: false,
  ALLOW_DATA_ATTR: false,
  RETURN_DOM_FRAGMENT: true,
});
const CODE_CLASS = /^(hljs|hljs-[\w-]+|language-[\w+#-]+|[a-z]+_)$/;

const purify = DOMPurify(window);
purify.addHook("afterSanitizeAttributes", (node) => {
  if (node.localName === "a" && node.hasAttribute("href")) {
    node.setAttribute("rel", "noopener noreferrer");
    node.setAttribute("target", "_blank");
  }
  if (node.hasAttribute?.("class")) {
    const kept = node.getAttribute("class").split(/\s+/).filter((name) => CODE_CLASS.test(name));
    if (kept.length) node.setAttribute("class", kept.join(" "));
    else node.removeAttribute("class");
  }
});

/** HTML without anything that could do something. return: DocumentFragment */
export function sanitised(html) {
  return purify.sanitize(html, ALLOWED);
}

const marked = new Marked({
  gfm: true,
  renderer: {
    html: ({ text }) => escaped(text),
    checkbox: ({ checked }) => (checked ? "☑ " : "☐ "),
    image: ({ href, text }) => `<a href="${escaped(href)}">${escaped(text || href)}</a>`,
    code: ({ text, lang }) => codeBlock(text, lang),
  },
});

function codeBlock(text, info) {
  const name = (info ?? "").trim().split(/\s+/)[0].toLowerCase();
  const known = highlight.getLanguage(name) ? name : null;
  const inside = known ? highlight.highlight(text, { language: known, ignoreIllegals: true }).value : escaped(text);
  const label = /^[\w+#-]+$/.test(name) ? ` language-${name}` : "";
  return `<pre><code class="hljs${label}">${inside}\n</code></pre>`;
}

function escaped(text) {
  const names = { "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "'": "&#39;" };
  return text.replace(/[&<>"']/g, (character) => names[character]);
}

/** A growing text, shown as Markdown inside an element. */
export class Markdown {
  constructor(parent) {
    this.parent = parent;
    this.blocks = []; // [{raw, nodes}]
  }

  /** Show all of the text so far. return: the nodes of blocks that are new or changed */
  update(text) {
    const tokens = marked.lexer(text);
    let same = 0;
    while (same < tokens.length && this.blocks[same]?.raw === tokens[same].raw) same += 1;
    for (const { nodes } of this.blocks.splice(same)) for (const node of nodes) node.remove();
    const made = [];
    for (const token of tokens.slice(same)) {
      const fragment = sanitised(marked.parser([token]));
      furnish(fragment);
      const nodes = [...fragment.childNodes];
      this.parent.append(fragment);
      this.blocks.push({ raw: token.raw, nodes });
      made.push(...nodes);
    }
    return made;
  }
}

/** What the page itself adds: a head with a copy button to code, and a frame in which wide tables scroll. */
function furnish(fragment) {
  for (const pre of fragment.querySelectorAll("pre")) {
    const code = pre.querySelector("code");
    const name = [...(code?.classList ?? [])].find((one) => one.startsWith("language-"))?.slice(9) ?? "";
    const copy = button(say("copy"), () => copyText(pre.textContent, copy), { "aria-label": say("copyCode") });
    const head = element("div", { class: "code-head" }, element("span", {}, name), copy);
    const frame = element("div", { class: "code" });
    pre.replaceWith(frame);
    pre.setAttribute("tabindex", "0");
    pre.setAttribute("role", "region");
    pre.setAttribute("aria-label", `${say("code")} ${name}`.trim());
    frame.append(head, pre);
  }
  for (const table of fragment.querySelectorAll("table")) {
    const frame = element("div", { class: "wide", tabindex: "0", role: "region" });
    table.replaceWith(frame);
    frame.append(table);
  }
}

/** Put text on the clipboard, and say so on the button for a moment. */
export async function copyText(text, control) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    return; // the browser didn't allow it
  }
  const before = control.textContent;
  control.textContent = say("copied");
  setTimeout(() => (control.textContent = before), 1500);
}
