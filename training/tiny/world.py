"""The tiny model's world: which skills, in which shares. Everything it will ever read comes from here."""

import random
from collections.abc import Iterator

from arithmetic import arithmetic
from common import Conversation
from dialogues import dialogue
from facts import plain
from lists import lists
from stories import story
from tools import tools

# Shares of conversations (not of tokens: tool prompts are several times longer), for each part of the run.
# Later parts give more to what earlier ones didn't learn: sorting and tools, then subtraction too.
MIXTURES: tuple[dict[str, float], ...] = (
    {
        "arithmetic direct": 0.38,
        "arithmetic thinking": 0.10,
        "lists": 0.19,
        "tools": 0.09,
        "plain": 0.15,
        "multi-turn": 0.07,
        "documents": 0.02,
    },
    {
        "arithmetic direct": 0.28,
        "arithmetic thinking": 0.05,
        "lists": 0.30,
        "tools": 0.14,
        "plain": 0.14,
        "multi-turn": 0.07,
        "documents": 0.02,
    },
    {
        "arithmetic direct": 0.06,
        "subtraction direct": 0.24,
        "arithmetic thinking": 0.03,
        "subtraction thinking": 0.06,
        "lists": 0.03,
        "sorting": 0.23,
        "tools": 0.08,
        "tool calls": 0.15,
        "plain": 0.08,
        "multi-turn": 0.03,
        "documents": 0.01,
    },
    {
        "arithmetic direct": 0.04,
        "subtraction direct": 0.10,
        "sorting": 0.27,
        "tools": 0.10,
        "tool calls": 0.33,
        "plain": 0.10,
        "multi-turn": 0.04,
        "documents": 0.02,
    },
)


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
    if skill == "plain":
        return plain(rng, "train", thinking)
    if skill == "multi-turn":
        return dialogue(rng, "train", thinking)
    return story(rng)


def conversations(seed: int, mixture: dict[str, float] | None = None) -> Iterator[Conversation]:
    """An endless, seeded stream of training conversations."""
    rng = random.Random(seed)
    shares = mixture or MIXTURES[0]
    skills, weights = list(shares), list(shares.values())
    while True:
        yield draw(rng, rng.choices(skills, weights)[0])
