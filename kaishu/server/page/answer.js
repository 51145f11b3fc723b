/**
 * One streamed answer, gathered into its message.
 *
 * Owns what each part of a chunk means: thought, content, calls, log probabilities, usage, times. Pure: chunks and the
 * time come in, the message's fields change; nothing is shown or stored here.
 */

/** How a token came: in a step of its own; with others, since it had been guessed; or since nothing else could come. */
export const ORIGINS = Object.freeze(["sampled", "guessed", "forced"]);
const SHORTEST_MS = 50;

/** An assistant's message that nothing is known of yet. */
export function emptyAnswer(id, parent, created) {
  return {
    id,
    parent,
    created,
    role: "assistant",
    content: "",
    reasoning: "",
    toolCalls: [],
    finish: null, // "stop", "length", "tool_calls", "stopped" (by the person), "failed"
    problem: null,
    reasoningTokens: 0,
    numTokens: 0, // by log probabilities, else by chunks, which have one or more tokens
    usage: null, // {prompt, cached, completion, reasoning}
    firstTokenMs: null,
    streamMs: null,
    tokens: null,
  };
}

export class Gathering {
  /** startedMs: when the request was sent, on the clock that `push` gets its times from */
  constructor(message, startedMs) {
    this.message = message;
    this.startedMs = startedMs;
    this.serverId = null; // of the stream, as the server calls it
    this.isThinking = false;
  }

  push(chunk, nowMs) {
    this.serverId ??= typeof chunk.id === "string" ? chunk.id : null;
    if (chunk.usage) this.#usage(chunk.usage);
    const choice = chunk.choices?.[0];
    if (!choice) return;
    const delta = choice.delta ?? {};
    const thought = delta.reasoning_content ?? delta.reasoning ?? "";
    const entries = choice.logprobs?.content ?? [];
    const says = Boolean(thought || delta.content || delta.tool_calls?.length || entries.length);
    if (says) this.#time(nowMs, entries.length || 1);
    if (thought) {
      this.message.reasoning += thought;
      this.message.reasoningTokens += entries.length || 1;
    }
    if (delta.content) this.message.content += delta.content;
    if (says) this.isThinking = Boolean(thought);
    for (const call of delta.tool_calls ?? []) this.#call(call);
    if (entries.length) this.#tokens(entries, choice.kaishu);
    if (choice.finish_reason) {
      this.message.finish = choice.finish_reason;
      this.isThinking = false;
    }
  }

  #time(nowMs, numTokens) {
    const { message } = this;
    message.firstTokenMs ??= nowMs - this.startedMs;
    message.streamMs = nowMs - this.startedMs - message.firstTokenMs;
    message.numTokens += numTokens;
  }

  #call(part) {
    const calls = this.message.toolCalls;
    const index = part.index ?? calls.length;
    calls[index] ??= { id: "", name: "", arguments: "" };
    if (part.id) calls[index].id = part.id;
    if (part.function?.name) calls[index].name = part.function.name;
    calls[index].arguments += part.function?.arguments ?? "";
  }

  #tokens(entries, extra) {
    this.message.tokens ??= [];
    entries.forEach((entry, place) => {
      const token = { ...compact(entry), top: (entry.top_logprobs ?? []).map(compact) };
      const origin = extra?.origins?.[place]; // other servers don't tell it
      if (ORIGINS.includes(origin)) token.origin = origin;
      this.message.tokens.push(token);
    });
  }

  #usage(usage) {
    const { message } = this;
    message.usage = {
      prompt: usage.prompt_tokens ?? 0,
      cached: usage.prompt_tokens_details?.cached_tokens ?? 0,
      completion: usage.completion_tokens ?? 0,
      reasoning: usage.completion_tokens_details?.reasoning_tokens ?? 0,
    };
    message.numTokens = message.usage.completion;
    if (message.usage.reasoning) message.reasoningTokens = message.usage.reasoning;
  }
}

/** Tokens a second; null where there is too little to say it: what comes in one piece has no speed. */
export function speed(numTokens, milliseconds) {
  return numTokens > 0 && milliseconds >= SHORTEST_MS ? (numTokens * 1000) / milliseconds : null;
}

/** An entry as it is kept: bytes only where the text doesn't say them. */
function compact({ token, logprob, bytes }) {
  const isCut = token.includes("\ufffd") && Array.isArray(bytes);
  return isCut ? { text: token, logprob, bytes } : { text: token, logprob };
}
