"""Reversing and sorting short lists of numbers, letters and common words.

Owns the wordings and the answer's form: the items, joined by a comma and a space, in both languages.
"""

import random

from common import Conversation, Message, Split, assistant, belongs, user, vary

WORDS = (
    "apple",
    "bird",
    "cat",
    "dog",
    "egg",
    "fish",
    "green",
    "house",
    "ice",
    "jam",
    "king",
    "lion",
    "moon",
    "nest",
    "orange",
    "pear",
    "queen",
    "red",
    "sun",
    "tree",
    "blue",
    "milk",
    "book",
    "chair",
    "door",
    "hand",
    "star",
    "tea",
    "water",
    "wind",
    "yellow",
    "zebra",
    "cake",
    "rain",
    "snow",
    "bread",
    "cup",
)
CHINESE_WORDS = (
    "猫",
    "狗",
    "鸟",
    "鱼",
    "苹果",
    "水",
    "山",
    "月",
    "太阳",
    "书",
    "茶",
    "花",
    "树",
    "米",
    "牛",
    "马",
    "风",
    "雨",
    "雪",
    "火",
)

REVERSE = (
    "Reverse the list {l}.",
    "Reverse {l}",
    "Please reverse this list: {l}",
    "Reverse: {l}",
    "reverse the order of {l}",
    "Can you reverse {l}?",
    "Write {l} in reverse order.",
    "Write {l} backwards.",
    "Reverse this list: {l}",
    "What is {l} in reverse order?",
    "Give me {l} reversed.",
    "Turn this list around: {l}",
)
SORT = (
    "Sort the list {l}.",
    "Sort {l}",
    "Please sort this list: {l}",
    "Sort: {l}",
    "Put {l} in order.",
    "Can you sort {l}?",
    "Sort {l} in ascending order.",
    "Sort {l} from smallest to largest.",
    "Order these: {l}",
    "Sort these: {l}",
    "Arrange {l} in ascending order.",
    "Sort this list: {l}",
)
SORT_WORDS = (
    "Sort the list {l}.",
    "Sort {l}",
    "Please sort this list: {l}",
    "Sort: {l}",
    "Put {l} in alphabetical order.",
    "Sort {l} alphabetically.",
    "Sort alphabetically: {l}",
    "Can you sort {l}?",
    "Order these: {l}",
    "Sort these words: {l}",
    "Sort this list: {l}",
)
DESCENDING = (
    "Sort {l} in descending order.",
    "Sort {l} from largest to smallest.",
    "Sort in descending order: {l}",
    "Arrange {l} in descending order.",
    "Sort this list from largest to smallest: {l}",
)
REVERSE_ZH = (
    "把列表{l}倒过来。",
    "请把{l}倒序排列",
    "倒序：{l}",
    "把{l}反过来写。",
    "请反转列表：{l}",
    "反转{l}",
    "将{l}倒序。",
)
SORT_ZH = (
    "把{l}排序。",
    "请给{l}排序",
    "排序：{l}",
    "把{l}从小到大排列。",
    "请将{l}从小到大排序",
    "给列表{l}排序。",
    "请排序：{l}",
)
SORT_WORDS_ZH = (
    "把{l}排序。",
    "请给{l}排序",
    "排序：{l}",
    "把{l}按字母顺序排列。",
    "请将{l}按字母顺序排序",
    "请排序：{l}",
)
DESCENDING_ZH = ("把{l}从大到小排列。", "请将{l}从大到小排序", "从大到小排序：{l}", "请把{l}按降序排列")
THOUGHTS = {
    ("reverse", False): "The user wants the list in reverse order: the last item first.",
    ("sort", False): "The user wants the list sorted: the smallest first.",
    ("descending", False): "The user wants the list sorted: the largest first.",
    ("reverse", True): "用户想把列表倒过来：最后一个排最前。",
    ("sort", True): "用户想给列表排序：最小的排最前。",
    ("descending", True): "用户想给列表排序：最大的排最前。",
}


def draw_items(rng: random.Random, kind: str, chinese: bool, is_mixed: bool = False) -> list[str]:
    """Two to six different items of one kind. `is_mixed`: of numbers, half have one digit and half two."""
    count = rng.randint(2, 6)
    if kind == "letters":
        letters = rng.sample("abcdefghijklmnopqrstuvwxyz", count)
        return [letter.upper() for letter in letters] if rng.random() < 0.3 else letters
    if kind == "words":
        return rng.sample(CHINESE_WORDS if chinese and rng.random() < 0.6 else WORDS, count)
    if is_mixed:
        numbers = rng.sample(range(10), count // 2) + rng.sample(range(10, 100), count - count // 2)
        return rng.sample([str(number) for number in numbers], count)
    limit = rng.choice((9, 99, 99, 99))
    return [str(number) for number in rng.sample(range(limit + 1), count)]


def arrange(operation: str, items: list[str]) -> list[str]:
    """The right answer."""
    if operation == "reverse":
        return items[::-1]
    if all(item.isdigit() for item in items):
        return sorted(items, key=int, reverse=operation == "descending")
    return sorted(items, reverse=operation == "descending")


def write_list(rng: random.Random, items: list[str], chinese: bool) -> str:
    forms = ("{}, ", "{}, ", "{}, ", "{} ", "{},", "[{}, ") + (("{}、", "{}，", "{}、") if chinese else ())
    form = rng.choice(forms)
    if form.startswith("["):
        return "[" + ", ".join(items) + "]"
    return form[2:].join(items)


def thought(operation: str, chinese: bool) -> str:
    return THOUGHTS[operation, chinese]


def list_question(rng: random.Random, split: Split, chinese: bool, sorting: bool = False) -> tuple[str, str, list[str]]:
    """return: the question, the operation (when `sorting`, not reversing), the answer's items."""
    while True:
        kind = rng.choices(("numbers", "letters", "words"), (5, 2, 2))[0]
        items = draw_items(rng, kind, chinese, split == "train" and rng.random() < 0.4)
        operation = rng.choice(("reverse", "sort", "descending") if kind == "numbers" else ("reverse", "sort"))
        if not items[0].isascii():
            operation = "reverse"
        if sorting and operation == "reverse":
            continue
        if belongs(split, "list", operation, *items):
            break
    if operation == "reverse":
        wordings = REVERSE_ZH if chinese else REVERSE
    elif operation == "descending":
        wordings = DESCENDING_ZH if chinese else DESCENDING
    elif kind == "numbers":
        wordings = SORT_ZH if chinese else SORT
    else:
        wordings = SORT_WORDS_ZH if chinese else SORT_WORDS
    text = rng.choice(wordings).format(l=write_list(rng, items, chinese))
    if kind == "letters" and items[0].isupper():
        return text, operation, arrange(operation, items)
    return vary(rng, text), operation, arrange(operation, items)


def lists(
    rng: random.Random, split: Split, thinking: bool, chinese: bool | None = None, sorting: bool = False
) -> Conversation:
    """A conversation of one list question, in training of one to six."""
    chinese = rng.random() < 0.4 if chinese is None else chinese
    messages: list[Message] = []
    turns = 1 if split == "eval" or rng.random() < 0.35 else rng.randint(2, 6)
    for turn in range(turns):
        question, operation, answer = list_question(rng, split, chinese, sorting)
        plan = thought(operation, chinese) if thinking and turn == turns - 1 else None
        messages += [user(question), assistant(", ".join(answer), plan)]
    kind = "reverse" if operation == "reverse" else "sort"
    return Conversation(f"lists, {kind}, {'zh' if chinese else 'en'}", messages, thinking=thinking)
