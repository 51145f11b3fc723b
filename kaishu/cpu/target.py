"""Which vector instructions the code is generated for.

Owns how many lanes a vector has, and which of the few special instructions exist. Numba generates for the CPU it runs
on, or for the one that NUMBA_CPU_NAME and NUMBA_CPU_FEATURES name; this module reads the same, without Numba, because a
start that finds its kernels compiled has no need of Numba (kernels.py). Read by vector.py while it generates code, and
by executor.py, because weights are packed by as many rows as a vector has lanes.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Literal

TILE = 16  # rows of activations, or of weights, that a tile register holds
_ARCH_PRCTL, _REQUEST_PERMISSION, _TILE_DATA = 158, 0x1023, 18  # a system call of x86-64, and two of its constants

DotForm = Literal["vnni512", "vnni256", "avx2", "sdot", "portable"]


@dataclass(frozen=True)
class Target:
    """What the kernels may use.

    lanes:    how many float32 values a vector has; also how many weight rows are packed together
    dot:      which instruction multiplies and adds groups of four int8 values
    has_bf16: whether pairs of bfloat16 are multiplied and added by an instruction (vdpbf16ps)
    has_half: whether float16 is widened by an instruction
    tokens:   how many tokens a tile of the integer products holds; as many as the registers allow
    has_tiles: whether there are tile registers (AMX), which multiply bfloat16 and int8
    """

    lanes: int
    dot: DotForm
    has_bf16: bool
    has_half: bool
    tokens: int
    has_tiles: bool = False

    @property
    def query_rows(self) -> int:
        """How many rows of queries attention takes at once: those of a tile register, or of a tile."""
        return TILE if self.has_tiles else self.tokens

    @property
    def name(self) -> str:
        """One word for the start line and the caches."""
        words = {
            "vnni512": "AVX-512 VNNI",
            "vnni256": "AVX2 with VNNI",
            "avx2": "AVX2",
            "sdot": "NEON with dot product",
            "portable": "portable vectors",
        }
        return words[self.dot] + (", BF16" if self.has_bf16 else "") + (", AMX" if self.has_tiles else "")


def target_from(features: frozenset[str], architecture: str) -> Target:
    """The best form for a CPU's features, in LLVM's spelling.

    features:     such as {"avx2", "fma", "avx512vnni"}
    architecture: the first word of the target triple: "x86_64", "aarch64", "arm64"
    """
    if architecture == "x86_64":
        if {"avx512f", "avx512bw", "avx512vl", "avx512vnni"} <= features:
            has_bf16 = "avx512bf16" in features
            has_tiles = has_bf16 and {"amx-tile", "amx-bf16", "amx-int8"} <= features
            return Target(16, "vnni512", has_bf16, has_half=True, tokens=8, has_tiles=has_tiles)
        if {"avx2", "fma"} <= features:
            has_vnni = "avxvnni" in features
            return Target(8, "vnni256" if has_vnni else "avx2", False, has_half="f16c" in features, tokens=4)
    if architecture in {"aarch64", "arm64"} and {"neon", "dotprod"} <= features:
        return Target(8, "sdot", False, has_half=True, tokens=4)
    return Target(8, "portable", False, has_half=False, tokens=4)


def current_target() -> Target:
    """What kernels are generated for in this process."""
    return _target_of(cpu_features())


@cache
def _target_of(features: str) -> Target:
    import llvmlite.binding as llvm

    enabled = frozenset(word[1:] for word in features.split(",") if word.startswith("+"))
    target = target_from(enabled, llvm.get_process_triple().split("-")[0])
    return replace(target, has_tiles=target.has_tiles and _may_use_tiles())


def _may_use_tiles() -> bool:
    """Ask Linux for the tile registers, as every process has to that wants them: they are then every thread's, and a
    change of threads saves their 8 KiB. Linux before 5.16 doesn't know the question, and some sandboxes forbid it."""
    if sys.platform != "linux":
        return False
    system = ctypes.CDLL(None)
    return bool(system.syscall(_ARCH_PRCTL, _REQUEST_PERMISSION, _TILE_DATA) == 0)


def cpu_features(environment: Mapping[str, str] = os.environ) -> str:
    """The features that Numba has code generated with, in LLVM's spelling: such as "+avx2,+fma,-avx512f"."""
    name, named = environment.get("NUMBA_CPU_NAME", ""), environment.get("NUMBA_CPU_FEATURES")
    if named is not None or name.lower() == "generic":
        return named or ""
    return _host_features(with_avx=environment.get("NUMBA_ENABLE_AVX", "1") != "0")


@cache
def _host_features(*, with_avx: bool) -> str:
    """This CPU's features; asking LLVM takes half a millisecond, and the answer never changes."""
    import llvmlite.binding as llvm

    found = llvm.get_host_cpu_features()
    if not with_avx:
        found.update({name: False for name in found if name.startswith("avx")})
    return str(found.flatten())
