/**
 * How answers are made: the person's settings, and the request that comes of them.
 *
 * Owns names, bounds and defaults of the settings, and the body of a chat request. Pure: settings_panel.js shows them,
 * store.js keeps them. null means that the model's own value is used.
 */

export const DEFAULTS = Object.freeze({
  system: "",
  tools: "",
  temperature: null,
  topP: null,
  topK: null,
  maxTokens: null,
  seed: null,
  thinking: "auto",
  thinkingBudget: null,
});

/** Of the numbers: bounds, step, and the request's field. */
export const NUMBERS = Object.freeze({
  temperature: { low: 0, high: 2, step: 0.05, field: "temperature" },
  topP: { low: 0, high: 1, step: 0.01, field: "top_p" },
  topK: { low: 0, high: 1000, step: 1, field: "top_k" },
  maxTokens: { low: 1, high: 1_000_000, step: 1, field: "max_tokens" },
  seed: { low: 0, high: Number.MAX_SAFE_INTEGER, step: 1, field: "seed" },
  thinkingBudget: { low: 0, high: 1_000_000, step: 1, field: "thinking_budget" },
});

export const THINKING = Object.freeze(["auto", "on", "off"]);

/** A number that was typed; null for none. raises: RangeError for what isn't allowed */
export function readNumber(name, text) {
  if (text.trim() === "") return null;
  const { low, high, step } = NUMBERS[name];
  const value = Number(text);
  const isAllowed = Number.isFinite(value) && value >= low && value <= high && (step < 1 || Number.isInteger(value));
  if (!isAllowed) throw new RangeError(`${low} – ${high}`);
  return value;
}

/** Tools that were typed, as the API takes them; null for none. raises: SyntaxError, TypeError */
export function readTools(text) {
  if (text.trim() === "") return null;
  const found = JSON.parse(text);
  const tools = Array.isArray(found) ? found : [found];
  if (!tools.every((tool) => tool !== null && typeof tool === "object")) throw new TypeError("tools");
  return tools.length ? tools.map((tool) => (tool.type ? tool : { type: "function", function: tool })) : null;
}

/** Settings from anywhere, such as a file: what isn't a setting or isn't allowed falls back to its default. */
export function cleanSettings(found) {
  const made = { ...DEFAULTS };
  if (found === null || typeof found !== "object") return made;
  for (const name of ["system", "tools"]) if (typeof found[name] === "string") made[name] = found[name];
  try {
    readTools(made.tools);
  } catch {
    made.tools = DEFAULTS.tools;
  }
  if (THINKING.includes(found.thinking)) made.thinking = found.thinking;
  for (const name of Object.keys(NUMBERS)) {
    if (typeof found[name] !== "number") continue;
    try {
      made[name] = readNumber(name, String(found[name]));
    } catch {
      made[name] = null;
    }
  }
  return made;
}

/**
 * The body of a chat request.
 *
 * path:          the conversation's messages up to what is to be answered
 * recordsTokens: whether to ask for log probabilities
 */
export function requestBody(settings, model, path, recordsTokens) {
  const messages = path.filter((message) => message.role !== "assistant" || saysSomething(message)).map(apiMessage);
  if (settings.system.trim()) messages.unshift({ role: "system", content: settings.system });
  const body = { model, messages, stream: true, stream_options: { include_usage: true } };
  for (const [name, { field }] of Object.entries(NUMBERS)) {
    if (settings[name] !== null) body[field] = settings[name];
  }
  if (settings.thinking !== "auto") body.enable_thinking = settings.thinking === "on";
  if (settings.thinking === "off") delete body.thinking_budget;
  const tools = readTools(settings.tools);
  if (tools) body.tools = tools;
  if (recordsTokens) Object.assign(body, { logprobs: true, top_logprobs: 5 });
  return body;
}

function saysSomething(message) {
  return Boolean(message.content || message.reasoning || wholeCalls(message).length);
}

/** An answer's calls without one that was cut off in its middle, which no server takes. */
function wholeCalls(message) {
  return message.toolCalls.filter((call) => {
    try {
      return Boolean(call.name && JSON.parse(call.arguments));
    } catch {
      return false;
    }
  });
}

function apiMessage(message) {
  if (message.role === "tool") return { role: "tool", tool_call_id: message.toolCallId, content: message.content };
  if (message.role === "user") return { role: "user", content: message.content };
  const made = { role: "assistant", content: message.content };
  if (message.reasoning) made.reasoning_content = message.reasoning;
  const calls = wholeCalls(message);
  if (calls.length) {
    made.tool_calls = calls.map((call) => ({
      id: call.id,
      type: "function",
      function: { name: call.name, arguments: call.arguments },
    }));
  }
  return made;
}
