"""The two READMEs promise the same things, show what is really printed, and CI runs what they tell people to run.

`KAISHU_WRITE_DOCS=1 pytest tests/test_readme.py` writes the outputs anew.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from kaishu import LLM

ROOT = Path(__file__).parent.parent
NAMES = ["README.md", "README.zh.md"]
COMMAND = re.compile(r"(?<=^```console\n)\$ (?P<command>[^\n]*kaishu [^\n]*)\n.*?(?=^```)", re.MULTILINE | re.DOTALL)
PROGRAM = re.compile(
    r"(?<=^```python\n)(?P<program>.*?)(?P<between>^```\n\n```\n)(?P<output>.*?)(?=^```)", re.MULTILINE | re.DOTALL
)


def code_blocks(name: str) -> list[str]:
    text = (ROOT / name).read_text(encoding="utf-8")
    return re.findall(r"^```\w*\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)


def commands(name: str) -> list[str]:
    """The lines of a README's shell blocks that a reader types."""
    return [line[2:] for block in code_blocks(name) for line in block.splitlines() if line.startswith("$ ")]


def test_both_languages_show_the_same_code() -> None:
    assert code_blocks("README.md") == code_blocks("README.zh.md")


def test_the_first_screen_installs_runs_and_tests() -> None:
    first_screen = "\n".join((ROOT / "README.md").read_text(encoding="utf-8").splitlines()[:40])
    install, test = commands("README.md")[:2]
    assert install.startswith("pip install .") and "kaishu chat" in install and install in first_screen
    assert "pytest" in test and test in first_screen


def test_ci_runs_the_readmes_test_command() -> None:
    assert commands("README.md")[1] in (ROOT / ".ci" / "run").read_text(encoding="utf-8")


def rerun_command(match: re.Match[str]) -> str:
    """A shell block with what its last command prints today."""
    command = match["command"].split("&&")[-1].replace("kaishu ", f"{sys.executable} -m kaishu ")
    environment = {**os.environ, "COLUMNS": "100", "NO_COLOR": "1"}
    done = subprocess.run(command, shell=True, stdout=-1, stderr=-2, text=True, env=environment, cwd=ROOT, check=True)
    return f"$ {match['command']}\n{done.stdout}".replace(f"{ROOT}{os.sep}", "")


def rerun_program(namespace: dict[str, object], capsys: pytest.CaptureFixture[str], match: re.Match[str]) -> str:
    """A Python block, its end, and what it prints today. Later blocks go on where earlier ones stopped."""
    exec(match["program"], namespace)
    return match["program"] + match["between"] + capsys.readouterr().out


@pytest.mark.parametrize("name", NAMES)
def test_outputs_are_what_is_really_printed(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = (ROOT / name).read_text(encoding="utf-8")
    assert len(COMMAND.findall(text)) >= 2 and len(PROGRAM.findall(text)) >= 2
    namespace: dict[str, object] = {}
    LLM("tiny", say=print)  # compiles what isn't compiled yet, which a command would say
    capsys.readouterr()
    renewed = COMMAND.sub(rerun_command, text)
    renewed = PROGRAM.sub(lambda match: rerun_program(namespace, capsys, match), renewed)
    if os.environ.get("KAISHU_WRITE_DOCS"):
        (ROOT / name).write_text(renewed, encoding="utf-8")
    assert renewed == (ROOT / name).read_text(encoding="utf-8")


@pytest.mark.parametrize("path", [ROOT / name for name in NAMES] + sorted((ROOT / "docs").glob("*.md")), ids=str)
def test_nothing_waits_to_be_filled_in(path: Path) -> None:
    assert not re.search(r"^[A-Z]{5,}$|TODO|FIXME", path.read_text(encoding="utf-8"), flags=re.MULTILINE)


@pytest.mark.parametrize("name", NAMES)
def test_links_between_documents_lead_somewhere(name: str) -> None:
    for path in [ROOT / name, *(ROOT / "docs").glob("*.md")]:
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", path.read_text(encoding="utf-8")):
            assert (path.parent / target).exists(), f"{path.name} links to {target}"
