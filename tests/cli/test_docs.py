"""docs/cli.md shows what the commands really print.

Each ```console block is a command and its output, each ```text block that begins with `› ` a chat session; both are run
and compared, but for measured numbers. A ```python block that begins with a file's name is that file.
`KAISHU_WRITE_DOCS=1 pytest tests/cli/test_docs.py` writes them anew.
"""

from __future__ import annotations

import io
import os
import re
import shlex
import time
from pathlib import Path

import pytest
from rich.console import Console

from kaishu.cli.chat import converse
from kaishu.cli.chat_commands import Chat
from kaishu.cli.chat_pages import ChatPages
from kaishu.cli.chat_session import Session
from kaishu.cli.main import main
from kaishu.cpu.store import PackedStore, cache_folder
from kaishu.cpu.target import current_target
from kaishu.llm import LLM

ROOT = Path(__file__).parents[2]
CHAPTER = ROOT / "docs" / "cli.md"
BLOCK = re.compile(r"(?<=```console\n)\$ .*?(?=```)|(?<=```text\n)› .*?(?=```)", re.DOTALL)
FILE = re.compile(r"(?<=```python\n)# (\w+\.py)\n.*?(?=```)", re.DOTALL)
OF_THE_CPU = re.compile(r"(?<=^beside them   )[\d.]+(?= MB of buffers)|(?<=^peak          )[\d.]+", re.MULTILINE)
MEASURED = re.compile(
    r"[\d.,]+(?= tok/s| s\b)|(?<=_seconds\": )[\d.e-]+|(?<=per_second\": )[\d.]+|(?<=logprob\": )[\d.e-]+"
    r"|[\d,]+ of [\d,]+(?= pages kept| guessed tokens)|[\d,]+(?= tokens, is in )|(?<=\.pages: )[\d,]+"
    r"|(?<=\.pages \()[^)]+|(?<=CPU kernels \()[^)]+|(?<=\"embedding\": \[)[^\]]+"
)


@pytest.fixture(scope="module")
def tiny() -> LLM:
    return LLM("tiny", threads=1)


@pytest.fixture
def cache(monkeypatch, tmp_path) -> None:
    """A cache as after some use, in a home of its own."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / ".cache"))
    monkeypatch.delenv("KAISHU_CACHE", raising=False)
    monkeypatch.setattr("kaishu.cpu.kernels.Kernels.is_compiled", lambda *_: True)
    for name, num_bytes, hours in (("tiny, int8, head int8", 2_900_000, 3), ("tiny, int4, head int4", 1_600_000, 50)):
        file = PackedStore(cache_folder() / "packed").open_or_pack(
            {"name": name}, num_bytes, lambda _: None, describe=name.encode()
        )
        used = time.time() - 3600 * hours - 60
        os.utime(file.path, (used, used))
    (cache_folder() / "kernels").mkdir()
    for name in ("decode.nbi", "prefill.nbi"):
        (cache_folder() / "kernels" / name).write_bytes(bytes(24_000))


@pytest.fixture
def rerun(tiny, cache, monkeypatch, capfd, tmp_path):
    """`rerun(block)`: the same block with what is printed today."""

    def fresh() -> LLM:
        """As in a process of its own: with nothing in the cache."""
        return LLM.of(tiny.loaded)

    monkeypatch.setattr("kaishu.cli.options.ModelOptions.load", lambda _options, _model: fresh())
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.chdir(tmp_path)  # what commands write
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    requests = re.search(r"(?<=```jsonl\n).*?(?=```)", CHAPTER.read_text(encoding="utf-8"), re.DOTALL)
    assert requests is not None, "the chapter shows a file of requests"
    (tmp_path / "requests.jsonl").write_text(requests[0], encoding="utf-8")

    def rerun(block: str) -> str:
        return _session(fresh(), block) if block.startswith("› ") else _commands(block, monkeypatch, capfd)

    return rerun


def _commands(block: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> str:
    shown = []
    for line in re.findall(r"^\$ .*$", block, re.MULTILINE):
        piped = re.fullmatch(r"\$ (?:echo (?P<text>'.*?'|\".*?\"|\S+) \| )?kaishu (?P<arguments>.*)", line)
        assert piped, f"not a command that can be checked: {line}"
        text = shlex.split(piped["text"])[0] + "\n" if piped["text"] else ""
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
        with pytest.raises(SystemExit):
            main(shlex.split(piped["arguments"]))
        captured = capfd.readouterr()
        shown.append(f"{line}\n{captured.err}{captured.out}".replace(f"{ROOT}{os.sep}", ""))
    return "\n".join(shown)


def _session(llm: LLM, block: str) -> str:
    console = Console(file=io.StringIO(), width=100)
    messages = iter([line.removeprefix("› ") for line in block.splitlines() if line.startswith("› ")])

    def read() -> str | None:
        message = next(messages, None)
        if message is not None:
            console.file.write(f"› {message}\n")
        return message

    chat = Chat(
        Session("tiny"), console, llm.context_tokens, llm.description, statistics=llm.statistics, pages=ChatPages(llm)
    )
    converse(llm, chat, read)
    return console.file.getvalue().rstrip() + "\n"


def test_the_chapter_shows_what_the_commands_print(rerun):
    chapter = CHAPTER.read_text(encoding="utf-8")
    for file in FILE.finditer(chapter):
        Path(file[1]).write_text(file[0], encoding="utf-8")
    renewed = BLOCK.sub(lambda block: rerun(block[0]), chapter)
    if os.environ.get("KAISHU_WRITE_DOCS"):
        CHAPTER.write_text(renewed, encoding="utf-8")
    assert len(BLOCK.findall(chapter)) >= 5
    written = CHAPTER.read_text(encoding="utf-8")
    if current_target().has_tiles:  # whose buffers are larger; the chapter shows the plan of all other CPUs
        renewed, written = OF_THE_CPU.sub("N", renewed), OF_THE_CPU.sub("N", written)
    assert MEASURED.sub("N", renewed) == MEASURED.sub("N", written)
