"""`kaishu eval`: each form of the weights against float32, on the texts asked for."""

from __future__ import annotations

import json
import math
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from kaishu.cli.main import main
from kaishu.llm import LLM
from tests.cli.adapters import adapter_of_queries

ROOT = Path(__file__).parents[2]
TEXT = "Kaishu: 楷书 is regular script."


@pytest.fixture
def written(tmp_path) -> Path:
    (tmp_path / "text.txt").write_text(TEXT, encoding="utf-8")
    return tmp_path / "text.txt"


def run(capsys, *arguments: object) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        main(["eval", *map(str, arguments)])
    captured = capsys.readouterr()
    return ended.value.code, captured.out, captured.err


def test_the_numbers_are_those_of_the_two_executors_logits(tiny_checkpoint, written, capsys):
    folder = tiny_checkpoint("dense_tied", with_tokenizer=True)
    arguments = (folder, "--text", written, "--weights", "int4,bf16", "--head", "int8", "--threads", 1, "--json")
    code, out, _ = run(capsys, *arguments)
    assert code == 0
    result = json.loads(out)
    assert result["text"] == "32 tokens: your text"
    assert result["truth"] == "reference executor (PyTorch), float32 on cpu"
    truth = LLM(folder, executor="reference", weights="float32", threads=1)
    ids = truth.tokenizer.encode(TEXT)
    known = truth.tokenizer.vocab_size
    p = softmax(truth.logits(ids[:-1])[:, :known])
    for form, weights in zip(result["forms"], ("int4", "bf16"), strict=True):
        assert (form["weights"], form["head"]) == (weights, "int8")
        llm = LLM(folder, executor="cpu", weights=weights, head="int8", threads=1)
        q = softmax(llm.logits(ids[:-1])[:, :known])
        divergences = (p * np.log(p / q)).sum(axis=-1)
        assert form["tokens"] == len(ids) - 1 == 32
        assert form["kl_mean"] == pytest.approx(divergences.mean(), rel=1e-6)
        assert form["kl_99_percent"] == pytest.approx(np.percentile(divergences, 99), rel=1e-6)
        assert form["top1_agreement"] == (p.argmax(axis=-1) == q.argmax(axis=-1)).mean()
        next_p, next_q = p[range(32), ids[1:]], q[range(32), ids[1:]]
        assert form["perplexity"] == pytest.approx(math.exp(-np.log(next_q).mean()))
        assert form["true_perplexity"] == pytest.approx(math.exp(-np.log(next_p).mean()))
    assert result["forms"][0]["kl_mean"] > result["forms"][1]["kl_mean"] > 0


def test_an_adapter_is_in_both_the_truth_and_the_forms(tiny_checkpoint, written, tmp_path, capsys):
    folder = tiny_checkpoint("dense_tied", with_tokenizer=True)
    adapter = str(adapter_of_queries(tmp_path / "adapter", size=1.0))
    options = ("--text", written, "--weights", "bf16", "--threads", 1, "--json")
    (_, plain, _), (code, out, _) = run(capsys, folder, *options), run(capsys, folder, *options, "--lora", adapter)
    assert code == 0
    (before,), (after,) = json.loads(plain)["forms"], json.loads(out)["forms"]
    assert after["true_perplexity"] != pytest.approx(before["true_perplexity"], rel=1e-3)
    assert after["kl_mean"] < 0.01, "bf16 is close to float32 of the same merged model"
    llm = LLM(folder, executor="reference", weights="float32", threads=1, lora=adapter)
    ids = llm.tokenizer.encode(TEXT)
    p = softmax(llm.logits(ids[:-1])[:, : llm.tokenizer.vocab_size])
    expected = math.exp(-np.log(p[range(len(ids) - 1), ids[1:]]).mean())
    assert after["true_perplexity"] == pytest.approx(expected)


def softmax(logits: np.ndarray) -> np.ndarray:
    weights = np.exp(logits.astype(np.float64))
    return weights / weights.sum(axis=-1, keepdims=True)


def test_forms_that_come_to_the_same_are_measured_once(tiny_checkpoint, written, capsys):
    folder = tiny_checkpoint("dense_tied", with_tokenizer=True)
    options = ("--text", written, "--weights", "bf16,int8", "--head", "auto,bf16", "--tokens", 5, "--threads", 1)
    code, out, _ = run(capsys, folder, *options)
    assert code == 0
    assert "5 of 32 tokens: your text" in out
    assert re.findall(r"^(bf16|int8|int4) +(\w+) +[\d.]+ kB +[\d.,]+ ", out, re.MULTILINE) == [
        ("bf16", "bf16"),
        ("int8", "int8"),
        ("int8", "bf16"),
    ]


def test_the_bundled_model_is_asked_what_it_knows_and_others_read_old_books(tiny_checkpoint, capsys):
    options = ("--weights", "bf16", "--tokens", 20, "--threads", 1)
    assert "tokens: conversations of the bundled model's world" in run(capsys, "tiny", *options)[1]
    folder = tiny_checkpoint("dense_tied", with_tokenizer=True)
    assert "tokens: old books in English and Chinese" in run(capsys, folder, *options)[1]


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["--weights", "bf16,int5"], "--weights is 'int5'; allowed: auto or bf16 or int8 or int4"),
        (["--weights", "float32"], "--weights is 'float32'"),
        (["--head", "int2"], "--head is 'int2'; allowed: auto or bf16 or int8 or int4"),
        (["--tokens", "0"], "--tokens is 0; allowed: 1 to 1,000,000."),
        (["--max-memory", "4 gigs"], "--max-memory is '4 gigs'; allowed: a number of bytes, or one with a unit"),
        (["--max-memory", "100MB", "--tokens", "20"], "The comparison takes "),
        (["--plot", "x.gif"], "--plot is 'x.gif'; allowed: the name of a .svg or a .png file."),
        (["--text", "nowhere.txt"], "--text is 'nowhere.txt'; allowed: a file with a text in UTF-8."),
    ],
)
def test_what_cannot_be_is_an_error_in_the_words_that_were_typed(tiny_checkpoint, capsys, arguments, message):
    code, out, err = run(capsys, tiny_checkpoint("dense_tied", with_tokenizer=True), *arguments)
    assert (code, out) == (2, "")
    assert err.startswith(f"kaishu: error: {message}")


@pytest.mark.parametrize("content, said", [(b"a", "one token"), (b"a" * 600, "600 tokens")])
def test_a_text_that_cannot_be_predicted_says_why(tiny_checkpoint, tmp_path, capsys, content, said):
    (tmp_path / "text").write_bytes(content)
    options = ("--text", tmp_path / "text", "--tokens", 1000)
    code, out, err = run(capsys, tiny_checkpoint("dense_tied", with_tokenizer=True), *options)
    assert (code, out) == (2, "")
    assert said in err


def test_a_picture_is_drawn(tiny_checkpoint, written, tmp_path, capsys):
    folder = tiny_checkpoint("dense_tied", with_tokenizer=True)
    options = ("--text", written, "--weights", "int8", "--threads", 1, "--plot", tmp_path / "out.png")
    assert run(capsys, folder, *options)[0] == 0
    assert (tmp_path / "out.png").read_bytes().startswith(b"\x89PNG")


def test_without_torch_it_says_how_to_install_it():
    code = "import sys; sys.modules['torch'] = None\nfrom kaishu.cli.main import main; main(['eval', 'tiny'])"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 2
    assert "needs the package torch" in done.stderr and "pip install 'kaishu[torch]'" in done.stderr
