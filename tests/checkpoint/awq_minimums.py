"""What AWQ's and GPTQ's asymmetric weights would lose in the layout `int4_minimum`, where the minimum is a float16.

    python -m tests.checkpoint.awq_minimums [MODEL]

A group of these formats has a scale in float16 and a zero from 0 to 15; the layout wants -scale · zero, which float16
holds exactly only where the zero has few significant bits. The linear layers of a model (the bundled one, unless a
folder is given) are rounded to 4 bits in groups of 64 as those formats do, from the smallest weight to the largest;
then the same with each minimum rounded to float16. Printed: how often that changes a minimum, by how much, and how far
it moves the model's predictions, in float32, beside how far the 4 bits themselves have moved them.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file

from kaishu.checkpoint import open_checkpoint
from kaishu.checkpoint.hub import resolve
from kaishu.checkpoint.safetensors import StoredTensor
from kaishu.cpu.packing import as_float32
from kaishu.evaluation import compare, joined, summary
from kaishu.evaluation_texts import conversations
from kaishu.llm import LLM
from kaishu.text.template import ChatTemplate
from kaishu.text_files import template_of, tokenizer_of

SIZE = 64  # AWQ's usual 128 don't divide the bundled model's 192 and 448 columns
Matrix = NDArray[np.float32]


def asymmetric(weights: Matrix) -> tuple[Matrix, Matrix, Matrix]:
    """Round groups along K as AWQ does. return: q [N, G, 64]; for each group, the scale and the zero [N, G, 1]"""
    grouped = weights.reshape(len(weights), -1, SIZE)  # [N, G, 64]
    low, high = np.minimum(grouped.min(-1, keepdims=True), 0), np.maximum(grouped.max(-1, keepdims=True), 0)
    scales = np.maximum((high - low) / 15, 1e-6).astype(np.float16).astype(np.float32)
    zeros = np.clip(np.rint(-low / scales), 0, 15)
    return np.clip(np.rint(grouped / scales) + zeros, 0, 15), scales, zeros


def exact(weights: Matrix) -> Matrix:
    """The weights that the file means."""
    q, scales, zeros = asymmetric(weights)
    return (scales * (q - zeros)).reshape(weights.shape)


def with_rounded_minimums(weights: Matrix) -> Matrix:
    """The weights that the layout would mean."""
    q, scales, zeros = asymmetric(weights)
    return (scales * q + (-scales * zeros).astype(np.float16).astype(np.float32)).reshape(weights.shape)


def main() -> None:
    source = resolve(sys.argv[1] if len(sys.argv) > 1 else "tiny")
    checkpoint = open_checkpoint(source)
    linears = [
        n for n, t in checkpoint.tensors.items() if ".layers." in n and len(t.shape) == 2 and t.shape[1] % SIZE == 0
    ]
    products, inexact, worst, steps = 0, 0, 0.0, 0.0
    for name in linears:
        _, scales, zeros = asymmetric(as_float32(checkpoint.tensors[name]))
        minimums = -scales * zeros
        lost = np.abs(minimums.astype(np.float16).astype(np.float32) - minimums)
        products, inexact = products + lost.size, inexact + int(np.count_nonzero(lost))
        worst = max(worst, float((lost / np.maximum(np.abs(minimums), 1e-30)).max()))
        steps = max(steps, float((lost / scales).max()))
    print(f"{len(linears)} matrices, {products:,} groups: {inexact / products:.1%} of the minimums are not float16")
    print(f"rounding changes one by at most {worst:.2e} of it, its group's weights by {steps:.2e} of a step")
    tokenizer = tokenizer_of(checkpoint)
    template = template_of(checkpoint, tokenizer)
    assert isinstance(template, ChatTemplate)
    texts = conversations(tokenizer, template)

    def logits(change: Callable[[Matrix], Matrix]) -> list[Matrix]:
        with tempfile.TemporaryDirectory() as folder:
            for file in source.iterdir():
                if file.is_file() and file.suffix != ".safetensors":
                    shutil.copy(file, folder)
            changed = {}
            for name, tensor in checkpoint.tensors.items():
                assert isinstance(tensor, StoredTensor), "a model whose weights aren't quantised yet"
                values = as_float32(tensor).reshape(tensor.shape)
                changed[name] = change(values) if name in linears else values
            save_file(changed, Path(folder) / "model.safetensors")
            llm = LLM(folder, executor="reference", weights="float32", threads=1)
            return [llm.logits(text.token_ids[:-1])[text.first_predicted - 1 :] for text in texts]

    plain, rounded, minimums = (logits(change) for change in (lambda weights: weights, exact, with_rounded_minimums))
    for what, true, other in (("the 4 bits", plain, rounded), ("rounded minimums", rounded, minimums)):
        parts = [
            compare(t, o, text.token_ids[text.first_predicted :]) for t, o, text in zip(true, other, texts, strict=True)
        ]
        found = summary(joined(parts))
        print(
            f"{what}: KL mean {found.kl_mean:.2e}, 99 % {found.kl_99_percent:.2e}, "
            f"same top-1 {found.top1_agreement:.2%}"
        )


if __name__ == "__main__":
    main()
