"""What every generator of the tiny model's world shares: the conversation record, the split, small helpers.

Owns the rule that says which content is held out: a checksum of the content itself (operands, list, city and tool, …),
so that no wording of a held-out item can ever appear in training.
"""

import random
import zlib
from dataclasses import dataclass, field
from typing import Any, Literal

Split = Literal["train", "eval"]
Message = dict[str, Any]
Tool = dict[str, Any]


@dataclass
class Conversation:
    """One training or evaluation item. The last message is the assistant's: what the model must say.

    A document (no chat template) has `document` set and no messages.
    """

    skill: str
    messages: list[Message] = field(default_factory=list)
    tools: list[Tool] | None = None
    thinking: bool = False
    document: str | None = None


def is_held_out(*content: object) -> bool:
    """About one content in sixteen is kept away from training."""
    return zlib.crc32("|".join(map(str, content)).encode()) % 997 < 62


def belongs(split: Split, *content: object) -> bool:
    return is_held_out(*content) == (split == "eval")


def user(text: str) -> Message:
    return {"role": "user", "content": text}


def assistant(text: str, thought: str | None = None) -> Message:
    message: Message = {"role": "assistant", "content": text}
    if thought is not None:
        message["reasoning_content"] = thought
    return message


def vary(rng: random.Random, text: str) -> str:
    """The same words as different people type them: case, final punctuation, a stray newline or space."""
    draw = rng.random()
    if draw < 0.10:
        text = text[:1].lower() + text[1:]
    elif draw < 0.14:
        text = text.rstrip(".?!。？！")
    elif draw < 0.18:
        text = text.lower().rstrip(".?!。？！")
    draw = rng.random()
    if draw < 0.04:
        text += "\n"
    elif draw < 0.06:
        text += " "
    elif draw < 0.07:
        text = " " + text
    return text


def made_up_word(rng: random.Random, syllables: int | None = None) -> str:
    """A pronounceable word that means nothing, so that copying it can't be memorised."""
    count = syllables or rng.choice((2, 2, 3))
    word = "".join(rng.choice("bcdfghjklmnprstvwz") + rng.choice("aeiou") for _ in range(count))
    return word + rng.choice(("", "", "n", "r", "s", "l", "m", "t"))
