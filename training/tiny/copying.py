"""Saying something again, word for word: short, cheap practice in the copying that tool calls and names need.

Owns the wordings and the texts: invented words, names as programmers write them, places, digits, in both languages.
"""

import random

from common import Conversation, Message, Split, assistant, belongs, made_up_word, user
from places import draw_city, draw_name
from tool_data import KINDS

WORDINGS = ("Repeat: {x}", "Say: {x}", "Repeat after me: {x}", "Please repeat: {x}", "repeat: {x}", "Copy this: {x}")
WORDINGS_ZH = ("重复：{x}", "请重复：{x}", "跟我说：{x}", "照抄：{x}", "说：{x}")
PLAN, PLAN_ZH = "The user wants the text again, word for word.", "用户想让我一字不差地重复。"


def draw_part(rng: random.Random, chinese: bool) -> str:
    """One word, name or number."""
    draw = rng.random()
    if draw < 0.25:
        return draw_city(rng, chinese, made_up=0.3)
    if draw < 0.35:
        return draw_name(rng, chinese)
    if draw < 0.5:
        kind = rng.choice(KINDS)
        return rng.choice((*kind.names, *kind.parameters))
    if draw < 0.65:
        return rng.choice(("_", "", "-")).join(made_up_word(rng) for _ in range(rng.choice((1, 2))))
    if draw < 0.75:
        return str(rng.randrange(10 ** rng.randint(1, 5)))
    word = made_up_word(rng)
    return rng.choice((word, word.capitalize()))


def copying(rng: random.Random, split: Split, thinking: bool) -> Conversation:
    """A conversation of one text to repeat, in training of one to six."""
    chinese = rng.random() < 0.4
    messages: list[Message] = []
    turns = 1 if split == "eval" or rng.random() < 0.35 else rng.randint(2, 6)
    for turn in range(turns):
        while True:
            text = " ".join(draw_part(rng, chinese) for _ in range(rng.randint(1, 5)))
            if belongs(split, "copy", text):
                break
        plan = (PLAN_ZH if chinese else PLAN) if thinking and turn == turns - 1 else None
        messages += [user(rng.choice(WORDINGS_ZH if chinese else WORDINGS).format(x=text)), assistant(text, plan)]
    return Conversation("repeating", messages, thinking=thinking)
