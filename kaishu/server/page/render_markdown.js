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
  ADD_URI_SAFE_ATTR: ["align", "start"], // all others that aren't known to be safe must be such addresses
  ALLOWED_URI_REGEXP: /^(?:https?:\/\/|mailto:)/i,
  ALLOW_ARIA_ATTR: false,
  ALLOW_DATA_ATTR: false,
  RETURN_DOM_FRAGMENT: true,
});
const LONGEST_COLOURED = 50_000; // characters of code; longer code stays plain, so that it is shown in time
const LONGEST_EMPHASIS = 10_000; // characters of a paragraph; in longer ones stars stay stars: marked's search is cubic
const CODE_CLASS = /^(hljs|hljs-[\w-]+|language-[\w+#-]+|[a-z]+_)$/;

const purify = DOMPurify(window);
purify.addHook("afterSanitizeAttributes", (node) => {
  if (node.localName === "a" && node.hasAttribute("href")) {
    node.setAttribute("rel", "noopener noreferrer");
    node.setAttribute("target", "_blank");
  }
  if (node.hasAttribute?.("class")) {
    const kept = node
      .getAttribute("class")
      .split(/\s+/)
      .filter((name) => CODE_CLASS.test(name));
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
  tokenizer: { emStrong: (_, paragraph) => (paragraph.length > LONGEST_EMPHASIS ? undefined : false) },
});

function codeBlock(text, info) {
  const name = (info ?? "").trim().split(/\s+/)[0].toLowerCase();
  const known = text.length <= LONGEST_COLOURED && highlight.getLanguage(name) ? name : null;
  const inside = known ? highlight.highlight(text, { language: known, ignoreIllegals: true }).value : escaped(text);
  const label = /^[\w+#-]+$/.test(name) ? ` language-${name}` : "";
  return `<pre><code class="hljs${label}">${inside}\n</code></pre>`;
}

function escaped(text) {
  const names = { "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "'": "&#39;" };
  return text.replace(/[&<>"']/g, (character) => names[character]);
}

/** The blocks of a text; one without form where it nests deeper than marked, which calls itself for each level, can. */
function lexed(text) {
  try {
    return marked.lexer(text);
  } catch (problem) {
    if (!(problem instanceof RangeError)) throw problem;
    return Object.assign([{ type: "space", raw: text, isPlain: true }], { links: {} });
  }
}

/** return: DocumentFragment */
function rendered(token) {
  try {
    if (!token.isPlain) return sanitised(marked.parser([token]));
  } catch (problem) {
    if (!(problem instanceof RangeError)) throw problem;
  }
  const fragment = document.createDocumentFragment();
  fragment.append(element("p", { class: "formless" }, token.raw));
  return fragment;
}

/** A growing text, shown as Markdown inside an element. */
export class Markdown {
  constructor(parent) {
    this.parent = parent;
    this.blocks = []; // [{raw, nodes}]
  }

  /**
   * Show all of the text so far.
   *
   * grows: more will come, so only the last blocks are read again; what comes late for earlier ones, such as the
   *        address of a link that is named in them, is seen when the text is complete
   */
  update(text, grows = false) {
    const kept = grows ? this.#settled(text) : 0;
    const end = this.blocks.slice(0, kept).reduce((sum, { raw }) => sum + raw.length, 0);
    const tokens = lexed(text.slice(end));
    let same = 0;
    while (same < tokens.length && this.blocks[kept + same]?.raw === tokens[same].raw) same += 1;
    // A block with links may be another one now that their addresses are known.
    if (!grows && Object.keys(tokens.links).length) same = 0;
    for (const { nodes } of this.blocks.splice(kept + same)) for (const node of nodes) node.remove();
    for (const token of tokens.slice(same)) {
      const fragment = rendered(token);
      furnish(fragment);
      this.blocks.push({ raw: token.raw, nodes: [...fragment.childNodes] });
      this.parent.append(fragment);
    }
  }

  /** How many blocks at the beginning nothing that is added can change: all but the last two with text in them. */
  #settled(text) {
    if (text.includes("\r")) return 0; // marked's blocks have other line ends, so they can't be counted in the text
    let last = 2;
    for (let index = this.blocks.length - 1; index >= 0; index -= 1) {
      if (this.blocks[index].nodes.length && --last === 0) return index;
    }
    return 0;
  }
}

/** What the page itself adds: a head with a copy button to code, a frame in which wide tables scroll, directions. */
function furnish(fragment) {
  for (const pre of fragment.querySelectorAll("pre")) {
    const code = pre.querySelector("code");
    const name = [...(code?.classList ?? [])].find((one) => one.startsWith("language-"))?.slice(9) ?? "";
    const copy = button(say("copy"), () => copyText(pre.textContent, copy), { "aria-label": say("copyCode") });
    const head = element("div", { class: "code-head" }, element("span", {}, name), copy);
    const frame = element("div", { class: "code" });
    pre.replaceWith(frame);
    frame.dir = "ltr";
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
  for (const block of fragment.children) if (!block.dir) block.dir = "auto"; // from right to left where its words are
}

/** Put text on the clipboard, and say so on the button for a moment. */
export async function copyText(text, control) {
  try {
    // Browsers have the clipboard's interface only for https and this machine itself.
    if (navigator.clipboard) await navigator.clipboard.writeText(text);
    else copySelected(text, control);
  } catch {
    return; // the browser didn't allow it
  }
  control.textContent = say("copied");
  setTimeout(() => (control.textContent = say("copy")), 1500);
}

function copySelected(text, control) {
  const field = element("textarea", { class: "unseen" });
  field.value = text;
  document.body.append(field);
  field.select();
  document.execCommand("copy");
  field.remove();
  control.focus();
}
