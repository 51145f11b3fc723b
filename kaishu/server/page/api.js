/**
 * The server's API, as far as the page uses it.
 *
 * Owns requests, the API key, and what an error answer is. Knows nothing of the document or of conversations.
 */

import { eventData } from "./event_stream.js";
import { ofThisTab } from "./kept.js";
import { text } from "./strings.js";

const KEY_NAME = "kaishu.api_key";
const NO_HEADER = /[^\x20-\x7e]/; // a key that can't be sent is none that a server knows

/** An answer that is an error. status 0: nothing answered. */
export class ApiError extends Error {
  constructor(status, message, code = null) {
    super(message);
    this.status = status;
    this.code = code;
  }
}

/** The key, kept until the tab is closed. */
export function apiKey() {
  return ofThisTab.get(KEY_NAME) ?? "";
}

export function setApiKey(key) {
  ofThisTab.set(KEY_NAME, key);
}

/** The models that the server has: [{id, contextLength}]; contextLength is null where it isn't told. */
export async function models() {
  const response = await ask("/v1/models");
  try {
    const { data } = await response.json();
    return data.map((model) => ({ id: String(model.id), contextLength: positive(model.context_length) }));
  } catch (problem) {
    throw brokenOff(problem);
  }
}

/** The chunks of a streamed chat. Ends early, with an AbortError, when the signal says so. */
export async function* chatChunks(body, signal) {
  const response = await ask("/v1/chat/completions", { body, signal });
  try {
    for await (const data of eventData(response.body)) {
      if (data === "[DONE]") return;
      const chunk = JSON.parse(data);
      if (chunk.error) throw new ApiError(response.status, String(chunk.error.message), chunk.error.code);
      yield chunk;
    }
  } catch (problem) {
    throw brokenOff(problem);
  }
  throw new ApiError(0, "");
}

/** End the thought of an answer that is being written. return: whether the server could */
export async function stopThinking(id) {
  try {
    await ask(`/v1/chat/completions/${encodeURIComponent(id)}/stop_thinking`, { body: {} });
    return true;
  } catch (problem) {
    if (problem instanceof ApiError) return false;
    throw problem;
  }
}

async function ask(path, { body, signal } = {}) {
  const headers = {};
  if (NO_HEADER.test(apiKey())) throw new ApiError(401, text("keyWrong"));
  if (apiKey()) headers.Authorization = `Bearer ${apiKey()}`;
  if (body) headers["Content-Type"] = "application/json";
  let response;
  try {
    response = await fetch(path, {
      method: body ? "POST" : "GET",
      headers,
      body: body ? JSON.stringify(body) : undefined,
      signal,
      cache: "no-store",
      credentials: "same-origin",
    });
  } catch (problem) {
    throw brokenOff(problem);
  }
  if (!response.ok) throw await errorOf(response);
  return response;
}

/** What to raise for an answer that didn't come, or not whole, or as nothing that can be read. */
function brokenOff(problem) {
  return problem instanceof ApiError || problem.name === "AbortError" ? problem : new ApiError(0, "");
}

async function errorOf(response) {
  try {
    const { error } = await response.json();
    return new ApiError(response.status, String(error.message), error.code);
  } catch {
    return new ApiError(response.status, `HTTP ${response.status}`);
  }
}

function positive(value) {
  return Number.isInteger(value) && value > 0 ? value : null;
}
