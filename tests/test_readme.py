"""The two READMEs promise the same things, and CI runs what they tell people to run."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


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


@pytest.mark.parametrize("name", ["README.md", "README.zh.md"])
def test_links_between_documents_lead_somewhere(name: str) -> None:
    for path in [ROOT / name, *(ROOT / "docs").glob("*.md")]:
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", path.read_text(encoding="utf-8")):
            assert (path.parent / target).exists(), f"{path.name} links to {target}"
