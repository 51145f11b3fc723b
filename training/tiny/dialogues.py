"""Conversations of several turns: a mixture of everything, and remembering what the user said.

Owns the memory questions (name, home, favourite colour) and list follow-ups.
"""

import random

from arithmetic import SYSTEMS, draw_sum, solve
from common import Conversation, Message, Split, assistant, belongs, user, vary
from facts import plain_question, plan_of
from lists import arrange, draw_items, list_question, thought, write_list
from places import draw_city, draw_name

# What to remember: statements, acknowledgement, questions, answer, answer if never told; then the same in Chinese.
MEMORIES: dict[str, tuple[tuple[tuple[str, ...], str, tuple[str, ...], str, str], ...]] = {
    "name": (
        (
            (
                "My name is {x}.",
                "I am {x}.",
                "I'm {x}.",
                "Hi, I am {x}.",
                "Hello, my name is {x}.",
                "Call me {x}.",
                "You can call me {x}.",
            ),
            "Nice to meet you, {x}!",
            ("What is my name?", "What's my name?", "Who am I?", "Do you remember my name?", "what is my name"),
            "Your name is {x}.",
            "I do not know your name yet.",
        ),
        (
            ("我叫{x}。", "我是{x}。", "你好，我叫{x}。", "我的名字是{x}。", "叫我{x}吧。", "你好，我是{x}"),
            "很高兴认识你，{x}！",
            ("我叫什么名字？", "我叫什么？", "我是谁？", "你记得我的名字吗？", "我的名字是什么？"),
            "你叫{x}。",
            "我还不知道你的名字。",
        ),
    ),
    "home": (
        (
            ("I live in {x}.", "I am from {x}.", "My home is in {x}.", "I come from {x}."),
            "{x} sounds nice!",
            ("Where do I live?", "Where am I from?", "Do you remember where I live?"),
            "You live in {x}.",
            "I do not know where you live.",
        ),
        (
            ("我住在{x}。", "我家在{x}。", "我来自{x}。"),
            "{x}真不错！",
            ("我住在哪里？", "我家在哪里？", "你记得我住哪里吗？"),
            "你住在{x}。",
            "我不知道你住在哪里。",
        ),
    ),
    "colour": (
        (
            ("My favourite color is {x}.", "I like the color {x}.", "My favorite color is {x}."),
            "{x} is a good choice.",
            ("What is my favourite color?", "Which color do I like?", "What's my favorite color?"),
            "Your favorite color is {x}.",
            "I do not know your favorite color.",
        ),
        (
            ("我最喜欢的颜色是{x}。", "我喜欢{x}。"),
            "{x}很好看。",
            ("我喜欢什么颜色？", "我最喜欢的颜色是什么？"),
            "你喜欢{x}。",
            "我不知道你喜欢什么颜色。",
        ),
    ),
}
COLOURS = ("red", "blue", "green", "yellow", "black", "white", "pink", "purple", "orange", "brown", "grey")
COLOURS_ZH = ("红色", "蓝色", "绿色", "黄色", "黑色", "白色", "粉色", "紫色", "橙色", "棕色", "灰色")
PLANS = ("The user told me before. I look back.", "用户之前告诉过我，我回头看看。")
ACKNOWLEDGE = ("The user tells me something. I acknowledge it.", "用户告诉我一件事，我回应一下。")
AGAIN = (
    ("Now reverse it.", "Reverse it", "Now reverse that list.", "And reversed?", "Now backwards please"),
    ("再倒过来。", "现在把它倒过来", "倒序呢？", "反过来呢？"),
)


def draw_memory(rng: random.Random, split: Split, chinese: bool) -> tuple[str, str]:
    """return: which memory, its value. Held out: the pair."""
    while True:
        kind = rng.choices(("name", "home", "colour"), (6, 2, 1))[0]
        if kind == "colour":
            return kind, rng.choice(COLOURS_ZH if chinese else COLOURS)
        value = draw_name(rng, chinese) if kind == "name" else draw_city(rng, chinese)
        if belongs(split, kind, value):
            return kind, value


def one_turn(rng: random.Random, split: Split, thinking: bool, chinese: bool) -> list[Message]:
    """A question and its answer, from any of the simple skills."""
    skill = rng.choices(("sum", "list", "facts", "greetings", "fallback"), (4, 3, 3, 3, 1))[0]
    if skill == "sum":
        return solve(rng, draw_sum(rng, split), thinking, chinese)
    if skill == "list":
        question, operation, answer = list_question(rng, split, chinese)
        return [user(question), assistant(", ".join(answer), thought(operation, chinese) if thinking else None)]
    question, text = plain_question(rng, split, skill, chinese)
    return [user(question), assistant(text, plan_of(skill, chinese) if thinking else None)]


def remember(rng: random.Random, split: Split, thinking: bool, chinese: bool) -> list[Message]:
    """Something is told, other turns may follow, then it is asked for."""
    kind, value = draw_memory(rng, split, chinese)
    statements, reply, questions, answer, ignorance = MEMORIES[kind][int(chinese)]
    told = vary(rng, rng.choice(statements).format(x=value))
    start = told.lower().find(value.lower())
    value = told[start : start + len(value)]
    draw = rng.random()
    if draw < 0.15:
        plan = ACKNOWLEDGE[int(chinese)] if thinking else None
        return [user(told), assistant(reply.format(x=value[:1].upper() + value[1:]), plan)]
    plan = PLANS[int(chinese)] if thinking else None
    asked = user(vary(rng, rng.choice(questions)))
    if draw < 0.25:
        return [*one_turn(rng, split, False, chinese), asked, assistant(ignorance, plan)]
    messages = [user(told), assistant(reply.format(x=value[:1].upper() + value[1:]))]
    for _ in range(rng.choices((0, 1, 2), (4, 3, 1))[0]):
        messages += one_turn(rng, split, False, chinese)
    return [*messages, asked, assistant(answer.format(x=value), plan)]


def sort_then_reverse(rng: random.Random, split: Split, thinking: bool, chinese: bool) -> list[Message]:
    """A follow-up that refers to the answer before it."""
    while True:
        items = draw_items(rng, "numbers", chinese)
        if belongs(split, "list", "sort", *items):
            break
    verb = rng.choice(("给{}排序", "请把{}从小到大排列") if chinese else ("Sort {}", "Please sort {}"))
    answer = arrange("sort", items)
    follow = rng.choice(AGAIN[int(chinese)])
    return [
        user(verb.format(write_list(rng, items, chinese))),
        assistant(", ".join(answer)),
        user(follow),
        assistant(", ".join(answer[::-1]), thought("reverse", chinese) if thinking else None),
    ]


def dialogue(rng: random.Random, split: Split, thinking: bool) -> Conversation:
    """Two to five turns, sometimes with a system message."""
    chinese = rng.random() < 0.4
    messages: list[Message] = []
    if rng.random() < 0.3:
        messages.append({"role": "system", "content": rng.choice(SYSTEMS)})
    draw = rng.random()
    if draw < 0.5:
        messages += remember(rng, split, thinking, chinese)
    elif draw < 0.6:
        messages += sort_then_reverse(rng, split, thinking, chinese)
    else:
        turns = rng.randint(2, 4)
        for turn in range(turns):
            language = chinese if rng.random() < 0.9 else not chinese
            messages += one_turn(rng, split, thinking and turn == turns - 1, language)
    return Conversation("multi-turn", messages, thinking=thinking)
