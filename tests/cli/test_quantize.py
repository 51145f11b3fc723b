"""`kaishu quantize`: what it costs on the bundled model, what it says, and that what it writes is run as it stands."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from kaishu.checkpoint import open_checkpoint
from kaishu.checkpoint.hub import resolve
from kaishu.cli.eval_forms import Evaluation, Model, run
from kaishu.cli.main import main
from kaishu.llm import LLM

ROOT = Path(__file__).parents[2]


def command(capsys, *arguments: object) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        main(["quantize", *map(str, arguments)])
    captured = capsys.readouterr()
    return ended.value.code, captured.out, captured.err


@pytest.fixture(scope="module")
def tiny() -> Model:
    return Model("tiny", open_checkpoint(resolve("tiny")))


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """`made(form, *options)`: the folder that `kaishu quantize tiny` writes, made once."""
    folders: dict[tuple[str, ...], Path] = {}

    def folder_of(*options: str) -> Path:
        if options not in folders:
            folders[options] = tmp_path_factory.mktemp("quantised") / "-".join(options)
            arguments = ["quantize", "tiny", str(folders[options]), "--threads", "1", "--weights", *options]
            with pytest.raises(SystemExit) as ended:
                main(arguments)
            assert not ended.value.code
        return folders[options]

    return folder_of


def divergence(tiny: Model, folder: Path | None = None, weights: str = "auto", head: str = "bf16") -> float:
    """Mean KL from the trained model, on all of Kaishu's own conversations. None: rounded while it is packed."""
    model = tiny if folder is None else Model(folder.name, open_checkpoint(folder))
    found: Evaluation = run(
        model, tiny, [weights], [head], written=None, tokens=10_000, threads=1, advance=lambda *_: None
    )
    return found.forms[0].comparison.kl_mean


def test_calibrated_int4_costs_at_most_half_of_rounding_to_the_nearest(tiny, made):
    nearest = divergence(tiny, weights="int4")
    assert divergence(tiny, made("int4", "--calibrate", "auto")) <= nearest / 2


def test_int4_without_a_text_costs_less_than_rounding_to_the_nearest(tiny, made):
    assert divergence(tiny, made("int4")) < divergence(tiny, weights="int4")


@pytest.mark.parametrize("options", [("int8",), ("int8", "--calibrate", "auto", "--tokens", "4000")])
def test_int8_costs_next_to_nothing(tiny, made, options):
    assert divergence(tiny, made(*options)) <= 0.002


def test_what_is_written_is_run_as_stored_and_still_answers(made):
    llm = LLM(made("int4", "--calibrate", "auto"), threads=1)
    assert "weights as stored (42 compressed-tensors int4" in llm.description
    answers = {"What is 417 + 265?": "417 + 265 = 682", "中国的首都是哪里？": "中国的首都是北京。"}
    for question, answer in answers.items():
        assert llm.chat([{"role": "user", "content": question}], thinking=False).content == answer


def test_the_report_says_what_was_done_and_what_was_not(capsys, tmp_path):
    code, out, err = command(capsys, "tiny", tmp_path / "out", "--calibrate", "auto", "--tokens", 4000, "--threads", 1)
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert re.match(
        r"tiny → .*/out: int4, calibrated with 4,000 of 15,\d{3} tokens of the bundled model's world$", lines[0]
    )
    assert re.match(
        r"weights  5\.1 MB → 2\.0 MB: 1\.2 MB of linear layers, 4\.50 bits a weight; 829\.1 kB kept", lines[1]
    )
    rows = {line.split()[0]: line.split()[1:] for line in lines[3:10]}
    assert rows.keys() == {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}
    assert rows["down_proj"][0] == f"{6 * 192 * 448:,}"
    for _, ours, nearest in rows.values():
        assert float(ours.rstrip("%")) < 0.75 * float(nearest.rstrip("%"))
    assert "The embedding is also the output head" in out


def test_json_has_the_same_and_a_quantised_source_is_named(capsys, tmp_path, made):
    code, out, _ = command(capsys, made("int8"), tmp_path / "out", "--weights", "int4", "--json")
    found = json.loads(out)
    assert code == 0 and found["weights"] == "int4" and found["calibrated_with"] is None
    assert found["source_formats"].startswith("42 compressed-tensors int8")
    assert found["kinds"]["q_proj"]["error"] < found["kinds"]["q_proj"]["error_of_nearest"] < 0.2
    _, out, _ = command(capsys, made("int8"), tmp_path / "again", "--weights", "int4")
    assert "The source is quantised already (42 compressed-tensors int8" in out


def test_a_text_of_the_user_s_is_read_up_to_a_number_of_tokens(capsys, tmp_path):
    (tmp_path / "文.txt").write_text("Twelve and thirty are forty-two. " * 100, encoding="utf-8")
    options = (tmp_path / "out", "--calibrate", tmp_path / "文.txt", "--tokens", 700, "--threads", 1)
    code, out, _ = command(capsys, "tiny", *options)
    assert code == 0
    assert re.search(r"calibrated with 700 of [\d,]+ tokens of .*文\.txt", out)


@pytest.mark.parametrize(
    "options, message",
    [
        (["--weights", "int5"], "--weights is 'int5'; allowed: int8 or int4."),
        (["--tokens", "0"], "--tokens is 0; allowed: a whole number from 1 to 1,000,000."),
        (["--threads", "0"], "--threads is 0; allowed: a whole number from 1 to 1,024."),
        (["--calibrate", "nowhere.txt"], "--calibrate is 'nowhere.txt'; allowed: a file with a text in UTF-8."),
    ],
)
def test_what_cannot_be_is_an_error_in_the_words_that_were_typed(capsys, tmp_path, options, message):
    code, out, err = command(capsys, "tiny", tmp_path / "out", *options)
    assert (code, out) == (2, "")
    assert err.startswith(f"kaishu: error: {message}")
    assert not list(tmp_path.iterdir())


def test_a_folder_that_holds_something_is_left(capsys, tmp_path):
    (tmp_path / "precious").write_text("x")
    code, _, err = command(capsys, "tiny", tmp_path)
    assert code == 2 and "already holds precious; allowed: a new or an empty folder." in err


def test_without_torch_only_calibration_is_missing(tmp_path):
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    for options, code in (([], 0), (["--calibrate", "auto"], 2)):
        arguments = ["quantize", "tiny", str(tmp_path / f"out{code}"), *options]
        program = f"import sys; sys.modules['torch'] = None\nfrom kaishu.cli.main import main; main({arguments!r})"
        done = subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, env=environment, check=False
        )
        assert done.returncode == code, done.stderr
    assert "needs the package torch" in done.stderr and "pip install 'kaishu[torch]'" in done.stderr
