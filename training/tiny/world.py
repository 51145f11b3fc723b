"""The tiny model's world: which skills, in which shares. Everything it will ever read comes from here."""

import random
from collections.abc import Iterator
from dataclasses import dataclass

from arithmetic import arithmetic
from common import Conversation
from copying import copying
from dialogues import dialogue
from facts import plain
from lists import lists
from stories import story
from tools import tools


@dataclass(frozen=True)
class Part:
    """A stretch of the run: up to which share of its steps, and the shares of skills among its conversations."""

    until: float
    mixture: dict[str, float]


# Shares of conversations, not of tokens: tool prompts are several times longer.
# Later parts give more to what is learnt last: subtraction, sorting, tools.
PARTS = (
    Part(
        0.35,
        {
            "arithmetic direct": 0.30,
            "arithmetic thinking": 0.09,
            "lists": 0.18,
            "sorting": 0.04,
            "tools": 0.12,
            "plain": 0.14,
            "multi-turn": 0.06,
            "repeating": 0.05,
            "documents": 0.02,
        },
    ),
    Part(
        0.6,
        {
            "arithmetic direct": 0.22,
            "arithmetic thinking": 0.05,
            "lists": 0.16,
            "sorting": 0.12,
            "tools": 0.16,
            "tool calls": 0.06,
            "plain": 0.11,
            "multi-turn": 0.06,
            "repeating": 0.04,
            "documents": 0.02,
        },
    ),
    Part(
        1.0,
        {
            "arithmetic direct": 0.05,
            "subtraction direct": 0.17,
            "arithmetic thinking": 0.03,
            "subtraction thinking": 0.05,
            "lists": 0.04,
            "sorting": 0.24,
            "tools": 0.11,
            "tool calls": 0.14,
            "plain": 0.09,
            "multi-turn": 0.05,
            "repeating": 0.01,
            "documents": 0.02,
        },
    ),
)


def mixture_at(share: float) -> dict[str, float]:
    """The shares of skills when so much of the run is done."""
    return next(part.mixture for part in PARTS if share < part.until)


def draw(rng: random.Random, skill: str) -> Conversation:
    """One training conversation of a skill."""
    thinking = rng.random() < 0.45
    if skill == "arithmetic direct":
        return arithmetic(rng, "train", False)
    if skill == "arithmetic thinking":
        return arithmetic(rng, "train", True)
    if skill == "subtraction direct":
        return arithmetic(rng, "train", False, "-")
    if skill == "subtraction thinking":
        return arithmetic(rng, "train", True, "-")
    if skill == "sorting":
        return lists(rng, "train", thinking, sorting=True)
    if skill == "tool calls":
        return tools(rng, "train", thinking, form=rng.choice(("call", "call", "call", "two", "none")))
    if skill == "lists":
        return lists(rng, "train", thinking)
    if skill == "tools":
        return tools(rng, "train", thinking)
    if skill == "repeating":
        return copying(rng, "train", thinking)
    if skill == "plain":
        return plain(rng, "train", thinking)
    if skill == "multi-turn":
        return dialogue(rng, "train", thinking)
    return story(rng)


def conversations(rng: random.Random, mixture: dict[str, float]) -> Iterator[Conversation]:
    """An endless stream of training conversations."""
    skills, weights = list(mixture), list(mixture.values())
    while True:
        yield draw(rng, rng.choices(skills, weights)[0])


def all_skills(rng: random.Random) -> Iterator[Conversation]:
    """The first part's mixture, in which every skill has its share."""
    return conversations(rng, PARTS[0].mixture)
