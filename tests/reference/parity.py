"""How close the reference model is to transformers: the measurements that the tests call, and a command that prints.

    python -m tests.reference.parity            every shape in float32 and bfloat16 (about a minute on one core)
    python -m tests.reference.parity --quick    without Qwen3-0.6B's shape

Owns the measurements, not the limits: those are in test_parity.py. Weights are random and the same in both models;
transformers runs with its plain ("eager") attention and experts.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from torch import Tensor

from kaishu.batch import SequenceTokens, pack
from kaishu.checkpoint import StoredTensor
from kaishu.config import ModelConfig
from kaishu.reference.caches import Cache, ContiguousCache, RecomputeCache
from kaishu.reference.generate import generate
from kaishu.reference.model import Model
from tests.tiny_checkpoints import KINDS, write_tiny_checkpoint

POSITIONS = 64
NEW_TOKENS = 64


class TensorInMemory(StoredTensor):
    """A tensor of another model, as a checkpoint would offer it; counts how often it is read."""

    def __init__(self, name: str, tensor: Tensor, reads: list[str]) -> None:
        dtype = {torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16"}[tensor.dtype]
        super().__init__(name, dtype, tuple(tensor.shape), Path("nowhere"), 0)
        object.__setattr__(self, "contents", (tensor, reads))  # it is frozen

    def read(self) -> np.ndarray:
        tensor, reads = self.contents
        reads.append(self.name)
        tensor = tensor.detach()
        return tensor.view(torch.int16).numpy().view(np.uint16) if tensor.dtype == torch.bfloat16 else tensor.numpy()


class CheckpointInMemory:
    """A config and the tensors of a transformers model: what open_checkpoint would return, without a file."""

    def __init__(self, config: ModelConfig, tensors: dict[str, Tensor]) -> None:
        self.config = config
        self.reads: list[str] = []
        self.tensors = {name: TensorInMemory(name, tensor, self.reads) for name, tensor in tensors.items()}


def their_model(folder: Path, dtype: str = "float32") -> Any:
    """transformers' model of a folder, with every operation in its plain form."""
    return transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=getattr(torch, dtype), attn_implementation="eager", experts_implementation="eager"
    ).eval()


def our_model(folder: Path, **options: Any) -> Model:
    """Our model of a folder."""
    from kaishu.checkpoint import open_checkpoint

    return Model.from_checkpoint(open_checkpoint(folder), **{"attention": "explicit", **options})


def random_ids(vocab_size: int, count: int, seed: int = 0) -> list[int]:
    return torch.randint(0, vocab_size, (count,), generator=torch.Generator().manual_seed(seed)).tolist()


@torch.inference_mode()
def their_logits(model: Any, ids: Sequence[int]) -> Tensor:
    """[n, V] float32, logits of every position."""
    return model(torch.tensor([list(ids)])).logits[0].float()


@torch.inference_mode()
def our_logits(model: Model, ids: Sequence[int], cache: Cache | None = None) -> Tensor:
    """[n, V] float32, logits of every position, in one step."""
    cache = cache or RecomputeCache()
    batch = pack([SequenceTokens(list(ids), 0, cache.pages, wants_logits=range(len(ids)))])
    return model.forward(batch, cache).float()


def their_greedy_tokens(model: Any, ids: Sequence[int], count: int = NEW_TOKENS) -> list[int]:
    """transformers' own loop, with no end token."""
    settings = transformers.GenerationConfig(do_sample=False, max_new_tokens=count, pad_token_id=0)
    model.generation_config = settings
    prompt = torch.tensor([list(ids)])
    return model.generate(prompt, attention_mask=torch.ones_like(prompt))[0, len(ids) :].tolist()


def our_greedy_tokens(
    model: Model, ids: Sequence[int], count: int = NEW_TOKENS, cache: Cache | None = None
) -> list[int]:
    """The reference loop, with no end token."""
    cache = cache or ContiguousCache(model, capacity_tokens=len(ids) + count)
    return list(generate(model, ids, cache, max_tokens=count, end_tokens=()))


@dataclass(frozen=True)
class Bfloat16Errors:
    """Errors of both bfloat16 models against the float32 truth, over all seeds, positions and logits."""

    ours_mean: float
    theirs_mean: float
    ours_max: float
    theirs_max: float


def bfloat16_errors(kind: str, seeds: Sequence[int]) -> Bfloat16Errors:
    """Errors of both in bfloat16. The truth is transformers in float32 on the same bfloat16 weights."""
    ours, theirs = [], []
    for seed in seeds:
        with tempfile.TemporaryDirectory() as folder:
            write_tiny_checkpoint(Path(folder), kind, dtype="bfloat16", seed=seed)
            ids = random_ids(320, POSITIONS, seed)
            truth = their_logits(their_model(Path(folder), "float32"), ids)
            theirs.append((their_logits(their_model(Path(folder), "bfloat16"), ids) - truth).abs())
            ours.append((our_logits(our_model(Path(folder), dtype="bfloat16"), ids) - truth).abs())
    our_errors, their_errors = torch.stack(ours), torch.stack(theirs)
    return Bfloat16Errors(
        our_errors.mean().item(), their_errors.mean().item(), our_errors.max().item(), their_errors.max().item()
    )


def qwen3_0_6b(seed: int = 0) -> tuple[Any, CheckpointInMemory]:
    """transformers' model of Qwen3-0.6B's exact shape with random float32 weights, and the same weights for ours."""
    config = transformers.Qwen3Config(
        vocab_size=151_936,
        hidden_size=1024,
        intermediate_size=3072,
        num_hidden_layers=28,
        num_attention_heads=16,
        num_key_value_heads=8,
        head_dim=128,
        max_position_embeddings=40_960,
        rms_norm_eps=1e-6,
        tie_word_embeddings=True,
        rope_parameters={"rope_type": "default", "rope_theta": 1_000_000.0},
    )
    model = random_model(config, seed)
    with tempfile.TemporaryDirectory() as folder:
        config.save_pretrained(folder)
        ours = CheckpointInMemory(ModelConfig.from_folder(Path(folder)), model.state_dict())
    return model, ours


def random_model(config: Any, seed: int = 0, *, dtype: torch.dtype = torch.float32) -> Any:
    """transformers' model of a config with random float32 weights that `dtype` can hold, too."""
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    model = model.to_empty(device="cpu").eval()
    model.tie_weights()
    # Drawing 596 million normal numbers takes 10 s, so a few million are used over and over. Their count is prime, so
    # that no two rows of a matrix get the same ones.
    noise = torch.randn(4_194_319, generator=torch.Generator().manual_seed(seed))
    with torch.no_grad():
        for number, (name, parameter) in enumerate(model.named_parameters()):
            numbers = noise.roll(number * 12_345)
            numbers = 1.0 + 0.3 * numbers if name.endswith("norm.weight") else 0.04 * numbers
            numbers = numbers.to(dtype).float()
            for part in parameter.view(-1).split(len(noise)):
                part.copy_(numbers[: len(part)])
        rotary = model.model.rotary_emb
        frequencies, _ = rotary.compute_default_rope_parameters(config)  # a buffer, which was never filled on "meta"
        rotary.inv_freq.copy_(frequencies)
    return model


def _print_float32(name: str, theirs: Any, ours: Model) -> None:
    ids = random_ids(ours.config.vocab_size, POSITIONS)
    their_scores, our_scores = their_logits(theirs, ids), our_logits(ours, ids)
    fused = our_logits(ours.with_attention("sdpa"), ids)
    same = their_greedy_tokens(theirs, ids) == our_greedy_tokens(ours, ids)
    print(
        f"{name:22} {(our_scores - their_scores).abs().max():10.1e} {(fused - their_scores).abs().max():10.1e} "
        f"{their_scores.abs().max():10.1f} {'identical' if same else 'DIFFERENT':>12}",
        flush=True,
    )


def main() -> None:
    """Print both tables."""
    arguments = argparse.ArgumentParser(description="Print how close the reference model is to transformers.")
    arguments.add_argument("--quick", action="store_true", help="without Qwen3-0.6B's shape")
    quick = arguments.parse_args().quick
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()

    print(f"float32, {POSITIONS} positions, {NEW_TOKENS} greedy tokens; transformers {transformers.__version__}\n")
    print(f"{'shape':22} {'max |Δ|':>10} {'with sdpa':>10} {'max |logit|':>10} {'tokens':>12}")
    for kind in KINDS:
        with tempfile.TemporaryDirectory() as folder:
            write_tiny_checkpoint(Path(folder), kind)
            _print_float32(kind, their_model(Path(folder)), our_model(Path(folder)))
    if not quick:
        started = time.monotonic()
        theirs, checkpoint = qwen3_0_6b()
        _print_float32("qwen3-0.6b", theirs, Model.from_checkpoint(checkpoint, attention="explicit"))
        print(f"({time.monotonic() - started:.0f} s for the last row)")

    print("\nbfloat16, |error| against float32 on the same weights, 4 seeds: ours / transformers'\n")
    print(f"{'shape':22} {'mean':>19} {'max':>19}")
    for kind in KINDS:
        errors = bfloat16_errors(kind, range(4))
        print(
            f"{kind:22} {errors.ours_mean:9.5f} /{errors.theirs_mean:9.5f} "
            f"{errors.ours_max:9.4f} /{errors.theirs_max:9.4f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
