"""`kaishu inspect`: every tensor, folded without losing one; numbers that agree with transformers."""

from __future__ import annotations

import json
import math
import re

import pytest
from rich.console import Console

from kaishu.checkpoint import open_checkpoint
from kaishu.cli.inspect import facts_of, rows_of
from kaishu.cli.main import main
from tests.checkpoint.gguf_files import write_gguf

KINDS = ["dense_tied", "dense_untied", "moe", "moe_mixed", "qwen2", "llama_biased", "sliding_window", "yarn"]


@pytest.fixture
def run(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")

    def run(*arguments: str) -> str:
        with pytest.raises(SystemExit) as ended:
            main(["inspect", *map(str, arguments)])
        assert ended.value.code == 0
        return capsys.readouterr().out

    return run


@pytest.mark.parametrize("kind", KINDS)
def test_folding_loses_no_tensor_and_no_byte(tiny_checkpoint, kind):
    checkpoint = open_checkpoint(tiny_checkpoint(kind))
    whole = rows_of(checkpoint, fold=False)
    assert sum(row.nbytes for row in whole) == checkpoint.nbytes
    assert len(whole) == len(checkpoint.tensors)
    folded = rows_of(checkpoint, fold=True)
    assert len(folded) < len(whole)
    assert sum(row.nbytes * row.copies * layers_in(row.place) for row in folded) == checkpoint.nbytes
    assert sum(row.copies * layers_in(row.place) for row in folded) == len(checkpoint.tensors)


def layers_in(place: str) -> int:
    if not place.startswith("layers "):
        return 1
    runs = [run.split("–") for run in place.removeprefix("layers ").removesuffix(", each").split(", ")]
    return sum(int(run[-1]) - int(run[0]) + 1 for run in runs)


def test_layers_of_two_kinds_are_folded_apart(tiny_checkpoint):
    places = list(dict.fromkeys(row.place for row in rows_of(open_checkpoint(tiny_checkpoint("moe_mixed")), fold=True)))
    assert places == ["before the layers", "layers 0, 2–4, each", "layers 1, 5, each", "after the layers"]


@pytest.mark.parametrize("kind", KINDS)
def test_the_numbers_are_those_of_transformers(tiny_checkpoint, run, kind):
    from transformers import AutoModelForCausalLM

    folder = tiny_checkpoint(kind)
    model = AutoModelForCausalLM.from_pretrained(folder)
    said = json.loads(run(folder, "--json"))
    assert said["parameters"] == model.num_parameters()
    assert said["weight_bytes"] == 4 * model.num_parameters()
    cache = model(model.dummy_inputs["input_ids"][:, :1], use_cache=True).past_key_values
    per_token = sum(layer.keys[0, :, :1].nbytes + layer.values[0, :, :1].nbytes for layer in cache.layers)
    assert said["kv_bytes_per_token"]["float32"] == per_token
    assert sum(math.prod(tensor["shape"]) for tensor in said["tensors"]) == said["parameters"]


def test_the_text_explains_shapes_and_names_the_facts(tiny_checkpoint, run):
    shown = run(tiny_checkpoint("dense_tied"))
    assert "4 query heads × 32, 2 key/value heads, each shared by 2 (grouped-query attention)" in shown
    assert "the output head is tied to the embedding" in shown
    assert re.search(r"layers 0–2, each.*\n.*\n.*\n  self_attn\.q_proj\.weight +\[128, 64\] +F32 +32\.8 kB\n", shown)
    assert "queries: 4 heads × 32, from D = 64" in shown
    assert "recommended: temperature 0.6, top_k 20, top_p 0.95" in shown


def test_all_shows_every_layer(tiny_checkpoint, run):
    shown = run(tiny_checkpoint("moe"), "--all")
    assert "layer 2" in shown
    assert "mlp.experts.5.down_proj.weight" in shown


def test_the_family_facts_name_windows_and_stretched_positions(tiny_checkpoint):
    facts = dict(facts_of(open_checkpoint(tiny_checkpoint("sliding_window"))))
    assert "2 layers see the last 8 only" in facts["positions"]
    facts = dict(facts_of(open_checkpoint(tiny_checkpoint("yarn"))))
    assert "yarn × 4" in facts["positions"]
    facts = dict(facts_of(open_checkpoint(tiny_checkpoint("moe_mixed"))))
    assert facts["experts"] == "6 experts in 2 of 6 layers, 2 run for a token, F = 40"


def test_a_gguf_s_types_are_shown_with_what_they_are_kept_as(tiny_checkpoint, tmp_path, run):
    import gguf

    def encode(name, values):
        kind = "F32" if values.ndim == 1 else "Q8_0" if "token_embd" in name else "Q4_1"
        return gguf.quants.quantize(values, gguf.GGMLQuantizationType[kind]), kind

    path = write_gguf(tiny_checkpoint("dense_tied"), tmp_path / "model.gguf", encode)
    shown = run(path)
    assert re.search(r"  self_attn\.q_proj\.weight +\[128, 64\] +Q4_1 +5\.1 kB\n", shown)
    assert re.search(r"weights +.* in the files, F32, Q4_1, Q8_0\n", shown)
    assert re.search(r"kept +Q4_1 as int4_minimum, Q8_0 as int8\n", shown)
    said = {tensor["name"]: tensor for tensor in json.loads(run(path, "--json"))["tensors"]}
    assert (said["model.embed_tokens.weight"]["dtype"], said["model.embed_tokens.weight"]["layout"]) == ("Q8_0", "int8")
    assert said["model.norm.weight"]["layout"] is None


def test_no_weight_is_read_and_no_torch_is_imported(tiny_checkpoint):
    import subprocess
    import sys

    code = (
        "import sys\nfrom kaishu.cli.main import main\n"
        "from kaishu.checkpoint.safetensors import StoredTensor\n"
        "def refuse(self): raise AssertionError('a weight was read')\n"
        "StoredTensor.read = refuse\n"
        "try: main(['inspect', sys.argv[1]])\n"
        "finally: assert not {'torch', 'tokenizers', 'jinja2'} & set(sys.modules)\n"
    )
    command = [sys.executable, "-c", code, str(tiny_checkpoint("dense_untied"))]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_console_width_does_not_cut_lines(tiny_checkpoint, run, monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    assert Console().width == 40
    assert "queries: 4 heads × 32, from D = 64\n" in run(tiny_checkpoint("dense_tied"))
