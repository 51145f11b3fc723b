/**
 * Tokens as people read them.
 *
 * Owns the arithmetic of the token view: what text each token shows, how surprising it was, what all of them together
 * were. Pure; token_view.js draws.
 */

const VISIBLE = new Map([
  ["\n", "↵"],
  ["\r", "␍"],
  ["\t", "→"],
  [" ", "·"],
]);

/** A token's bytes. */
export function bytesOf(token) {
  return token.bytes ? Uint8Array.from(token.bytes) : new TextEncoder().encode(token.text);
}

/**
 * What each token shows where it stands: characters that several tokens make together stand with the last of them, and
 * the ones before show nothing.
 */
export function shownTexts(tokens) {
  const decoder = new TextDecoder("utf-8", { ignoreBOM: true });
  return tokens.map((token) => decoder.decode(bytesOf(token), { stream: true }));
}

/** A token alone, with its white space made visible; as bytes where it is no whole character. */
export function named(token) {
  if (token.bytes) return token.bytes.map((byte) => byte.toString(16).toUpperCase().padStart(2, "0")).join(" ");
  if (token.text === "") return "∅";
  return [...token.text].map((character) => VISIBLE.get(character) ?? character).join("");
}

/** From a log probability to a probability from 0 to 1. */
export function probability(token) {
  return Math.min(1, Math.exp(token.logprob));
}

/** How surprising: 0 for a certain token, 1 for one chance in 64 or less. */
export function surprise(token) {
  return Math.max(0, Math.min(1, -token.logprob / Math.log(64)));
}

/** A probability in words of a few characters: 97 %, 3.1 %, 0.02 %. */
export function percent(value, language) {
  const share = value * 100;
  const isTiny = share > 0 && share < 0.005;
  const digits = share >= 99.95 ? 0 : share >= 10 ? 1 : 2;
  const text = new Intl.NumberFormat(language, { maximumFractionDigits: digits }).format(isTiny ? 0.01 : share);
  return `${isTiny ? "< " : ""}${text} %`;
}

/** Of a whole answer: {count, perplexity, guessed, forced}; the last two count tokens of these origins. */
export function summary(tokens) {
  const sum = tokens.reduce((total, token) => total + token.logprob, 0);
  const from = (origin) => tokens.filter((token) => token.origin === origin).length;
  return {
    count: tokens.length,
    perplexity: tokens.length ? Math.exp(-sum / tokens.length) : 1,
    guessed: from("guessed"),
    forced: from("forced"),
  };
}

/** The alternatives at a place, likeliest first, with the chosen one among them: [{token, isChosen}]. */
export function alternatives(token) {
  const same = (other) => other.text === token.text && String(other.bytes) === String(token.bytes);
  const found = token.top.map((other) => ({ token: other, isChosen: same(other) }));
  return found.some((one) => one.isChosen) ? found : [...found, { token, isChosen: true }];
}
