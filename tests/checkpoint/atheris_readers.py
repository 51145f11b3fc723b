"""Opens files that a coverage-guided fuzzer makes up: it keeps those edits that reach new lines of the readers.

    pip install atheris
    python -m tests.checkpoint.atheris_readers FOLDER -runs=200000 -max_len=8192 -rss_limit_mb=512 -timeout=5

FOLDER holds whole small files to begin with, and gets what was found; options are libFuzzer's. Whatever isn't a
KaishuError ends the run and leaves its input in a file. No test needs it: fuzz_readers.py is what the suite runs.
"""

from __future__ import annotations

import sys
import tempfile
from contextlib import suppress
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["kaishu"]):
    from kaishu.errors import KaishuError
    from tests.checkpoint.fuzz_readers import read


def main() -> None:
    with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as folder:

        def open_one(contents: bytes) -> None:
            suffix = "gguf" if contents[:4] == b"GGUF" else "safetensors"
            path = Path(folder) / f"made_up.{suffix}"
            path.write_bytes(contents)
            with suppress(KaishuError):
                read(path)

        atheris.Setup(sys.argv, open_one)
        atheris.Fuzz()


if __name__ == "__main__":
    main()
