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

# Shares of conversations (not of tokens): tool prompts are several times longer than the rest.
MIXTURE: dict[str, float] = {
    "arithmetic direct": 0.38,
    "arithmetic thinking": 0.10,
    "lists": 0.19,
    "tools": 0.09,
    "plain": 0.15,
    "multi-turn": 0.07,
    "documents": 0.02,
}


def draw(rng: random.Random, skill: str) -> Conversation:
    """One training conversation of a skill."""
    thinking = rng.random() < 0.45
    if skill == "arithmetic direct":
        return arithmetic(rng, "train", False)
    if skill == "arithmetic thinking":
        return arithmetic(rng, "train", True)
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
    shares = mixture or MIXTURE
    skills, weights = list(shares), list(shares.values())
    while True:
        yield draw(rng, rng.choices(skills, weights)[0])
