"""`python -m kaishu` is the command `kaishu`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import kaishu


def test_python_runs_the_package_as_the_command() -> None:
    command = [sys.executable, "-m", "kaishu"]
    root = Path(__file__).parents[1]
    version = subprocess.run([*command, "--version"], capture_output=True, text=True, cwd=root, check=True)
    assert version.stdout == f"kaishu {kaishu.__version__}\n"
    wrong = subprocess.run([*command, "genrate"], capture_output=True, text=True, cwd=root, check=False)
    assert wrong.returncode == 2
    assert wrong.stderr.startswith("kaishu: error: ") and "__main__" not in wrong.stderr
