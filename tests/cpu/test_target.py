"""Every form of the vector instructions: run where this CPU can run it, and generated where it can't."""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import llvmlite.binding
import pytest

from kaishu.cpu.target import TILE, Target, _target_of, current_target, target_from

ROOT = Path(__file__).parent.parent.parent
X86, ARM = "x86_64-unknown-linux-gnu", "aarch64-unknown-linux-gnu"
AVX2 = "+avx2,+fma,+f16c"
VNNI512 = f"{AVX2},+avx512f,+avx512bw,+avx512vl,+avx512vnni"
AMX = "+avx512bf16,+amx-tile,+amx-int8,+amx-bf16"

# Each form: for which kind of CPU, with which of its features, and what that makes of the kernels.
FORMS = {
    "portable on x86": (X86, "", Target(8, "portable", False, has_half=False, tokens=4)),
    "AVX2 without float16": (X86, "+avx2,+fma", Target(8, "avx2", False, has_half=False, tokens=4)),
    "AVX2": (X86, AVX2, Target(8, "avx2", False, has_half=True, tokens=4)),
    "AVX-VNNI": (X86, f"{AVX2},+avxvnni", Target(8, "vnni256", False, has_half=True, tokens=4)),
    "AVX-512 VNNI": (X86, VNNI512, Target(16, "vnni512", False, has_half=True, tokens=8)),
    "AVX-512 VNNI and BF16": (X86, f"{VNNI512},+avx512bf16", Target(16, "vnni512", True, has_half=True, tokens=8)),
    "AMX": (X86, f"{VNNI512},{AMX}", Target(16, "vnni512", True, has_half=True, tokens=8, has_tiles=True)),
    "portable on ARM": (ARM, "+neon", Target(8, "portable", False, has_half=False, tokens=4)),
    "NEON": (ARM, "+neon,+dotprod", Target(8, "sdot", False, has_half=True, tokens=4)),
}


def enabled(features: str) -> frozenset[str]:
    return frozenset(word[1:] for word in features.split(",") if word)


def can_run(triple: str, features: str) -> bool:
    machine = {"AMD64": "x86_64", "arm64": "aarch64"}.get(platform.machine(), platform.machine())
    here = {name for name, is_there in llvmlite.binding.get_host_cpu_features().items() if is_there}
    return triple.startswith(machine) and enabled(features) <= here


# What the suite runs anyway, in this process, needn't run again.
RUNNABLE = {
    name: form
    for name, form in FORMS.items()
    if can_run(*form[:2]) and form[2] != current_target() and current_target().has_tiles >= form[2].has_tiles
}


def run(*command: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, *command],
        cwd=ROOT,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-6000:]
    return done.stdout


@pytest.mark.parametrize("form", RUNNABLE)
def test_the_tests_of_the_instructions_pass_in_every_form_that_this_cpu_can_run(form):
    _, features, target = FORMS[form]
    program = (
        "import sys, pytest; from kaishu.cpu.target import current_target as t; print(t()); sys.exit(pytest.main())"
    )
    files = ["tests/cpu/test_vector.py"]
    if replace(target, has_half=current_target().has_half) != current_target():
        files += [
            "tests/cpu/test_products.py",
            "tests/cpu/test_linear.py",
            "tests/cpu/test_norm.py",
        ]  # else only one of vector.py's loads differs
    if target.has_bf16:  # tile registers have page products of their own
        files.append("tests/cpu/test_page_products.py")
    options = ("-q", "-x", "-n", "0", "-p", "no:cacheprovider")
    said = run("-c", program, *options, *files, NUMBA_CPU_NAME="generic", NUMBA_CPU_FEATURES=features)
    assert said.startswith(f"{target}\n") and re.search(r"^\d+ passed", said, re.MULTILINE)


def test_this_cpus_own_form_is_among_those_that_it_can_run():
    assert current_target() in [form[2] for form in FORMS.values() if can_run(*form[:2])]


@pytest.mark.parametrize(
    "environment",
    [
        {},
        {"NUMBA_CPU_NAME": "generic"},
        {"NUMBA_CPU_FEATURES": "+avx2,+fma"},
        {"NUMBA_CPU_NAME": "generic", "NUMBA_CPU_FEATURES": ""},
        {"NUMBA_ENABLE_AVX": "0"},
    ],
    ids=str,
)
def test_features_are_those_that_numba_generates_for(environment):
    program = """
from numba.core.registry import cpu_target

from kaishu.cpu.target import cpu_features

print(cpu_target.target_context.codegen()._tm_features == cpu_features())
"""
    assert run("-c", program, **environment) == "True\n"


@pytest.fixture(scope="module")
def assembly_of():
    """`assembly_of(form)`: the innermost loops of each kind of weights in assembly; nothing of it is run."""

    def generated(form):
        triple, features, _ = FORMS[form]
        text = run("-m", "tests.cpu.generated_code", triple, features)
        return dict(re.findall(r"^== (\w+)\n(.*?)(?=^== |\Z)", text, re.MULTILINE | re.DOTALL))

    return generated


def count(pattern: str, text: str) -> int:
    return len(re.findall(pattern, text))


# One group of 32 for the tokens of a tile: 8 times 4 inputs for each token; of bfloat16 two blocks of rows. NEON has
# half the width, so two of each. What must be there, and what must not.
INSTRUCTIONS = {
    "portable on x86": (r"\bmulps", 16, r"\bmulps", r"ymm|zmm|fmadd"),
    "AVX2": (r"vpmaddubsw\s.*ymm", 8 * 4, r"vfmadd\w+ps.*ymm", r"vpdpbusd|zmm"),
    "AVX-VNNI": (r"{vex}\s+vpdpbusd\s.*ymm", 8 * 4, r"vfmadd\w+ps.*ymm", r"vpmaddubsw|zmm"),
    "AVX-512 VNNI": (r"vpdpbusd\s.*zmm", 8 * 8, r"vfmadd\w+ps.*zmm", r"vpmaddubsw|vdpbf16ps"),
    "AVX-512 VNNI and BF16": (r"vpdpbusd\s.*zmm", 8 * 8, r"vdpbf16ps\s.*zmm", r"vpmaddubsw"),
    "AMX": (r"vpdpbusd\s.*zmm", 8 * 8, r"vdpbf16ps\s.*zmm", r"vpmaddubsw"),
    "portable on ARM": (r"\bfmul\s", 4, r"\bfmul\s", r"\bsdot\s"),
    "NEON": (r"\bsdot\s", 8 * 4 * 2, r"\bfmla\s", r"\bsmlal\s"),
}


@pytest.mark.parametrize("form", INSTRUCTIONS)
def test_the_innermost_loops_have_the_instructions_of_their_cpu(form, assembly_of):
    whole, at_least, multiplied, never = INSTRUCTIONS[form]
    loops = assembly_of(form)
    in_tiles = {"bf16_tiles", "few_bf16_tiles", "byte_tiles"} if form == "AMX" else set()
    assert set(loops) == {"int4", "int4_minimum", "int8", "bf16", "int4_pair", "int8_pair"} | in_tiles
    for kind in ("int4", "int4_minimum", "int8"):
        assert count(whole, loops[kind]) >= at_least, loops[kind]
    for pair in ("int4_pair", "int8_pair"):  # two blocks for one token
        assert count(whole, loops[pair]) >= 2 * at_least // FORMS[form][2].tokens, loops[pair]
    assert count(multiplied, loops["bf16"]) >= 2 * FORMS[form][2].tokens
    for loop, instruction, number in (
        ("bf16_tiles", "tdpbf16ps", 4),
        ("few_bf16_tiles", "tdpbf16ps", 2),
        ("byte_tiles", "tdpbssd", 1),
        ("byte_tiles", r"vfmadd231ps\s.*zmm", TILE),  # a group's sums, each added where its total stays
    ):
        assert not in_tiles or count(instruction, loops[loop]) >= number, loops[loop]
    everything = "\n".join(loops.values())
    assert not count(never, everything)
    assert not count(r"\n\s+(call\w*|bl)\s", everything), "nothing is called from inside a loop"


@pytest.mark.parametrize("form", FORMS)
def test_the_best_form_is_chosen_by_features(form):
    triple, features, target = FORMS[form]
    assert target_from(enabled(features), triple.split("-")[0]) == target
    assert target_from(enabled(features) | {"sse2", "another"}, triple.split("-")[0]) == target


def test_tile_registers_are_used_only_where_the_system_allows_it(monkeypatch):
    _, features, with_tiles = FORMS["AMX"]
    for is_allowed in (True, False):
        monkeypatch.setattr("kaishu.cpu.target._may_use_tiles", lambda is_allowed=is_allowed: is_allowed)
        if platform.machine() in {"x86_64", "AMD64"}:
            assert _target_of.__wrapped__(features) == replace(with_tiles, has_tiles=is_allowed)
    assert with_tiles.name != replace(with_tiles, has_tiles=False).name, "kernels are kept apart by it"


@pytest.mark.parametrize("architecture", ["riscv64", "ppc64le", "i686"])
def test_an_unknown_cpu_gets_the_portable_form(architecture):
    features = frozenset({"avx2", "fma", "neon", "dotprod"})
    assert target_from(features, architecture) == Target(8, "portable", False, has_half=False, tokens=4)


def test_apples_name_for_the_architecture_is_known():
    features = frozenset({"neon", "dotprod"})
    assert target_from(features, "arm64") == target_from(features, "aarch64")


@pytest.mark.parametrize("missing", ["avx512f", "avx512bw", "avx512vl", "avx512vnni"])
def test_an_incomplete_avx512_is_not_used(missing):
    assert target_from(enabled(VNNI512) - {missing}, "x86_64").dot == "avx2"
    assert target_from(enabled(f"{VNNI512},+avxvnni") - {missing}, "x86_64").dot == "vnni256"


@pytest.mark.parametrize("missing", ["avx2", "fma"])
def test_an_incomplete_avx2_is_not_used(missing):
    assert target_from(enabled(AVX2) - {missing}, "x86_64").dot == "portable"


def test_every_form_has_a_name_of_its_own():
    names = {form[2].name for form in FORMS.values()}
    assert names == {
        "portable vectors",
        "AVX2",
        "AVX2 with VNNI",
        "AVX-512 VNNI",
        "AVX-512 VNNI, BF16",
        "AVX-512 VNNI, BF16, AMX",
        "NEON with dot product",
    }
