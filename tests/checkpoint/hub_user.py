"""A person with a home folder and an imitated hub, and the model that they want.

Hugging Face's client reads its environment once, when it is imported. `User.resolve` therefore sets what it read;
`User.resolve_in_a_process` has the real environment variables.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from kaishu.checkpoint.hub import resolve
from kaishu.errors import KaishuError
from tests.checkpoint.hub_server import Hub

NAME = "Qwen/Qwen3-tiny"
WEIGHTS = bytes(range(256)) * 12_000  # about 3 MB, not a real file: nothing here looks inside
FILES: Mapping[str, bytes] = {
    "config.json": b'{"model_type": "qwen3"}',
    "generation_config.json": b"{}",
    "tokenizer.json": b'{"version": "1.0"}',
    "tokenizer_config.json": b"{}",
    "chat_template.jinja": b"{{ messages }}",
    "model.safetensors": WEIGHTS,
    "README.md": b"not needed",
    "pytorch_model.bin": b"never",
    "original/params.json": b"never",
}
NEEDED = {
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "model.safetensors",
}
PREFIXES = ["", "modelscope:"]  # both hubs
DRIVER = """
import json, sys
from kaishu.checkpoint.hub import resolve
from kaishu.errors import KaishuError
seen = []
try:
    folder = resolve(sys.argv[1], progress=lambda *counts: seen.append(counts), refresh=len(sys.argv) > 2)
    answer = {"folder": str(folder)}
except KaishuError as error:
    answer = {"error": type(error).__name__, "message": str(error)}
print(json.dumps({**answer, "progress": seen[-1:], "fetched": "huggingface_hub.hf_api" in sys.modules}))
"""


@dataclass(frozen=True)
class User:
    """A person with a home folder of their own, and one hub."""

    hub: Hub
    home: Path
    monkeypatch: pytest.MonkeyPatch

    def environment(self, **changes: str) -> dict[str, str]:
        ours = {
            "HF_HOME": str(self.home / "hf"),
            "XDG_CACHE_HOME": str(self.home / "cache"),
            "HF_ENDPOINT": self.hub.endpoint,
            "MODELSCOPE_ENDPOINT": self.hub.endpoint,
            "NO_PROXY": "127.0.0.1",
        }
        return ours | changes

    def resolve(self, name: str, *, refresh: bool = False, **changes: str) -> dict[str, Any]:
        """What `resolve` answers in this process, in the user's environment."""
        from huggingface_hub import constants

        environment = self.environment(**changes)
        seen: list[tuple[int, int]] = []
        with self.monkeypatch.context() as patch:
            for key, value in environment.items():
                patch.setenv(key, value)
            patch.setattr(constants, "ENDPOINT", environment["HF_ENDPOINT"])
            file_url = environment["HF_ENDPOINT"] + "/{repo_id}/resolve/{revision}/{filename}"
            patch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", file_url)
            patch.setattr(constants, "HF_HUB_CACHE", str(self.home / "hf" / "hub"))
            patch.setattr(constants, "HF_HUB_OFFLINE", environment.get("HF_HUB_OFFLINE") == "1")
            try:
                folder = resolve(name, progress=lambda *counts: seen.append(counts), refresh=refresh)
            except KaishuError as error:
                return {"error": type(error).__name__, "message": str(error), "progress": seen[-1:]}
        return {"folder": str(folder), "progress": seen[-1:]}

    def process_environment(self, **changes: str) -> dict[str, str]:
        kept = {key: value for key, value in os.environ.items() if not key.startswith(("HF_", "MODELSCOPE", "KAISHU"))}
        return kept | {"PYTHONPATH": str(Path(__file__).parents[2])} | self.environment(**changes)

    def resolve_in_a_process(self, name: str, *, refresh: bool = False, **changes: str) -> dict[str, Any]:
        """What `resolve` answers in a process of its own."""
        command = [sys.executable, "-c", DRIVER, name, *(["refresh"] if refresh else [])]
        done = subprocess.run(
            command, capture_output=True, text=True, env=self.process_environment(**changes), timeout=60
        )
        assert done.returncode == 0, done.stderr
        answer: dict[str, Any] = json.loads(done.stdout)
        return answer


def names_in(folder: str) -> set[str]:
    return {str(path.relative_to(folder)) for path in Path(folder).rglob("*") if path.is_file()}


def contents_of(folder: str) -> dict[str, bytes]:
    return {name: (Path(folder) / name).read_bytes() for name in names_in(folder)}
