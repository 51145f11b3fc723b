"""Checks that our chat template and training's fast rendering say exactly what the real Qwen3 template says.

Run: python training/tiny/check_template.py --qwen FOLDER_WITH_QWEN3_TOKENIZER_CONFIG
"""

import argparse
import json
import random
from itertools import islice, product
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer

from common import Message, Tool
from encode import pieces_of
from make_tokenizer import FOLDER
from world import all_skills

WEATHER: Tool = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "天气 & <weather>",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
CALL = {"function": {"name": "get_weather", "arguments": {"city": "北京", "días": [1, 2]}}}
FLAT_CALL = {"name": "get_weather", "arguments": '{"city": "Paris"}'}
ASKED: Message = {"role": "user", "content": "hi <b>\n"}
RESULT: Message = {"role": "tool", "content": "21"}
WRAPPED: Message = {"role": "user", "content": "<tool_response>\n21\n</tool_response>"}
SYSTEM: Message = {"role": "system", "content": "Be brief."}


def said(text: str, **more: Any) -> Message:
    return {"role": "assistant", "content": text, **more}


def message_lists() -> list[list[Message]]:
    """Short dialogues around every branch of the template."""
    thought = said("42", reasoning_content="\n\nhm\n")
    inline = said("<think>\nold\n</think>\n\nnew")
    odd = said("a</think>b</think>\n\nc")
    called = said("", tool_calls=[CALL])
    called_twice = said("Wait.", tool_calls=[CALL, FLAT_CALL], reasoning_content="plan")
    empty_thought = said("\n\nx", reasoning_content="")
    none_thought = said("x<think>y", reasoning_content=None, tool_calls=[])
    middles: list[list[Message]] = [
        [],
        [thought],
        [inline],
        [odd],
        [called, RESULT],
        [called_twice, RESULT, RESULT],
        [called_twice, WRAPPED, inline],
        [empty_thought],
        [none_thought],
        [called, RESULT, thought],
        [inline, ASKED, called, RESULT, called_twice, RESULT, thought],
        [thought, SYSTEM, ASKED, inline],
        [RESULT, RESULT, ASKED],
        [said("plain"), ASKED, said("more")],
    ]
    starts: list[list[Message]] = [
        [ASKED],
        [SYSTEM, ASKED],
        [SYSTEM, ASKED, said("first", reasoning_content="x"), ASKED],
    ]
    return [start + middle for start, middle in product(starts, middles)] + [
        [WRAPPED],
        [SYSTEM],
        [RESULT, inline],
        [WRAPPED, thought],
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--qwen", type=Path, required=True)
    arguments = parser.parse_args()
    ours = AutoTokenizer.from_pretrained(FOLDER)
    theirs = json.loads((arguments.qwen / "tokenizer_config.json").read_text(encoding="utf-8"))["chat_template"]
    count = 0
    for messages, tools, prompt, thinking in product(
        message_lists(), (None, [WEATHER], [WEATHER, WEATHER]), (True, False), (None, True, False)
    ):
        options = {} if thinking is None else {"enable_thinking": thinking}
        rendered = [
            ours.apply_chat_template(
                messages, tools=tools, add_generation_prompt=prompt, tokenize=False, chat_template=template, **options
            )
            for template in (None, theirs)
        ]
        if rendered[0] != rendered[1]:
            raise SystemExit(f"differs on {messages}\n--- ours\n{rendered[0]}\n--- Qwen3\n{rendered[1]}")
        count += 1
    print(f"{count} renderings equal Qwen3's, {len(message_lists())} message lists")
    fast = [item for item in islice(all_skills(random.Random()), 2000) if item.document is None]
    for item in fast:
        text = "".join(piece.text for piece in pieces_of(item))
        rendered_text = ours.apply_chat_template(item.messages, tools=item.tools, tokenize=False)
        if text != rendered_text:
            raise SystemExit(f"training text differs:\n{text}\n---\n{rendered_text}")
    print(f"{len(fast)} training conversations equal the template's rendering")


if __name__ == "__main__":
    main()
