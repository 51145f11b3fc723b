"""Whole folders: what transformers wrote, what is tied, what changes the identity, and what loading costs."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from kaishu.checkpoint import Checkpoint, open_checkpoint
from kaishu.checkpoint.names import EMBEDDING, HEAD
from kaishu.checkpoint.open import READ_FILES
from kaishu.errors import CheckpointError, ConfigError
from tests.checkpoint.gguf_files import write_gguf
from tests.memory import run_measured, write_large_checkpoint
from tests.tiny_checkpoints import KINDS

Write = Callable[..., Path]


def change(folder: Path, edit: Callable[[dict[str, Any]], object]) -> None:
    """Edit the tensors of a single-file checkpoint."""
    tensors = load_file(folder / "model.safetensors")
    edit(tensors)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def configure(folder: Path, **fields: Any) -> None:
    """Edit config.json."""
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | fields))


def values(checkpoint: Checkpoint) -> dict[str, bytes]:
    return {name: tensor.read().tobytes() for name, tensor in checkpoint.tensors.items()}


@pytest.mark.parametrize("kind", KINDS)
def test_what_transformers_wrote_is_complete_and_reads_the_same(kind: str, tiny_checkpoint: Write) -> None:
    folder = tiny_checkpoint(kind)
    checkpoint = open_checkpoint(folder)
    official = load_file(folder / "model.safetensors")
    assert set(official) == set(checkpoint.tensors)
    assert values(checkpoint) == {name: array.tobytes() for name, array in official.items()}
    assert checkpoint.notes == ()
    assert checkpoint.num_parameters == sum(array.size for array in official.values())
    assert checkpoint.nbytes == sum(array.nbytes for array in official.values())


@pytest.mark.parametrize("kind", ["dense_tied", "moe_mixed"])
def test_shards_hold_the_same_model_as_one_file(kind: str, tiny_checkpoint: Write) -> None:
    one = open_checkpoint(tiny_checkpoint(kind, dtype="bfloat16"))
    many = open_checkpoint(tiny_checkpoint(kind, dtype="bfloat16", shard_bytes=100_000))
    assert len({tensor.file for tensor in many.tensors.values()}) > 1
    assert values(one) == values(many) and one.config == many.config
    assert {tensor.dtype for tensor in many.tensors.values()} == {"BF16"}


@pytest.mark.parametrize("kind", ["moe", "moe_mixed"])
def test_stacked_experts_are_the_same_model(kind: str, tiny_checkpoint: Write, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    folder = tiny_checkpoint(kind)
    AutoModelForCausalLM.from_pretrained(folder).save_pretrained(tmp_path, save_original_format=False)
    assert any(name.endswith("mlp.experts.gate_up_proj") for name in load_file(tmp_path / "model.safetensors"))
    assert values(open_checkpoint(tmp_path)) == values(open_checkpoint(folder))


def test_a_decoder_saved_without_its_head_is_the_same_model(tiny_checkpoint: Write, tmp_path: Path) -> None:
    from transformers import AutoModel

    folder = tiny_checkpoint("dense_tied")
    AutoModel.from_pretrained(folder).save_pretrained(tmp_path)
    assert values(open_checkpoint(tmp_path)) == values(open_checkpoint(folder))


# Tied heads (and their reference, transformers).


def their_head(folder: Path) -> np.ndarray:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder).lm_head.weight.detach().numpy()


def our_head(checkpoint: Checkpoint) -> np.ndarray:
    return checkpoint.tensors[EMBEDDING if checkpoint.config.tie_word_embeddings else HEAD].read()


@pytest.mark.parametrize("kind", ["dense_tied", "moe_tied"])
def test_tied_with_no_head_or_an_equal_one_is_tied(kind: str, own_checkpoint: Write) -> None:
    folder = own_checkpoint(kind)
    bare = open_checkpoint(folder)
    assert HEAD not in bare.tensors and bare.config.tie_word_embeddings
    change(folder, lambda tensors: tensors.update({HEAD: tensors[EMBEDDING].copy()}))
    checkpoint = open_checkpoint(folder)
    assert HEAD not in checkpoint.tensors and checkpoint.config.tie_word_embeddings and checkpoint.notes == ()
    assert np.array_equal(our_head(checkpoint), their_head(folder))


@pytest.mark.parametrize("kind", ["dense_tied", "dense_untied", "moe", "moe_tied"])
def test_a_bare_decoder_needs_no_head_whatever_its_config_says(kind: str, own_checkpoint: Write) -> None:
    """As models that embed texts are saved, by transformers itself; Qwen3-Embedding-8B's config says untied."""
    from transformers import AutoModel

    folder = own_checkpoint(kind)
    whole = values(open_checkpoint(folder))
    is_tied = json.loads((folder / "config.json").read_text())["tie_word_embeddings"]
    AutoModel.from_pretrained(folder).save_pretrained(folder)
    assert "embed_tokens.weight" in load_file(folder / "model.safetensors")
    bare = open_checkpoint(folder)
    assert values(bare) == {name: value for name, value in whole.items() if name != HEAD}
    assert bare.config.tie_word_embeddings
    assert [note.partition(":")[0] for note in bare.notes] == ([] if is_tied else ["The weights have no output head"])


@pytest.mark.parametrize("kind", ["dense_tied", "moe_tied"])
def test_tied_with_a_different_head_says_which_wins(kind: str, own_checkpoint: Write) -> None:
    folder = own_checkpoint(kind)

    def last_value_differs(tensors: dict[str, Any]) -> None:
        tensors[HEAD] = tensors[EMBEDDING].copy()
        tensors[HEAD][-1, -1] += 1.0

    change(folder, last_value_differs)
    checkpoint = open_checkpoint(folder)
    (note,) = checkpoint.notes
    assert "lm_head.weight is stored and differs" in note and "the stored lm_head.weight wins" in note
    assert not checkpoint.config.tie_word_embeddings
    assert np.array_equal(our_head(checkpoint), their_head(folder))


def test_tied_with_only_a_head_takes_it_for_both(own_checkpoint: Write) -> None:
    folder = own_checkpoint("dense_tied")
    change(folder, lambda tensors: tensors.update({HEAD: tensors.pop(EMBEDDING)}))
    checkpoint = open_checkpoint(folder)
    assert np.array_equal(our_head(checkpoint), their_head(folder))
    assert np.array_equal(checkpoint.tensors[EMBEDDING].read(), their_head(folder))


def test_a_tied_head_of_another_shape_is_an_error(own_checkpoint: Write) -> None:
    folder = own_checkpoint("dense_tied")
    change(folder, lambda tensors: tensors.update({HEAD: tensors[EMBEDDING][:-1].copy()}))
    with pytest.raises(CheckpointError, match=r"lm_head\.weight in model\.safetensors is \[319, 64\], not \[320, 64\]"):
        open_checkpoint(folder)


@pytest.mark.parametrize("kind", ["dense_untied", "moe"])
def test_untied_without_a_head_is_an_error_that_names_it(kind: str, own_checkpoint: Write) -> None:
    folder = own_checkpoint(kind)
    change(folder, lambda tensors: tensors.pop(HEAD))
    with pytest.raises(CheckpointError, match=r"lack 1 tensors that qwen3(_moe)? needs: lm_head\.weight"):
        open_checkpoint(folder)


# Refusals.


def test_a_config_of_another_model_is_refused(own_checkpoint: Write) -> None:
    folder = own_checkpoint("dense_tied")
    configure(folder, intermediate_size=100)
    with pytest.raises(CheckpointError, match=r"9 tensors don't have the shape that config\.json gives them"):
        open_checkpoint(folder)
    configure(folder, intermediate_size=96, num_hidden_layers=2, layer_types=["full_attention"] * 2)
    with pytest.raises(CheckpointError, match="have 11 tensors that qwen3 doesn't use"):
        open_checkpoint(folder)


@pytest.mark.parametrize("name", [*READ_FILES, "model.safetensors"])
def test_nothing_outside_the_folder_is_read(own_checkpoint: Write, tmp_path: Path, name: str) -> None:
    folder = own_checkpoint("dense_tied")
    (tmp_path / name).write_text("{}")
    (folder / name).unlink(missing_ok=True)
    (folder / name).symlink_to(tmp_path / name)
    with pytest.raises(CheckpointError, match="outside the folder; it is not opened"):
        open_checkpoint(folder)


def test_a_folder_that_is_none_or_has_no_config(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "absent"):
        with pytest.raises(ConfigError, match=r"has no config\.json"):
            open_checkpoint(folder)


# Identity.


def test_the_identity_changes_with_the_weights_or_the_config_and_only_then(own_checkpoint: Write) -> None:
    folder = own_checkpoint("dense_tied")
    seen = {open_checkpoint(folder).identity, open_checkpoint(folder).identity}
    assert len(seen) == 1
    (folder / "README.md").write_text("no part of the model")
    assert open_checkpoint(folder).identity in seen
    weights = folder / "model.safetensors"
    status = weights.stat()
    os.utime(weights, ns=(status.st_atime_ns, status.st_mtime_ns + 1_000_000_000))
    seen.add(open_checkpoint(folder).identity)
    configure(folder, rms_norm_eps=1e-5)
    seen.add(open_checkpoint(folder).identity)
    change(folder, lambda tensors: tensors.update({"model.rotary_emb.inv_freq": np.zeros(16, np.float32)}))
    seen.add(open_checkpoint(folder).identity)
    assert len(seen) == 4


def test_other_weights_of_the_same_shape_size_and_time_have_another_identity(
    own_checkpoint: Write, tmp_path: Path
) -> None:
    folder = own_checkpoint("dense_tied")
    other = Path(shutil.copytree(folder, tmp_path / "fine-tuned"))
    change(other, lambda tensors: tensors.update({"model.norm.weight": tensors["model.norm.weight"] + 1}))
    status = (folder / "model.safetensors").stat()
    os.utime(other / "model.safetensors", ns=(status.st_atime_ns, status.st_mtime_ns))
    assert open_checkpoint(other).identity != open_checkpoint(folder).identity


def test_a_folder_whose_name_is_no_text_has_an_identity_too(own_checkpoint: Write, tmp_path: Path) -> None:
    folder = own_checkpoint("dense_tied").rename(os.fsdecode(os.fsencode(tmp_path) + b"/a\xff"))
    assert len(open_checkpoint(folder).identity) == 64


def test_a_link_and_what_it_leads_to_have_one_identity(own_checkpoint: Write, tmp_path: Path) -> None:
    """As for two snapshots of a hub's cache that have the same blobs."""
    folder = own_checkpoint("dense_tied")
    blobs, snapshots = tmp_path / "blobs", tmp_path / "snapshots"
    blobs.mkdir()
    (folder / "model.safetensors").rename(blobs / "digest")
    for revision in ("one", "two"):
        shutil.copytree(folder, snapshots / revision)
        (snapshots / revision / "model.safetensors").symlink_to(blobs / "digest")
    assert open_checkpoint(snapshots / "one").identity == open_checkpoint(snapshots / "two").identity


# GGUF files; what is in them is test_gguf_model.py's.


def test_a_gguf_file_is_opened_by_its_own_path(tiny_checkpoint: Write, tmp_path: Path) -> None:
    path = write_gguf(tiny_checkpoint("dense_tied"), tmp_path / "model.gguf")
    checkpoint = open_checkpoint(path)
    assert checkpoint.folder == path and checkpoint.gguf is not None and checkpoint.notes == ()
    assert checkpoint.gguf["general.architecture"] == "qwen3"
    before = checkpoint.identity
    assert open_checkpoint(path).identity == before
    os.utime(path, ns=(0, 1_000_000_000))
    assert open_checkpoint(path).identity != before


def test_a_file_that_is_no_gguf_says_so(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(bytes(100))
    with pytest.raises(CheckpointError, match=r"model\.safetensors is not a GGUF file"):
        open_checkpoint(tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"absent\.gguf is missing"):
        open_checkpoint(tmp_path / "absent.gguf")


# Memory.


def test_reading_tensor_by_tensor_takes_the_memory_of_one(tmp_path: Path) -> None:
    """200 MB of weights, in a process of its own that converts each tensor and drops it."""
    write_large_checkpoint(tmp_path)
    program = f"""
import numpy as np
from kaishu.checkpoint import open_checkpoint
np.ones(10).astype(np.float32).sum()
before = peak_mb()
checkpoint = open_checkpoint(Path({str(tmp_path)!r}))
opened = peak_mb()
total = sum(float(np.array(tensor.read()).max()) for tensor in checkpoint.tensors.values())
print(total == len(checkpoint.tensors), opened - before, peak_mb() - before, "torch" in sys.modules)
"""
    is_right, opened, loaded, has_torch = run_measured(program)
    assert is_right == "True" and has_torch == "False"
    assert float(opened) < 16 and float(loaded) < 40  # MB: a tensor's 4 MB, its copy, and what Python adds
