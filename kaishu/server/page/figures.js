/** Numbers under an answer and beside the message field. Owns what they are made of and how they are written. */

import { speed } from "./answer.js";
import { element } from "./elements.js";
import { numeral, text, tokenCount } from "./strings.js";

/** How fast an answer came and what the cache spared, as pieces of text. */
export function answerFigures(message) {
  const pieces = [];
  const { numTokens } = message;
  if (numTokens) pieces.push(tokenCount(numTokens));
  const perSecond = speed(numTokens - 1, message.streamMs); // the time begins with the first
  if (perSecond !== null) pieces.push(text("tokensPerSecond", { speed: numeral(perSecond, perSecond < 10 ? 1 : 0) }));
  if (message.firstTokenMs !== null) {
    pieces.push(text("firstToken", { seconds: numeral(message.firstTokenMs / 1000, 2) }));
  }
  if (message.usage?.cached) {
    const { cached, prompt } = message.usage;
    pieces.push(text("fromCache", { cached: numeral(cached), prompt: numeral(prompt) }));
  }
  return pieces;
}

/** How many tokens of context a path takes, as far as its last answer tells; null where none does. */
export function usedTokens(path, gathering) {
  const counted = path.filter((message) => message.usage).at(-1)?.usage;
  const before = counted ? counted.prompt + counted.completion : null;
  return gathering && before !== null ? before + gathering.message.numTokens : before;
}

/** Show the context meter. length: of the model's context; null where it isn't known */
export function showContext(place, used, length) {
  place.replaceChildren();
  if (used === null) return;
  if (length === null) {
    place.textContent = text("contextOnly", { used: numeral(used) });
    return;
  }
  const share = Math.min(1, used / length);
  const words = text("contextUsed", { used: numeral(used), length: numeral(length) });
  const fill = element("span", { class: share > 0.9 ? "fill full" : "fill" });
  fill.style.inlineSize = `${share * 100}%`;
  const meter = element(
    "span",
    {
      class: "meter",
      role: "meter",
      "aria-label": text("context"),
      "aria-valuemin": 0,
      "aria-valuemax": length,
      "aria-valuenow": Math.min(used, length),
      "aria-valuetext": words,
    },
    fill,
  );
  place.append(meter, element("span", {}, words));
}
