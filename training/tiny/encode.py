"""From a conversation to token ids and the mask of tokens that are learnt.

Owns the fast rendering used in training; check_template.py proves it equal to the chat template.
Learnt are the final answer with its thinking and its <|im_end|>, and earlier answers without their first token:
in the prompt's history an answer has no think block, and the first token is where the model must open one.
"""

import json
from dataclasses import dataclass

from tokenizers import Tokenizer

from common import Conversation, Message, Tool

TOOLS_BEFORE = (
    "# Tools\n\nYou may call one or more functions to assist with the user query.\n\n"
    "You are provided with function signatures within <tools></tools> XML tags:\n<tools>"
)
TOOLS_AFTER = (
    "\n</tools>\n\nFor each function call, return a json object with function name and arguments within "
    '<tool_call></tool_call> XML tags:\n<tool_call>\n{"name": <function-name>, "arguments": <args-json-object>}\n'
    "</tool_call>"
)
EMPTY_THOUGHT = "<think>\n\n</think>\n\n"


@dataclass
class Piece:
    """A stretch of text; `learnt` says from which of its tokens on the loss counts (None: never)."""

    text: str
    learnt: int | None = None


def answer_text(message: Message) -> str:
    """An assistant message as the model must write it, without its thinking."""
    text = str(message["content"])
    for number, tool_call in enumerate(message.get("tool_calls", ())):
        function = tool_call["function"]
        arguments = json.dumps(function["arguments"], ensure_ascii=False)
        text += "\n" if text or number else ""
        text += f'<tool_call>\n{{"name": "{function["name"]}", "arguments": {arguments}}}\n</tool_call>'
    return text


def system_piece(messages: list[Message], tools: list[Tool] | None) -> list[Piece]:
    own = messages[0]["content"] if messages[0]["role"] == "system" else None
    if not tools:
        return [] if own is None else [Piece(f"<|im_start|>system\n{own}<|im_end|>\n")]
    listed = "".join("\n" + json.dumps(tool, ensure_ascii=False) for tool in tools)
    before = "" if own is None else own + "\n\n"
    return [Piece(f"<|im_start|>system\n{before}{TOOLS_BEFORE}{listed}{TOOLS_AFTER}<|im_end|>\n")]


def pieces_of(conversation: Conversation) -> list[Piece]:
    """The whole conversation as the template renders it, cut where the mask changes."""
    if conversation.document is not None:
        return [Piece(conversation.document + "<|endoftext|>", 1)]
    messages = conversation.messages
    last_query = max(index for index, message in enumerate(messages) if message["role"] == "user")
    pieces = system_piece(messages, conversation.tools)
    for index, message in enumerate(messages):
        role, is_last = message["role"], index == len(messages) - 1
        if role == "user":
            pieces.append(Piece(f"<|im_start|>user\n{message['content']}<|im_end|>\n"))
        elif role == "tool":
            is_first = messages[index - 1]["role"] != "tool"
            is_end = is_last or messages[index + 1]["role"] != "tool"
            opening, closing = "<|im_start|>user" if is_first else "", "<|im_end|>\n" if is_end else ""
            pieces.append(Piece(f"{opening}\n<tool_response>\n{message['content']}\n</tool_response>{closing}"))
        elif role == "assistant":
            pieces.append(Piece("<|im_start|>assistant\n"))
            thought = message.get("reasoning_content")
            if index > last_query and thought:
                pieces.append(Piece(f"<think>\n{thought}\n</think>\n\n{answer_text(message)}<|im_end|>", 0))
            elif is_last:
                pieces += [Piece(EMPTY_THOUGHT), Piece(answer_text(message) + "<|im_end|>", 0)]
            else:
                pieces.append(Piece(answer_text(message) + "<|im_end|>", 1))
            pieces.append(Piece("\n"))
    return pieces


@dataclass
class Encoded:
    """ids and, at the same places, whether the token is one to learn."""

    ids: list[int]
    learnt: list[bool]


def encode_many(tokenizer: Tokenizer, batch: list[Conversation]) -> list[Encoded]:
    """All conversations at once: tokenising is threaded."""
    cut = [pieces_of(conversation) for conversation in batch]
    encodings = iter(
        tokenizer.encode_batch_fast([piece.text for pieces in cut for piece in pieces], add_special_tokens=False)
    )
    result = []
    for pieces in cut:
        item = Encoded([], [])
        for piece in pieces:
            ids = next(encodings).ids
            item.ids += ids
            item.learnt += [piece.learnt is not None and position >= piece.learnt for position in range(len(ids))]
        result.append(item)
    return result
