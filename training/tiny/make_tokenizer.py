"""The tiny tokenizer: byte-level BPE with Qwen's pre-tokenisation and Qwen3's control tokens.

Run: python training/tiny/make_tokenizer.py   (writes into kaishu/models/tiny)
"""

import argparse
import json
import random
from itertools import islice
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from common import Conversation
from encode import pieces_of
from world import all_skills

# Letters in runs with one sign before them, digits singly, signs in runs, line ends, spaces.
PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
SPECIAL = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|object_ref_start|>",
    "<|object_ref_end|>",
    "<|box_start|>",
    "<|box_end|>",
    "<|quad_start|>",
    "<|quad_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|vision_pad|>",
    "<|image_pad|>",
    "<|video_pad|>",
)
ORDINARY = (
    "<tool_call>",
    "</tool_call>",
    "<|fim_prefix|>",
    "<|fim_middle|>",
    "<|fim_suffix|>",
    "<|fim_pad|>",
    "<|repo_name|>",
    "<|file_sep|>",
    "<tool_response>",
    "</tool_response>",
    "<think>",
    "</think>",
)
BASE_VOCABULARY = 2100
SAMPLE_CONVERSATIONS = 60_000
FOLDER = Path(__file__).parents[2] / "kaishu" / "models" / "tiny"


def added_tokens() -> list[AddedToken]:
    return [AddedToken(text, special=text in SPECIAL, normalized=False) for text in SPECIAL + ORDINARY]


def train_tokenizer(seed: int) -> Tokenizer:
    """Merges are learnt on text that carries every skill; control tokens come after them, as in Qwen."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PATTERN), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, trim_offsets=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel(add_prefix_space=False, trim_offsets=False, use_regex=False)
    tokenizer.post_processor = processors.ByteLevel(add_prefix_space=False, trim_offsets=False, use_regex=False)
    trainer = trainers.BpeTrainer(
        vocab_size=BASE_VOCABULARY,
        min_frequency=20,
        show_progress=False,
        max_token_length=16,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
    )
    tokenizer.train_from_iterator(
        map(plain_text, islice(all_skills(random.Random(seed)), SAMPLE_CONVERSATIONS)), trainer
    )
    tokenizer.add_tokens(added_tokens())
    return tokenizer


def plain_text(conversation: Conversation) -> str:
    """The rendered conversation without its control tokens, whose letters must not become merges."""
    text = "".join(piece.text for piece in pieces_of(conversation))
    for token in SPECIAL + ORDINARY:
        text = text.replace(token, "\n")
    return text


def tokenizer_config(tokenizer: Tokenizer) -> dict[str, object]:
    described = {
        str(tokenizer.token_to_id(text)): {
            "content": text,
            "lstrip": False,
            "normalized": False,
            "rstrip": False,
            "single_word": False,
            "special": text in SPECIAL,
        }
        for text in SPECIAL + ORDINARY
    }
    return {
        "add_bos_token": False,
        "add_prefix_space": False,
        "added_tokens_decoder": described,
        "additional_special_tokens": list(SPECIAL[1:]),
        "bos_token": None,
        "clean_up_tokenization_spaces": False,
        "eos_token": "<|im_end|>",
        "errors": "replace",
        "model_max_length": 2048,
        "pad_token": "<|endoftext|>",
        "split_special_tokens": False,
        "tokenizer_class": "PreTrainedTokenizerFast",
        "unk_token": None,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--folder", type=Path, default=FOLDER)
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    tokenizer = train_tokenizer(arguments.seed)
    tokenizer.save(str(arguments.folder / "tokenizer.json"))
    config = json.dumps(tokenizer_config(tokenizer), ensure_ascii=False, indent=2)
    (arguments.folder / "tokenizer_config.json").write_text(config + "\n", encoding="utf-8")
    print(f"{tokenizer.get_vocab_size()} tokens in {arguments.folder}")


if __name__ == "__main__":
    main()
