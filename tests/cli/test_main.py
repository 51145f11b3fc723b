"""The command `kaishu` as a whole: quick help, and an end for every failure that a person can act on."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from kaishu.cli.main import main

COMMANDS = ["chat", "generate", "inspect", "tokenize", "pull", "verify", "bench", "eval", "cache"]
HEAVY = ["numpy", "torch", "tokenizers", "jinja2", "huggingface_hub", "prompt_toolkit", "httpx", "transformers"]


def kaishu(
    *arguments: str | Path, stdin: bytes = b"", folder: Path | None = None
) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-c", "from kaishu.cli.main import main; main()", *map(str, arguments)]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), "HF_HUB_OFFLINE": "1"}
    return subprocess.run(command, input=stdin, capture_output=True, env=environment, cwd=folder, check=False)


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """The command in this process: exit code, stdout, stderr."""
    with pytest.raises(SystemExit) as ended:
        main(list(arguments))
    captured = capsys.readouterr()
    return ended.value.code, captured.out, captured.err


@pytest.mark.parametrize("arguments", [["--help"], ["-h"], [], ["--version"], *([name, "--help"] for name in COMMANDS)])
def test_help_imports_nothing_heavy(arguments):
    code = (
        "import sys\nfrom kaishu.cli.main import main\n"
        "try: main(sys.argv[1:])\n"
        "finally: print(*sorted(sys.modules), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=True)
    assert not set(HEAVY) & set(done.stderr.split())


def test_help_names_every_command(capsys):
    code, out, err = run(capsys, "--help")
    assert (code, err) == (0, "")
    assert all(command in out for command in COMMANDS)


def test_the_version_is_the_package_s(capsys):
    from kaishu import __version__

    assert run(capsys, "--version") == (0, f"kaishu {__version__}\n", "")


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["generate", "tiny", "--temprature", "1"], "--temperature"),  # the nearest option is named
        (["generate", "tiny", "-p", "x", "--top-p", "1.5"], "--top-p is 1.5; allowed: a number from 0 to 1."),
        (["generate", "tiny", "-p", "x", "--top-k", "many"], "--top-k"),
        (["generate", "tiny", "-p", "x", "--logit-bias", "5"], "--logit-bias is '5'; allowed: ID=VALUE"),
        (["generate", "tiny", "-p", "x", "--weights", "int3"], "--weights is 'int3'; allowed"),
        (["generate", "tiny", "-p", ""], "The prompt is empty."),
        (["generate"], "MODEL"),
        (["genrate"], "'generate'"),
        (["tokenize", "tiny", "--ids", "-1"], "-1"),
        (["tokenize", "tiny", "x", "--ids"], "--ids is 'x'"),
        (["inspect", ""], "The name of the model is empty."),
        (["inspect", "~nobody-of-this-name/x"], "is nobody's home folder here"),
        (["inspect", "x" * 300], "can't be looked up: File name too long."),
        (["tokenize", "tiny", "--ids", "9" * 5000], "--ids is '999"),
        (["inspect", "no such model"], '"no such model" is neither a folder nor a model\'s name.'),
        (["verify", "./nowhere"], "There is no such folder"),
        (["chat", "--tools", "/nonexistent.json"], "/nonexistent.json can't be read"),
        (["chat", "./nowhere"], "There is no such folder"),
        (["cache", "claer"], "'clear'"),
        (["cache", "clear"], "there is no terminal to ask at"),
    ],
)
def test_a_wrong_command_line_is_one_clear_error_and_exit_code_2(arguments, message):
    done = kaishu(*arguments, stdin=b"hi")
    errors = done.stderr.decode()
    lines = [line for line in errors.splitlines() if not line.startswith("No model was named")]
    assert done.returncode == 2, errors
    assert message.lower() in lines[0].lower()
    assert lines[0].startswith("kaishu: error: ")
    assert all(line.startswith("  ") for line in lines[1:])
    assert done.stdout == b""


@pytest.fixture
def broken(own_checkpoint):
    """`broken(what)`: a folder with that fault."""

    def folder_with(fault: str) -> Path:
        shard_bytes = 60_000 if fault == "truncated shard" else None
        folder = own_checkpoint("dense_tied", with_tokenizer=True, shard_bytes=shard_bytes)
        if fault == "no config":
            (folder / "config.json").unlink()
        elif fault == "no tokenizer":
            (folder / "tokenizer.json").unlink()
        elif fault == "truncated shard":
            shard = sorted(folder.glob("model-*.safetensors"))[-1]
            shard.write_bytes(shard.read_bytes()[:-100])
        elif fault == "missing tensor":
            from safetensors.numpy import load_file, save_file

            tensors = load_file(folder / "model.safetensors")
            del tensors["model.norm.weight"]
            save_file(tensors, folder / "model.safetensors")
        elif fault == "hostile name":
            from safetensors.numpy import load_file, save_file

            tensors = load_file(folder / "model.safetensors")
            save_file({**tensors, "\x1b]0;owned\x07": tensors["model.norm.weight"]}, folder / "model.safetensors")
        return folder

    return folder_with


@pytest.mark.parametrize(
    "fault, message",
    [
        ("no config", "has no config.json"),
        ("no tokenizer", "has no tokenizer.json"),
        ("truncated shard", "the download stopped early"),
        ("missing tensor", "model.norm.weight"),
        ("hostile name", "␛]0;owned␇"),
    ],
)
def test_a_damaged_model_is_one_clear_error_and_exit_code_2(broken, fault, message):
    done = kaishu("generate", broken(fault), "-p", "hi")
    lines = done.stderr.decode().splitlines()
    assert done.returncode == 2
    assert lines[0].startswith("kaishu: error: ")
    assert message in lines[0]
    assert all(line.startswith("  ") for line in lines[1:])
    assert b"\x1b" not in done.stderr


def test_a_prompt_longer_than_the_context_is_an_error_with_both_numbers(tiny_checkpoint):
    folder = tiny_checkpoint("dense_tied", with_tokenizer=True)
    done = kaishu("generate", folder, "--context", "32", stdin=b"x" * 40)
    assert done.returncode == 2
    assert b"The prompt has 40 tokens, but the context holds 32" in done.stderr


def test_a_stray_byte_in_an_argument_is_an_error(tiny_checkpoint):
    command = [sys.executable, "-c", "from kaishu.cli.main import main; main()", "tokenize"]
    done = subprocess.run(
        [*map(os.fsencode, [*command, tiny_checkpoint("dense_tied", with_tokenizer=True)]), b"a\xff"],
        capture_output=True,
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr.startswith(b"kaishu: error: ")


def test_an_empty_question_through_a_pipe_is_an_error():
    done = kaishu("chat", stdin=b"")
    assert done.returncode == 2
    assert b"The question is empty." in done.stderr


def test_a_reader_that_leaves_is_not_complained_about(tiny_checkpoint):
    """As with `kaishu inspect --json … | head -1`."""
    program = f"from kaishu.cli.main import main; main(['inspect', '--json', {str(tiny_checkpoint('moe'))!r}])"
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    process.stdout.close()
    assert process.stderr.read() == b""
    assert process.wait() == 1


def in_a_shell(command: str) -> tuple[int, str]:
    """Run `kaishu …` with a shell's redirections. return: the exit code, and what came out"""
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), "HF_HUB_OFFLINE": "1"}
    environment.pop("PYTHONUNBUFFERED", None)  # what can't be written should still be waiting when Python exits
    done = subprocess.run(
        ["sh", "-c", command.replace("kaishu", f"{sys.executable} -m kaishu")],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=environment,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout


@pytest.mark.parametrize(
    "command, code, shown",
    [
        ("kaishu chat tiny <&-", 2, "kaishu: error: The question is empty.\n"),
        ("kaishu generate tiny <&-", 2, "kaishu: error: The prompt is empty.\n"),
        ("kaishu tokenize tiny <&-", 2, "kaishu: error: The text is empty.\n"),
        ("kaishu generate tiny <&- >&- 2>&-", 2, ""),
        ("kaishu inspect tiny >&-", 0, ""),
        ("kaishu --help >&-", 0, ""),
        ("kaishu --version >&- 2>&-", 0, ""),
        ("kaishu inspect ./nowhere 2>&-", 2, ""),
    ],
)
def test_a_closed_stream_is_empty_or_goes_nowhere(command, code, shown):
    ended, out = in_a_shell(command)
    assert ended == code, out
    assert out.startswith(shown) and "Traceback" not in out
    assert shown or out == ""


# Where nothing can be written: everywhere a stream that was opened to be read, and on Linux a device that is full.
UNWRITABLE = {"</dev/null": "Bad file descriptor"}
if Path("/dev/full").exists():
    UNWRITABLE[">/dev/full"] = "No space left on device"


@pytest.mark.parametrize("place", UNWRITABLE)
@pytest.mark.parametrize("command", ["inspect tiny", "inspect tiny --json", "--help", "--version", "tokenize tiny hi"])
def test_output_that_cannot_be_written_is_one_line_and_exit_code_2(command, place):
    assert in_a_shell(f"kaishu {command} 1{place}") == (2, f"kaishu: error: {UNWRITABLE[place]}.\n")


@pytest.mark.parametrize("place", UNWRITABLE)
def test_an_error_that_cannot_be_written_keeps_its_exit_code(place):
    assert in_a_shell(f"kaishu inspect ./nowhere 2{place}") == (2, "")
    assert in_a_shell(f"kaishu tokenize tiny hi 1{place} 2{place}") == (2, "")


def test_an_error_of_the_system_names_the_file(monkeypatch, capsys):
    def fail(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied", "/some/file")

    monkeypatch.setattr("kaishu.cli.pull.fetch", fail)
    assert run(capsys, "pull", "tiny") == (2, "", "kaishu: error: Permission denied: /some/file.\n")


def test_a_bug_shows_its_traceback(monkeypatch):
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("ours")

    monkeypatch.setattr("kaishu.cli.pull.fetch", fail)
    with pytest.raises(RuntimeError, match="ours"):
        main(["pull", "tiny"])


def test_ctrl_c_ends_quietly(monkeypatch, capsys):
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("kaishu.cli.pull.fetch", interrupt)
    assert run(capsys, "pull", "tiny")[0] == 130


def test_an_answer_through_a_pipe_from_end_to_end(tiny_checkpoint):
    folder = tiny_checkpoint("dense_tied", with_tokenizer=True)
    arguments = ["chat", folder, "--max-tokens", "8", "--no-thinking", "--temperature", "0", "--threads", "1"]
    first, second = (kaishu(*arguments, stdin="你好\n".encode()) for _ in range(2))
    assert first.returncode == 0, first.stderr
    assert first.stdout.endswith(b"\n")
    assert len(first.stdout) > 1
    assert first.stdout == second.stdout
    assert first.stderr == b""


def test_a_terminal_that_knows_no_chinese_gets_escapes_not_an_error(tiny_checkpoint):
    folder = tiny_checkpoint("dense_tied", with_tokenizer=True)
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    code = "from kaishu.cli.main import main; main()"
    command = [sys.executable, "-c", code, "tokenize", str(folder), "--json", "楷"]
    done = subprocess.run(command, capture_output=True, env=environment, check=False)
    assert done.returncode == 0
    assert json.loads(done.stdout)["text"] == "楷"
