"""Evaluation of the tiny model on held-out prompts: exact matches, greedy, printed as a Markdown table.

Run: python training/tiny/evaluate.py [--model FOLDER] [--samples 200] [--threads 2] [--wrong 3]
Held out means: the operands, the list, the pair of city and tool, the name, the wording of the fact never occurred in
training. An answer counts only if it equals the wanted text character for character (with thinking on: after a think
block, whose own text is not compared). Small talk has few texts, so its held-out spellings repeat.
"""

import argparse
import random
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from answering import correct, load, prompt_of, wanted
from arithmetic import arithmetic
from common import Conversation
from copying import copying
from dialogues import dialogue
from facts import plain
from lists import lists
from make_tokenizer import FOLDER
from tools import tools

Maker = Callable[[random.Random], Conversation]


@dataclass(frozen=True)
class Category:
    """One row of the table: how to draw an item."""

    name: str
    make: Maker


def sums(sign: str, thinking: bool, chinese: bool) -> Maker:
    return lambda rng: arithmetic(rng, "eval", thinking, sign, chinese)


def plains(kind: str, chinese: bool) -> Maker:
    return lambda rng: plain(rng, "eval", rng.random() < 0.5, kind, chinese)


def tool_items(form: str) -> Maker:
    return lambda rng: tools(rng, "eval", rng.random() < 0.5, form)


def lists_of(operation: str, chinese: bool) -> Maker:
    """Lists of one operation only: others are drawn again."""

    def make(rng: random.Random) -> Conversation:
        while True:
            item = lists(rng, "eval", rng.random() < 0.5, chinese)
            if operation in item.skill:
                return item

    return make


def categories() -> list[Category]:
    """Every row, in the order of the table."""
    rows = []
    for sign, operation in (("+", "addition"), ("-", "subtraction")):
        for thinking, mode in ((False, "direct"), (True, "thinking")):
            for chinese, language in ((False, "en"), (True, "zh")):
                rows.append(Category(f"{operation}, {mode}, {language}", sums(sign, thinking, chinese)))
    for operation in ("reverse", "sort"):
        for chinese, language in ((False, "en"), (True, "zh")):
            rows.append(Category(f"lists, {operation}, {language}", lists_of(operation, chinese)))
    for kind in ("facts", "greetings", "fallback"):
        for chinese, language in ((False, "en"), (True, "zh")):
            rows.append(Category(f"{kind}, {language}", plains(kind, chinese)))
    rows.append(Category("tool calls, one", tool_items("call")))
    rows.append(Category("tool calls, two", tool_items("two")))
    rows.append(Category("answers from tool results", tool_items("answered")))
    rows.append(Category("tools given, none needed", tool_items("none")))
    rows.append(Category("repeating", lambda rng: copying(rng, "eval", rng.random() < 0.5)))
    rows.append(Category("multi-turn", lambda rng: dialogue(rng, "eval", rng.random() < 0.5)))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, default=FOLDER)
    parser.add_argument("--samples", type=int, default=200, help="items in each row")
    parser.add_argument("--seed", type=int, default=2024)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--wrong", type=int, default=0, help="show so many wrong answers of each row")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    model, tokenizer = load(arguments.model)
    print("| held-out prompts | right | of | share |\n|---|---:|---:|---:|")
    total = 0
    rows = categories()
    for row in rows:
        rng = random.Random(zlib.crc32(f"{arguments.seed} {row.name}".encode()))
        results = correct(model, tokenizer, [row.make(rng) for _ in range(arguments.samples)])
        right = sum(is_right for _, _, is_right in results)
        total += right
        print(f"| {row.name} | {right} | {arguments.samples} | {right / arguments.samples:.1%} |", flush=True)
        for item, said, _ in [result for result in results if not result[2]][: arguments.wrong]:
            print(f"    {prompt_of(item)[-160:]!r}\n    wanted {wanted(item)!r}\n    said   {said!r}")
    print(f"| **all** | {total} | {arguments.samples * len(rows)} | {total / arguments.samples / len(rows):.1%} |")


if __name__ == "__main__":
    main()
