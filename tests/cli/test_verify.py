"""`kaishu verify`: a table, the first stage that differs, and an exit code."""

from __future__ import annotations

from pathlib import Path

import pytest

from kaishu.cli.main import main
from kaishu.reference.verify import StageComparison, Verification


def run(capsys, *arguments: str) -> tuple[int, str]:
    with pytest.raises(SystemExit) as ended:
        main(["verify", *map(str, arguments)])
    return ended.value.code, capsys.readouterr().out


def test_a_model_that_agrees(tiny_checkpoint, capsys):
    code, shown = run(capsys, tiny_checkpoint("dense_tied", with_tokenizer=True), "--text", "Hello")
    assert code == 0
    assert "5 tokens in float32" in shown
    assert "layers.2.feed_forward" in shown
    assert shown.endswith("Every stage agrees; 5 of 5 positions have the same likeliest next token.\n")


def test_the_first_stage_that_differs_is_named_and_the_exit_code_is_1(monkeypatch, capsys):
    stages = tuple(
        StageComparison(name, difference, largest=2.0, allowed=1e-4)
        for name, difference in [("embed_tokens", 0.0), ("layers.0", 0.5), ("logits", float("nan"))]
    )
    verification = Verification(Path("m"), "float32", 64, 60, "5.0", stages)
    monkeypatch.setattr("kaishu.reference.verify.verify_against_transformers", lambda *_, **__: verification)
    monkeypatch.setattr("kaishu.cli.pull.fetch", lambda name: Path(name))
    code, shown = run(capsys, "m")
    assert code == 1
    assert "The first stage that differs is layers.0; 60 of 64 positions" in shown
    lines = shown.splitlines()
    assert [line.split()[0] for line in lines if line.endswith("differs")] == ["layers.0", "logits"]


def test_weights_are_named_as_in_the_other_commands(tiny_checkpoint, capsys):
    folder = tiny_checkpoint("dense_tied", with_tokenizer=True)
    assert "5 tokens in bfloat16" in run(capsys, folder, "--text", "Hello", "--weights", "bf16")[1]


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["--weights", "int8"], "--weights is 'int8'; allowed: float32 or bf16."),
        (["--weights", "bfloat16"], "--weights is 'bfloat16'; allowed: float32 or bf16."),
        (["--text", ""], "--text is ''; allowed: a text of at least one token."),
        (["--text", "x" * 600], "There are 600 tokens to compare; allowed: 1 to 512, the model's context."),
    ],
)
def test_what_cannot_be_compared_is_an_error_in_the_words_that_were_typed(tiny_checkpoint, capsys, arguments, message):
    with pytest.raises(SystemExit) as ended:
        main(["verify", str(tiny_checkpoint("dense_tied", with_tokenizer=True)), *arguments])
    assert ended.value.code == 2
    assert capsys.readouterr().err == f"kaishu: error: {message}\n"
