"""Made-up short stories: plain documents, without a chat template, so that raw completion gives sensible text."""

import random

from common import Conversation
from places import draw_name

HEROES = (
    "a little cat",
    "an old king",
    "a small bird",
    "a young girl",
    "a kind farmer",
    "a brave mouse",
    "a quiet boy",
    "a clever fox",
    "a lonely dragon",
    "a happy dog",
    "a tiny robot",
    "a wise old woman",
)
HOMES = (
    "in a small house",
    "near a big forest",
    "by the sea",
    "on a high mountain",
    "in a green valley",
    "in a quiet village",
    "under an old tree",
    "beside a river",
)
WISHES = (
    "wanted to see the moon",
    "lost a red ball",
    "looked for a friend",
    "wanted to learn to read",
    "dreamed of flying",
    "heard a strange song",
    "found a golden key",
    "planted a small seed",
)
EVENTS = (
    "walked for three days",
    "met a friendly owl",
    "crossed the cold river",
    "climbed the tallest hill",
    "asked the wind for help",
    "shared bread with a stranger",
    "followed the stars",
    "waited under the rain",
)
ENDS = (
    "everyone was happy",
    "the two became friends",
    "they danced all night",
    "it came home with a smile",
    "the village had a great feast",
    "the sun rose over the hills",
    "nobody was lonely any more",
)
MORALS = (
    "Be kind, and you will find friends.",
    "A small step is a good start.",
    "Good things need time.",
    "Help is never far away.",
)
HEROES_ZH = (
    "一只小猫",
    "一位老国王",
    "一只小鸟",
    "一个小女孩",
    "一位农夫",
    "一只聪明的狐狸",
    "一条孤独的龙",
    "一个小机器人",
)
HOMES_ZH = ("住在小房子里", "住在大森林旁边", "住在海边", "住在高山上", "住在安静的村子里", "住在老树下")
WISHES_ZH = ("想看月亮", "丢了一个红球", "想找一个朋友", "想学会读书", "梦想飞上天", "找到了一把金钥匙")
EVENTS_ZH = ("走了三天三夜", "遇见了一只猫头鹰", "过了一条冷冷的河", "爬上了最高的山", "请风来帮忙", "跟着星星走")
ENDS_ZH = ("大家都很高兴", "他们成了朋友", "太阳升起来了", "村子里举行了宴会", "再也没有人孤单")


def story(rng: random.Random) -> Conversation:
    """Four to seven sentences."""
    if rng.random() < 0.3:
        events = "，".join(rng.sample(EVENTS_ZH, rng.randint(1, 3)))
        text = (
            f"从前，有{rng.choice(HEROES_ZH)}，{rng.choice(HOMES_ZH)}。有一天，它{rng.choice(WISHES_ZH)}。"
            f"于是它{events}。最后，{rng.choice(ENDS_ZH)}。"
        )
        return Conversation("documents", document=text)
    name = draw_name(rng, False)
    first, *rest = rng.sample(EVENTS, rng.randint(2, 4))
    text = f"Once upon a time, there was {rng.choice(HEROES)} called {name}. {name} lived {rng.choice(HOMES)}. "
    text += f"One day, {name} {rng.choice(WISHES)}. So {name} {first}. "
    text += " ".join(f"Then {name} {event}." for event in rest)
    text += f" In the end, {rng.choice(ENDS)}."
    if rng.random() < 0.5:
        text += f" {rng.choice(MORALS)}"
    return Conversation("documents", document=text)
