"""What `kaishu eval` reads when it isn't given a text: the bundled model's own world, and a few old books.

Owns the texts and how they become tokens, with the place from which predictions count. Of the bundled model's
conversations the questions count, too, though it has learnt to answer and not to ask: of its answers it is so sure that
a handful of tokens in thousands decide the mean, which then says little. Wording and facts are those of docs/tiny.md.
The books are in the public domain: the opening chapters of *Alice's Adventures in Wonderland* (1865) and *Pride and
Prejudice* (1813), the Thousand Character Classic (千字文, 6th century) and the Analects (论语, 5th to 3rd century BC).
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import accumulate

from kaishu.checkpoint.hub import BUNDLED, resolve
from kaishu.text.template import ChatTemplate
from kaishu.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class EvaluationText:
    """Tokens, of which those from `first_predicted` on are predicted, each from all before it.

    first_predicted: at least 1, because nothing comes before the first token
    """

    token_ids: tuple[int, ...]
    first_predicted: int

    @property
    def predicted(self) -> int:
        """How many tokens are predicted."""
        return len(self.token_ids) - self.first_predicted


def plain_text(text: str, tokenizer: Tokenizer) -> EvaluationText:
    """A text as it stands; its control tokens are ordinary text."""
    return EvaluationText(tuple(tokenizer.encode(text)), 1)


def conversation(
    question: str, thought: str, answer: str, tokenizer: Tokenizer, template: ChatTemplate
) -> EvaluationText:
    """One question and its answer, of which the answer counts.

    thought: what the model is to think before it answers; empty for an answer without thinking
    """
    prompt = template.render([{"role": "user", "content": question}], thinking=bool(thought))
    thinking = f"<think>\n{thought}\n</think>\n\n" if thought else ""
    prompt_ids = tokenizer.encode_prompt(prompt)
    answer_ids = tokenizer.encode(f"{thinking}{answer}<|im_end|>", allow_control=True)
    return EvaluationText((*prompt_ids, *answer_ids), len(prompt_ids))


def conversations(tokenizer: Tokenizer, template: ChatTemplate) -> list[EvaluationText]:
    """What the bundled model can do, as it would say it. All tokens count, see above."""
    return [EvaluationText(conversation(*each, tokenizer, template).token_ids, 1) for each in CONVERSATIONS]


def passages(tokenizer: Tokenizer) -> list[EvaluationText]:
    """The openings of the books, English and Chinese in turn."""
    return [plain_text(text, tokenizer) for text in PASSAGES]


def have_same_tokens(one: Tokenizer, other: Tokenizer) -> bool:
    """Whether each id means the same in both, so that predictions of two models can be compared."""
    if dict(one.control_tokens) != dict(other.control_tokens):
        return False
    ours, theirs = (json.loads(each.as_json())["model"]["vocab"] for each in (one, other))
    return bool(ours == theirs)


def knows_world_of_tiny(tokenizer: Tokenizer) -> bool:
    """Whether a model is the bundled one, or was made of it: it has the same tokens."""
    return have_same_tokens(tokenizer, Tokenizer.from_folder(resolve(BUNDLED)))


def at_most(texts: Iterable[EvaluationText], predicted: int) -> list[EvaluationText]:
    """The first texts, as many as give so many predicted tokens; the last one is cut where they are reached."""
    texts = list(texts)
    kept = []
    for text, end in zip(texts, accumulate(text.predicted for text in texts), strict=True):
        left = predicted - (end - text.predicted)
        if left <= 0:
            break
        kept.append(EvaluationText(text.token_ids[: text.first_predicted + left], text.first_predicted))
    return kept


# Question, thought, answer.
CONVERSATIONS = (
    ("12+30=?", "", "12 + 30 = 42"),
    ("What is 417 + 265?", "", "417 + 265 = 682"),
    (
        "What is 417 + 265?",
        "ones: 7 + 5 = 12, write 2, carry 1\ntens: 1 + 6 + 1 = 8, write 8\nhundreds: 4 + 2 = 6, write 6\n= 682",
        "417 + 265 = 682",
    ),
    ("345 减 78 等于多少？", "", "345 - 78 = 267"),
    (
        "345 减 78 等于多少？",
        "个位: 5 - 8 = -3, 写 7, 借 1\n十位: 4 - 7 - 1 = -4, 写 6, 借 1\n百位: 3 - 0 - 1 = 2, 写 2\n= 267",
        "345 - 78 = 267",
    ),
    ("What is 803 - 47?", "", "803 - 47 = 756"),
    (
        "58 加 64 等于多少？",
        "个位: 8 + 4 = 12, 写 2, 进 1\n十位: 5 + 6 + 1 = 12, 写 2, 进 1\n= 122",
        "58 + 64 = 122",
    ),
    ("Reverse red, green, blue", "", "blue, green, red"),
    ("Reverse 4, 9, 1", "The user wants the list in reverse order: the last item first.", "1, 9, 4"),
    ("Sort 31, 12, 50", "The user wants the list sorted: the smallest first.", "12, 31, 50"),
    ("Hello!", "", "Hello! How can I help you?"),
    ("你好", "这是日常聊天，简短友好地回答。", "你好！有什么可以帮你的吗？"),
    ("My name is Vera.", "", "Nice to meet you, Vera!"),
    ("What is the capital of France?", "", "The capital of France is Paris."),
    ("What is the capital of France?", "The user asks for a fact that I know.", "The capital of France is Paris."),
    ("中国的首都是哪里？", "", "中国的首都是北京。"),
    ("How many days are in a week?", "", "A week has 7 days."),
    ("楷书是什么？", "用户问的是我知道的常识。", "楷书是汉字的正体，笔画平直，字形方正。"),
    ("楷书是什么？", "", "楷书是汉字的正体，笔画平直，字形方正。"),
    (
        "Who invented chess?",
        "I do not know this. I should say so.",
        "I am a tiny model and do not know that. I can add, subtract, reverse and sort lists, tell a few facts and "
        "call a tool.",
    ),
    (
        "你是谁？",
        "",
        "我是 Kaishu tiny，一个采用 Qwen3 结构的小型教学模型。我会加减法、倒序和排序列表、讲一些常识、调用工具。",
    ),
)

PASSAGES = (
    "Alice was beginning to get very tired of sitting by her sister on the bank, and of having nothing to do: once or "
    "twice she had peeped into the book her sister was reading, but it had no pictures or conversations in it, “and "
    "what is the use of a book,” thought Alice “without pictures or conversations?”\n\nSo she was considering in her "
    "own mind (as well as she could, for the hot day made her feel very sleepy and stupid), whether the pleasure of "
    "making a daisy-chain would be worth the trouble of getting up and picking the daisies, when suddenly a White "
    "Rabbit with pink eyes ran close by her.\n",
    "天地玄黄，宇宙洪荒。日月盈昃，辰宿列张。寒来暑往，秋收冬藏。闰余成岁，律吕调阳。云腾致雨，露结为霜。金生丽水，玉出昆冈。"
    "剑号巨阙，珠称夜光。果珍李柰，菜重芥姜。海咸河淡，鳞潜羽翔。龙师火帝，鸟官人皇。始制文字，乃服衣裳。推位让国，有虞陶唐。"
    "吊民伐罪，周发殷汤。坐朝问道，垂拱平章。爱育黎首，臣伏戎羌。遐迩一体，率宾归王。\n",
    "It is a truth universally acknowledged, that a single man in possession of a good fortune, must be in want of a "
    "wife.\n\nHowever little known the feelings or views of such a man may be on his first entering a neighbourhood, "
    "this truth is so well fixed in the minds of the surrounding families, that he is considered as the rightful "
    "property of some one or other of their daughters.\n",
    "子曰：“学而时习之，不亦说乎？有朋自远方来，不亦乐乎？人不知而不愠，不亦君子乎？”\n有子曰：“其为人也孝弟，而好犯上者，鲜矣；"
    "不好犯上，而好作乱者，未之有也。君子务本，本立而道生。孝弟也者，其为仁之本与！”\n子曰：“巧言令色，鲜矣仁！”\n曾子曰："
    "“吾日三省吾身：为人谋而不忠乎？与朋友交而不信乎？传不习乎？”\n子曰：“道千乘之国，敬事而信，节用而爱人，使民以时。”\n",
    "There was nothing so very remarkable in that; nor did Alice think it so very much out of the way to hear the "
    "Rabbit say to itself, “Oh dear! Oh dear! I shall be late!” (when she thought it over afterwards, it occurred to "
    "her that she ought to have wondered at this, but at the time it all seemed quite natural); but when the Rabbit "
    "actually took a watch out of its waistcoat-pocket, and looked at it, and then hurried on, Alice started to her "
    "feet, for it flashed across her mind that she had never before seen a rabbit with either a waistcoat-pocket, or a "
    "watch to take out of it, and burning with curiosity, she ran across the field after it, and fortunately was just "
    "in time to see it pop down a large rabbit-hole under the hedge.\n",
)
