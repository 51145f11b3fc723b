"""How much memory a program needed at most, measured in a process of its own.

`ru_maxrss` alone won't do on Linux: a child starts with its parent's peak.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PEAK_MB = """
import re, resource, sys
from pathlib import Path
def peak_mb():
    if Path("/proc/self/status").exists():
        return int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) / 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
"""


def run_measured(program: str) -> list[str]:
    """Run a program that may call `peak_mb()`, and return the words that it printed.

    program: Python, run in the repository's root
    """
    root = Path(__file__).parents[1]
    done = subprocess.run([sys.executable, "-c", PEAK_MB + program], capture_output=True, text=True, cwd=root)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()
