"""Addition and subtraction of whole numbers up to three digits, in many wordings, with and without column work.

Owns the wordings, the answer's form ("12 + 30 = 42") and the shape of the column work.
"""

import random
from dataclasses import dataclass

from common import Conversation, Message, Split, assistant, belongs, user, vary

BARE = (
    "{a}{o}{b}",
    "{a} {o} {b}",
    "{a}{o}{b}=",
    "{a}{o}{b}=?",
    "{a} {o} {b} =",
    "{a} {o} {b} = ?",
    "{a}{o} {b}",
    "{a} {o} {b}?",
    "{a}{o}{b}?",
    "{a} {o} {b}=?",
    "{a}{o}{b} = ?",
)
ENGLISH = (
    "What is {e}?",
    "What's {e}?",
    "Calculate {e}.",
    "Compute {e}.",
    "How much is {e}?",
    "Please calculate {e}",
    "Can you calculate {e}?",
    "Tell me {e}.",
    "Can you tell me what {e} is?",
    "Solve {e}",
    "Work out {e}.",
    "Please compute {e}.",
    "What does {e} equal?",
    "Do you know what {e} is?",
    "{e} equals what?",
    "Could you work out {e} for me?",
    "What is the result of {e}?",
    "I need {e}.",
    "What is {e}",
)
CHINESE = (
    "{e}等于多少？",
    "{e}等于几？",
    "{e}是多少？",
    "请计算{e}",
    "请计算 {e}",
    "计算{e}。",
    "算一下{e}",
    "请问{e}等于多少？",
    "{e} 等于多少？",
    "帮我算一下{e}。",
    "{e}得多少？",
    "请算{e}",
    "你知道{e}等于多少吗？",
    "{e} = 多少？",
    "求{e}",
)
ADD_ENGLISH = (
    "Add {a} and {b}.",
    "Please add {a} and {b}.",
    "Add {b} to {a}.",
    "What is the sum of {a} and {b}?",
    "Sum of {a} and {b}",
    "I have {a} apples and get {b} more. How many do I have?",
    "There are {a} birds and {b} more come. How many birds are there?",
)
SUBTRACT_ENGLISH = (
    "Subtract {b} from {a}.",
    "Please subtract {b} from {a}.",
    "Take {b} away from {a}.",
    "What is {b} less than {a}?",
    "What do you get when you subtract {b} from {a}?",
)
ADD_CHINESE = ("{a}和{b}的和是多少？", "把{a}和{b}加起来。", "求{a}与{b}的和", "请把{a}加上{b}")
SUBTRACT_CHINESE = ("从{a}里减去{b}是多少？", "{a}与{b}的差是多少？", "请从{a}中减去{b}", "{a}比{b}多多少？")
SYSTEMS = (
    "You are a helpful assistant.",
    "You are Kaishu, a tiny model.",
    "Answer briefly.",
    "You are a calculator.",
    "You are good at math.",
    "你是一个有用的助手。",
    "请用中文回答。",
    "You are a friendly assistant.",
    "Be brief.",
)


@dataclass(frozen=True)
class Sum:
    """One problem: a ± b."""

    a: int
    b: int
    sign: str

    @property
    def value(self) -> int:
        return self.a + self.b if self.sign == "+" else self.a - self.b

    @property
    def answer(self) -> str:
        return f"{self.a} {self.sign} {self.b} = {self.value}"


def draw_number(rng: random.Random) -> int:
    digits = rng.choices((1, 2, 3), (1, 2, 4))[0]
    return rng.randrange(0 if digits == 1 else 10 ** (digits - 1), 10**digits)


def draw_sum(rng: random.Random, split: Split, sign: str | None = None) -> Sum:
    while True:
        problem = Sum(draw_number(rng), draw_number(rng), sign or rng.choice("+-"))
        if belongs(split, "sum", problem.a, problem.sign, problem.b):
            return problem


def ask(rng: random.Random, problem: Sum, chinese: bool) -> str:
    """One of the wordings of a problem."""
    symbol = problem.sign
    draw = rng.random()
    if draw < 0.03:
        symbol = {"+": "＋", "-": "－"}[symbol]
    elif draw < 0.06 and symbol == "-":
        symbol = "−"
    plus = problem.sign == "+"
    numbers = {"a": problem.a, "b": problem.b, "o": symbol}
    draw = rng.random()
    if draw < 0.35:
        text = rng.choice(BARE).format(**numbers)
        return vary(rng, text.replace("?", "？") if chinese else text)
    if draw < 0.5:
        special = (ADD_CHINESE, ADD_ENGLISH, SUBTRACT_CHINESE, SUBTRACT_ENGLISH)[2 * (not plus) + (not chinese)]
        return vary(rng, rng.choice(special).format(**numbers))
    if rng.random() < 0.5:
        expression = rng.choice(("{a}{o}{b}", "{a} {o} {b}")).format(**numbers)
    elif chinese:
        word = rng.choice(("加", "加上") if plus else ("减", "减去"))
        expression = rng.choice(("{a}{w}{b}", "{a} {w} {b}")).format(a=problem.a, b=problem.b, w=word)
    else:
        word = "plus" if plus else rng.choice(("minus", "minus", "take away"))
        expression = f"{problem.a} {word} {problem.b}"
    return vary(rng, rng.choice(CHINESE if chinese else ENGLISH).format(e=expression))


def column_work(problem: Sum, chinese: bool) -> str:
    """The thinking: one line a column, from the ones upwards, with carries or borrows written out."""
    names = ("个位", "十位", "百位", "千位") if chinese else ("ones", "tens", "hundreds", "thousands")
    write, carry_word, borrow_word = ("写", "进", "借") if chinese else ("write", "carry", "borrow")
    top, bottom, lines = problem.a, problem.b, []
    negative = problem.sign == "-" and problem.a < problem.b
    if negative:
        top, bottom = problem.b, problem.a
        lines.append(f"{problem.a} < {problem.b}, {top} - {bottom}")
    carry = 0
    for place in range(max(len(str(top)), len(str(bottom)))):
        x, y = top // 10**place % 10, bottom // 10**place % 10
        total = x + y + carry if problem.sign == "+" else x - y - carry
        extra = f" {problem.sign} {carry}" if carry else ""
        digit, carry = total % 10, int(total > 9 or total < 0)
        line = f"{names[place]}: {x} {problem.sign} {y}{extra} = {total}, {write} {digit}"
        word = carry_word if problem.sign == "+" else borrow_word
        lines.append(line + (f", {word} 1" if carry else ""))
    if problem.sign == "+" and carry:
        lines.append(f"{names[place + 1]}: {write} 1")
    lines.append(f"= {problem.value}")
    return "\n".join(lines)


def solve(rng: random.Random, problem: Sum, thinking: bool, chinese: bool) -> list[Message]:
    """Question and answer."""
    question = ask(rng, problem, chinese)
    in_chinese = any("\u4e00" <= character <= "\u9fff" for character in question)
    return [user(question), assistant(problem.answer, column_work(problem, in_chinese) if thinking else None)]


def arithmetic(
    rng: random.Random, split: Split, thinking: bool, sign: str | None = None, chinese: bool | None = None
) -> Conversation:
    """A conversation of one problem (when evaluated) or of one to eight."""
    chinese = rng.random() < 0.4 if chinese is None else chinese
    turns = 1 if split == "eval" or thinking or rng.random() < 0.35 else rng.randint(2, 8)
    messages: list[Message] = []
    if rng.random() < 0.06 and split == "train":
        messages.append({"role": "system", "content": rng.choice(SYSTEMS)})
    for turn in range(turns):
        problem = draw_sum(rng, split, sign)
        messages += solve(rng, problem, thinking and turn == turns - 1, chinese)
    mode = "thinking" if thinking else "direct"
    operation = "addition" if messages[-1]["content"].count(" + ") else "subtraction"
    language = "zh" if chinese else "en"
    return Conversation(f"{operation}, {mode}, {language}", messages, thinking=thinking)
