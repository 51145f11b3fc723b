"""The Qwen3 family and Qwen2.5 at their real sizes: one layer each, random weights, against transformers.

    KAISHU_LONG_TESTS=1 pytest tests/test_family_shapes.py -s     all shapes, and prints the errors (4 GB, some minutes)

Widths, heads and experts are those of the published configs; only layers are left out, and most of the vocabulary,
whose rows are all treated alike. That whole models of these sizes have the published number of parameters is tested in
checkpoint/test_random_weights.py; how fast their layers are here, `kaishu bench --shape 32b --layers 2` says.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from kaishu.batch import SequenceTokens, pack
from kaishu.checkpoint import open_checkpoint
from kaishu.checkpoint.random_weights import shape_config
from kaishu.cpu.kernels import Kernels
from kaishu.cpu.store import KERNELS_FOLDER, cache_folder
from kaishu.reference.model import Model
from tests.cpu.packed_models import logits_of, packed_model
from tests.reference.parity import our_logits, random_ids, random_model, their_logits

VOCAB_SIZE = 2048
POSITIONS = 40
LIMIT = 1e-4  # max |Δlogit| in float32, as in reference/test_parity.py

SHAPES = {
    "0.6b": {},
    "1.7b": {},
    "qwen2.5-0.5b": {"num_hidden_layers": 2},
}
LARGE_SHAPES = {
    "4b": {},
    "8b": {},
    "14b": {},
    "32b": {},
    "30b-a3b": {},
    "235b-a22b": {"num_experts": 32},  # of 128, which would take 10 GB in float32
}
if os.environ.get("KAISHU_LONG_TESTS"):
    SHAPES |= LARGE_SHAPES


def their_layers(shape: str) -> Any:
    """transformers' model in float32; its weights are numbers that bfloat16 has."""
    config = shape_config(shape, 1) | {"vocab_size": VOCAB_SIZE, "bos_token_id": 0, "eos_token_id": 1} | SHAPES[shape]
    theirs = transformers.AutoConfig.for_model(
        **{name: value for name, value in config.items() if name not in ("architectures", "rope_theta", "dtype")},
        rope_parameters={"rope_type": "default", "rope_theta": config["rope_theta"]},
    )
    return random_model(theirs, dtype=torch.bfloat16)


@pytest.mark.parametrize("shape", SHAPES)
def test_a_layer_of_real_size_loads_equals_transformers_and_runs_on_the_kernels(shape, tmp_path):
    theirs = their_layers(shape)
    ids = random_ids(VOCAB_SIZE, POSITIONS)
    expected = their_logits(theirs, ids)
    assert expected.std() > 0.5, "logits all near zero would prove little"
    theirs.to(torch.bfloat16).save_pretrained(tmp_path)
    their_error = np.abs((their_logits(theirs, ids) - expected).numpy())
    del theirs

    checkpoint = open_checkpoint(tmp_path)
    ours = Model.from_checkpoint(checkpoint, attention="explicit")
    float32_error = (our_logits(ours, ids) - expected).abs().max().item()
    del ours
    assert float32_error <= LIMIT

    model = packed_model(checkpoint, Kernels(cache_folder() / KERNELS_FOLDER), "bf16")
    executor = model.executor(threads=2, num_pages=4)
    found = logits_of(executor, ids)
    error = np.abs(found - expected.numpy())
    print(
        f"\n{shape:13} σ {expected.std():.2f}; |Δ| of the reference in float32: at most {float32_error:.1e}; "
        f"mean in bf16: kernels {error.mean():.5f}, transformers {their_error.mean():.5f}",
        end=" ",
    )
    assert error.mean() < 0.8 * their_error.mean()

    # One at a time has the same bits, at these widths too.
    cut = [executor.step(pack([SequenceTokens([token], i, range(4))]))[0] for i, token in enumerate(ids[:8])]
    np.testing.assert_array_equal(np.stack(cut), found[:8])
    executor.close()


def test_qwen2_5_has_biases_on_queries_keys_and_values_that_matter():
    theirs = their_layers("qwen2.5-0.5b")
    biases = [name for name, _ in theirs.named_parameters() if name.endswith(".bias")]
    attention = "model.layers.{}.self_attn.{}_proj.bias"
    assert sorted(biases) == sorted(attention.format(layer, kind) for layer in range(2) for kind in "qkv")
    ids = random_ids(VOCAB_SIZE, POSITIONS)
    expected = their_logits(theirs, ids)
    with torch.no_grad():
        for name, parameter in theirs.named_parameters():
            if name.endswith(".bias"):
                parameter.zero_()
    assert (their_logits(theirs, ids) - expected).abs().max() > 100 * LIMIT
