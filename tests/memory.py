"""How much memory a program needed at most, measured in a process of its own.

`ru_maxrss` alone won't do on Linux: a child starts with its parent's peak.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from kaishu.checkpoint.names import needed_tensors
from kaishu.config import config_from_json
from tests.test_config import QWEN3_06B

PEAK_MB = """
import re, resource, sys
from pathlib import Path
def peak_mb():
    if Path("/proc/self/status").exists():
        return int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) / 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
"""


def run_measured(program: str, **environment: str) -> list[str]:
    """Run a program that may call `peak_mb()`, and return the words that it printed.

    program:     Python, run in the repository's root
    environment: variables beside those of this process
    """
    root = Path(__file__).parents[1]
    done = subprocess.run(
        [sys.executable, "-c", PEAK_MB + program],
        capture_output=True,
        text=True,
        cwd=root,
        env=os.environ | environment,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def write_large_checkpoint(folder: Path) -> None:
    """Write 200 MB of float16 weights in Qwen3's shapes; its largest tensor takes 4 MB."""
    raw = {**QWEN3_06B, "hidden_size": 512, "intermediate_size": 4096, "num_hidden_layers": 16, "vocab_size": 4096}
    raw |= {"eos_token_id": 2, "bos_token_id": 1}
    (folder / "config.json").write_text(json.dumps(raw))
    needed = needed_tensors(config_from_json(raw))
    tensors = {name: np.ones(tensor.shape, np.float16) for name, tensor in needed.items()}
    assert sum(array.nbytes for array in tensors.values()) > 200e6
    save_file(tensors, folder / "model.safetensors")
