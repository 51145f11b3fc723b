/**
 * Conversations as files: out as JSON or Markdown, in from JSON.
 *
 * Owns the file's form. What comes in was written by anybody, so each field is read by its type, and what isn't known
 * is left behind. Pure.
 */

import { ORIGINS } from "./answer.js";
import { cleanSettings } from "./settings.js";

const FORM = "kaishu-conversations";
const ROLES = new Set(["user", "assistant", "tool"]);
const FINISHES = new Set(["stop", "length", "tool_calls", "stopped", "failed"]);

/** JSON of conversations with all their branches. conversations: [{conversation, messages}] */
export function toJson(conversations) {
  const all = conversations.map(({ conversation, messages }) => ({
    ...conversation,
    messages: messages.map(({ conversation: _, ...message }) => message),
  }));
  return JSON.stringify({ form: FORM, version: 1, conversations: all }); // tokens are many: white space would triple it
}

/** The path that is shown, to be read. names: {user, assistant, thinking, tool} */
export function toMarkdown(title, system, path, names) {
  const parts = [`# ${title}`];
  if (system.trim()) parts.push(quoted(system));
  for (const message of path) {
    parts.push(`## ${names[message.role]}`);
    if (message.reasoning)
      parts.push(`<details><summary>${names.thinking}</summary>\n\n${message.reasoning}\n\n</details>`);
    if (message.content) parts.push(message.role === "tool" ? fenced(message.content) : message.content);
    for (const call of message.toolCalls ?? []) parts.push(`**${call.name}**`, fenced(call.arguments, "json"));
  }
  return `${parts.join("\n\n")}\n`;
}

/**
 * Conversations of a file, with new ids, so that nothing that is here is overwritten.
 *
 * newId:  () → an id
 * return: [{conversation, messages}]
 * raises: TypeError or SyntaxError where it is no such file
 */
export function fromJson(text, newId, now) {
  const file = JSON.parse(text);
  if (file?.form !== FORM || file.version !== 1 || !Array.isArray(file.conversations)) throw new TypeError(FORM);
  return file.conversations.map((found) => {
    if (found === null || typeof found !== "object" || !Array.isArray(found.messages)) throw new TypeError(FORM);
    const ids = new Map();
    const messages = [];
    for (const message of found.messages) {
      // A message comes after its parent, so that there are no circles.
      if (!message || !ROLES.has(message.role) || (message.parent !== null && !ids.has(message.parent))) {
        throw new TypeError(FORM);
      }
      const id = newId();
      messages.push({ ...cleanMessage(message), id, parent: message.parent === null ? null : ids.get(message.parent) });
      ids.set(message.id, id);
    }
    const conversation = {
      id: newId(),
      title: string(found.title).slice(0, 200),
      created: number(found.created) ?? now,
      updated: number(found.updated) ?? now,
      leaf: ids.get(found.leaf) ?? messages.at(-1)?.id ?? null,
      settings: cleanSettings(found.settings),
    };
    return { conversation, messages };
  });
}

/** Messages in an order in which each comes after its parent; one whose parent isn't there follows none. */
export function parentsFirst(messages) {
  const byId = new Map(messages.map((one) => [one.id, one]));
  const depths = new Map();
  for (const message of messages) {
    let steps = 0;
    for (let at = message; at && steps <= messages.length; at = byId.get(at.parent)) steps += 1;
    depths.set(message, steps);
  }
  return [...messages]
    .sort((one, other) => depths.get(one) - depths.get(other) || one.created - other.created)
    .map((message) => (byId.has(message.parent) ? message : { ...message, parent: null }));
}

function cleanMessage(message) {
  const made = { role: message.role, created: number(message.created) ?? 0, content: string(message.content) };
  if (message.role === "tool") made.toolCallId = string(message.toolCallId);
  if (message.role !== "assistant") return made;
  return {
    ...made,
    reasoning: string(message.reasoning),
    reasoningTokens: number(message.reasoningTokens) ?? 0,
    toolCalls: list(message.toolCalls).map((call) => ({
      id: string(call?.id),
      name: string(call?.name),
      arguments: string(call?.arguments),
    })),
    finish: FINISHES.has(message.finish) ? message.finish : "stopped",
    problem: typeof message.problem === "string" ? message.problem : null,
    numTokens: number(message.numTokens) ?? 0,
    usage: cleanUsage(message.usage),
    firstTokenMs: number(message.firstTokenMs),
    streamMs: number(message.streamMs),
    tokens: Array.isArray(message.tokens) ? message.tokens.map(cleanToken) : null,
  };
}

function cleanUsage(usage) {
  if (usage === null || typeof usage !== "object") return null;
  const names = ["prompt", "cached", "completion", "reasoning"];
  return Object.fromEntries(names.map((name) => [name, number(usage[name]) ?? 0]));
}

function cleanToken(token) {
  const made = { ...cleanEntry(token), top: list(token?.top).map(cleanEntry) };
  if (ORIGINS.includes(token?.origin)) made.origin = token.origin;
  return made;
}

function cleanEntry(entry) {
  const made = { text: string(entry?.text), logprob: Math.min(0, number(entry?.logprob) ?? 0) };
  const isBytes =
    Array.isArray(entry?.bytes) && entry.bytes.every((byte) => Number.isInteger(byte) && byte >= 0 && byte < 256);
  return isBytes ? { ...made, bytes: entry.bytes } : made;
}

function string(value) {
  return typeof value === "string" ? value : "";
}

function number(value) {
  return typeof value === "number" && Number.isFinite(value) ? value : null;
}

function list(value) {
  return Array.isArray(value) ? value : [];
}

function quoted(text) {
  return text
    .split("\n")
    .map((line) => `> ${line}`)
    .join("\n");
}

function fenced(text, language = "") {
  const longest = Math.max(2, ...(text.match(/`+/g) ?? []).map((run) => run.length));
  const fence = "`".repeat(longest + 1);
  return `${fence}${language}\n${text}\n${fence}`;
}
