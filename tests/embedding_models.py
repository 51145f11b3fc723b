"""Embedding models and rerankers with random weights, saved as the real ones are, and transformers' answers.

Owns the folders (a bare decoder for embeddings, a whole language model for reranking; Qwen3's real tokenizer) and the
arithmetic of the models' pages, written with transformers and torch. Knows nothing of Kaishu.
Used by test_embedding.py and test_reranking.py.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

from tests.qwen3_files import FILES, find_qwen3_files
from tests.tiny_checkpoints import write_tiny_checkpoint

END_OF_TEXT = 151_643
VOCAB_SIZE = 151_936


def with_end_token(post_processor: dict[str, Any]) -> dict[str, Any]:
    """What Qwen3-Embedding's tokenizer.json has in place of Qwen3's: the same, then an end token after every text."""
    end = {"id": "<|endoftext|>", "ids": [END_OF_TEXT], "tokens": ["<|endoftext|>"]}
    single = [{"Sequence": {"id": "A", "type_id": 0}}, {"SpecialToken": {"id": "<|endoftext|>", "type_id": 0}}]
    pair = [*single, {"Sequence": {"id": "B", "type_id": 0}}]
    template = {"type": "TemplateProcessing", "single": single, "pair": pair, "special_tokens": {"<|endoftext|>": end}}
    return {"type": "Sequence", "processors": [post_processor, template]}


def copy_tokenizer(folder: Path, *, adds_end: bool) -> None:
    """Put Qwen3's tokenizer into a folder, as Qwen3-Embedding has it or as Qwen3-Reranker has it."""
    for name in FILES:
        shutil.copy(find_qwen3_files() / name, folder / name)
    if adds_end:
        content = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
        content["post_processor"] = with_end_token(content["post_processor"])
        (folder / "tokenizer.json").write_text(json.dumps(content, ensure_ascii=False), encoding="utf-8")


def write_embedding_model(folder: Path, kind: str, **options: Any) -> Path:
    """A bare decoder, as transformers saves it: names without `model.`, no head."""
    write_tiny_checkpoint(folder, kind, **options)
    transformers.AutoModel.from_pretrained(folder, dtype="auto").save_pretrained(folder)
    copy_tokenizer(folder, adds_end=True)
    return folder


def write_reranker(folder: Path, kind: str, **options: Any) -> Path:
    """A whole language model with Qwen3's vocabulary."""
    write_tiny_checkpoint(folder, kind, **options)
    copy_tokenizer(folder, adds_end=False)
    return folder


def embedding_model(folder: Path) -> Any:
    """transformers' model of a folder, in float32."""
    return transformers.AutoModel.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager", experts_implementation="eager"
    ).eval()


@torch.inference_mode()
def their_embeddings(model: Any, texts_ids: Sequence[Sequence[int]], dimensions: int | None = None) -> np.ndarray:
    """[n, D]: the last hidden state at the last token, cut, of unit length; text by text, so without padding."""
    states = [model(torch.tensor([list(ids)])).last_hidden_state[0, -1] for ids in texts_ids]
    return torch.nn.functional.normalize(torch.stack(states)[:, :dimensions], dim=-1).numpy()


@torch.inference_mode()
def their_scores(model: Any, tokenizer: Any, prompts: Sequence[str]) -> list[float]:
    """Of the last position's logits of "no" and "yes": the softmax's share of "yes"."""
    answers = [tokenizer.convert_tokens_to_ids(word) for word in ("no", "yes")]
    scores = []
    for prompt in prompts:
        ids = tokenizer(prompt, add_special_tokens=False)["input_ids"]
        logits = model(torch.tensor([ids])).logits[0, -1, answers]
        scores.append(torch.nn.functional.log_softmax(logits.double(), dim=0)[1].exp().item())
    return scores
