"""What the numbers were measured on: the processor, its instructions, the memory, the versions. Linux says it all."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import sys
from pathlib import Path
from typing import Any

_INSTRUCTIONS = ("avx2", "avx_vnni", "avx512f", "avx512_vnni", "avx512_bf16", "amx_tile", "asimddp", "i8mm", "bf16")
_PACKAGES = ("kaishu", "numba", "numpy", "llama-cpp-python", "openvino-genai", "transformers", "torch", "gguf")


def machine() -> dict[str, Any]:
    """The machine as a plain object; what can't be found out is left out."""
    described: dict[str, Any] = {
        "system": platform.platform(),
        "python": platform.python_version(),
        "cpus": len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count(),
    }
    cpu = Path("/proc/cpuinfo")
    if cpu.exists():
        text = cpu.read_text(errors="replace")
        flags = re.search(r"^(?:flags|Features)\s*: (.*)$", text, re.MULTILINE)
        described["instructions"] = [f for f in _INSTRUCTIONS if flags and f in flags[1].split()]
        if model := re.search(r"^model name\s*: (.*)$", text, re.MULTILINE):
            described["processor"] = model[1]
    memory = Path("/proc/meminfo")
    if memory.exists() and (total := re.search(r"MemTotal:\s+(\d+) kB", memory.read_text())):
        described["memory_gb"] = round(int(total[1]) * 1024 / 1e9, 1)
    return described


def versions() -> dict[str, str]:
    """Package → version, of those that are installed."""
    found = {}
    for package in _PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found
