"""Asking a checkpoint: the one place where evaluation calls a model. Greedy, batched, padded on the left."""

from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer

from common import Conversation
from encode import answer_text, pieces_of

PROMPT_END = "<|im_start|>assistant\n"
EMPTY_THOUGHT = "<think>\n\n</think>\n\n"


def prompt_of(conversation: Conversation) -> str:
    """The conversation up to its last answer, ready for the model to go on."""
    texts = [piece.text for piece in pieces_of(conversation)]
    start = max(index for index, text in enumerate(texts) if text == PROMPT_END)
    return "".join(texts[: start + 1]) + ("" if conversation.thinking else EMPTY_THOUGHT)


def wanted(conversation: Conversation) -> str:
    return answer_text(conversation.messages[-1])


def spoken(text: str, thinking: bool) -> str:
    """The model's text without its thinking; a missing think block counts as a wrong answer."""
    text = text.partition("<|im_end|>")[0]
    if not thinking:
        return text
    if not text.startswith("<think>") or "</think>" not in text:
        return f"no thinking: {text}"
    return text.partition("</think>")[2].lstrip("\n")


@torch.no_grad()
def generate(model: Any, tokenizer: Tokenizer, prompts: list[str], new_tokens: int = 160) -> list[str]:
    """Greedy continuations of a batch, control tokens included, up to the first <|im_end|> or <|endoftext|>."""
    pad, end = tokenizer.token_to_id("<|endoftext|>"), tokenizer.token_to_id("<|im_end|>")
    rows = [encoding.ids for encoding in tokenizer.encode_batch_fast(prompts, add_special_tokens=False)]
    longest = max(map(len, rows))
    ids = torch.tensor([[pad] * (longest - len(row)) + row for row in rows])
    mask = torch.tensor([[0] * (longest - len(row)) + [1] * len(row) for row in rows])
    produced = model.generate(
        input_ids=ids,
        attention_mask=mask,
        max_new_tokens=new_tokens,
        do_sample=False,
        eos_token_id=[end, pad],
        pad_token_id=pad,
    )
    texts = tokenizer.decode_batch(produced[:, longest:].tolist(), skip_special_tokens=False)
    return [text.partition("<|endoftext|>")[0] for text in texts]


def correct(
    model: Any, tokenizer: Tokenizer, items: list[Conversation], batch: int = 100
) -> list[tuple[Conversation, str, bool]]:
    """return: each item with what the model said and whether that is exactly what was wanted."""
    ordered = sorted(items, key=lambda item: (item.thinking, len(prompt_of(item))))
    results = []
    for start in range(0, len(ordered), batch):
        part = ordered[start : start + batch]
        for item, text in zip(part, generate(model, tokenizer, [prompt_of(item) for item in part]), strict=True):
            said = spoken(text, item.thinking)
            results.append((item, said, said == wanted(item)))
    return results


def load(folder: Path) -> tuple[Any, Tokenizer]:
    """The exported bfloat16 weights, computed in float32."""
    from transformers import Qwen3ForCausalLM

    model = Qwen3ForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).float().eval()
    return model, Tokenizer.from_file(str(folder / "tokenizer.json"))
