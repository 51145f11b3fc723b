"""The habits of the source tree, read with `ast`: who may import whom, sizes, names, docstrings, no globals."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "kaishu"
MODULES = sorted(PACKAGE.rglob("*.py"))

# A unit may import units of earlier rows, and itself. `kaishu/__init__.py` only names its public objects, lazily.
LAYERS = [
    {"errors"},
    {"json_fields", "locked_file", "byte_sizes", "memory_limits", "progress"},
    {"rope_config", "quantisation_config"},
    {"config", "batch", "output_format"},
    {"sampling"},
    {"checkpoint", "text"},
    {"reference", "cpu"},
    {"results", "text_files", "many_texts", "calibration_texts"},
    {"embedding", "reranking", "quantiser"},
    {"benchmark_limits"},
    {"executors", "evaluation", "evaluation_texts", "benchmark", "engine"},
    {"planning", "tool_docstrings", "tool_values"},
    {"benchmark_memory", "evaluation_memory"},
    {"tool_annotations"},
    {"tool_functions"},
    {"agent", "draft_model"},
    {"loading"},
    {"prompting", "deltas", "openai_fields", "batch_file"},
    {"openai_requests"},
    {"openai_responses", "openai_embeddings"},
    {"llm", "async_engine"},
    {"batch_run"},
    {"server", "lens"},
    {"cli"},
    {"__main__"},
]
BASE_DEPENDENCIES = {
    "numpy",
    "tokenizers",
    "llguidance",
    "jinja2",
    "huggingface_hub",
    "typer",
    "rich",
    "prompt_toolkit",
}
# click and markupsafe come with typer and jinja2, tqdm with huggingface_hub.
THEIR_OWN = {"click", "markupsafe", "tqdm"}
ONLY_IN = {
    "torch": ("reference",),
    "transformers": ("reference/verify.py",),
    "numba": ("cpu",),
    "llvmlite": ("cpu",),
    "PIL": ("cli/eval_plot.py",),
    "llguidance": ("engine",),
    "fastapi": ("server",),
    "starlette": ("server",),
    "pydantic": ("server",),
    "uvicorn": ("server",),
    "prometheus_client": ("server",),
}


def source_name(path: Path) -> str:
    return path.relative_to(PACKAGE).as_posix()


def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def unit_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imported_modules(tree: ast.AST) -> Iterator[str]:
    """Every module imported anywhere, inside functions too."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are written in full, not relative"
            if node.module == "kaishu":
                yield from (f"kaishu.{alias.name}" for alias in node.names)
            else:
                yield node.module or ""


def layer_of(unit: str) -> int:
    found = [index for index, units in enumerate(LAYERS) if unit in units]
    assert found, f"kaishu/{unit} has no place in LAYERS"
    return found[0]


def functions_in(tree: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    yield from (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


every_module = pytest.mark.parametrize("path", MODULES, ids=source_name)


@every_module
def test_imports_go_one_way_only(path: Path) -> None:
    if source_name(path) == "__init__.py":
        return
    own = unit_of(path)
    for module in imported_modules(tree_of(path)):
        if module.startswith("kaishu."):
            other = module.split(".")[1]
            if other in {own, "__version__"}:
                continue
            assert layer_of(other) < layer_of(own), f"kaishu/{source_name(path)} imports {module}"


@every_module
def test_only_declared_packages_are_imported_and_heavy_ones_only_in_their_place(path: Path) -> None:
    import sys

    for module in imported_modules(tree_of(path)):
        top = module.split(".")[0]
        if top in {"kaishu", "__future__"} or top in sys.stdlib_module_names:
            continue
        if top in ONLY_IN:
            places = ONLY_IN[top]
            assert any(source_name(path).startswith(place) for place in places), f"{source_name(path)} imports {top}"
        else:
            assert top in BASE_DEPENDENCIES | THEIR_OWN, f"{source_name(path)} imports {top}, which is not declared"


@every_module
def test_files_and_functions_stay_small(path: Path) -> None:
    source = path.read_text(encoding="utf-8")
    assert len(source.splitlines()) <= 400, f"{source_name(path)} is longer than 400 lines"
    for function in functions_in(ast.parse(source)):
        length = (function.end_lineno or 0) - function.lineno + 1
        assert length <= 60, f"{source_name(path)}: {function.name} has {length} lines, more than 60"


@every_module
def test_nothing_is_ambient(path: Path) -> None:
    tree = tree_of(path)
    assert not any(isinstance(node, ast.Global) for node in ast.walk(tree)), "no `global`"
    for node in tree.body:
        value = node.value if isinstance(node, ast.Assign | ast.AnnAssign) else None
        is_container = isinstance(value, ast.List | ast.Dict | ast.Set | ast.ListComp | ast.DictComp | ast.SetComp)
        if isinstance(node, ast.Assign | ast.AnnAssign) and is_container:
            target = node.targets[0] if isinstance(node, ast.Assign) else node.target
            name = ast.unparse(target)
            assert name == "__all__" or name.lstrip("_").isupper(), f"{name} looks like mutable state of a module"


@every_module
def test_modules_and_public_definitions_say_what_they_are(path: Path) -> None:
    tree = tree_of(path)
    docstring = ast.get_docstring(tree)
    assert docstring and len(docstring) > 40, f"{source_name(path)} needs a docstring that says what it owns"
    for node in tree.body:
        is_definition = isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        if is_definition and not node.name.startswith("_"):
            assert ast.get_docstring(node), f"{source_name(path)}: {node.name} has no docstring"


@every_module
def test_names_say_what_things_are(path: Path) -> None:
    names = [path.stem] + [node.name for node in ast.walk(tree_of(path)) if isinstance(node, ast.ClassDef)]
    for name in names:
        lowered = name.lower()
        is_bad = lowered in {"util", "utils", "helpers", "common", "misc"} or lowered.endswith(("impl", "v2"))
        assert not is_bad and not name.startswith(("Base", "Fast")), f"{source_name(path)}: {name}"


def test_tests_mirror_the_source_tree() -> None:
    tests = Path(__file__).parent
    missing = []
    for path in MODULES:
        relative = path.relative_to(PACKAGE)
        if path.name != "__init__.py" and not (tests / relative.parent / f"test_{path.name}").exists():
            missing.append(source_name(path))
    assert not missing, f"no test file for {', '.join(missing)}"


def test_importing_kaishu_imports_nothing_heavy() -> None:
    import subprocess
    import sys

    code = "import kaishu, sys; print(*sorted({name.split('.')[0] for name in sys.modules}))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    heavy = {"torch", "numpy", "tokenizers", "jinja2", "huggingface_hub", "typer", "rich", "prompt_toolkit", "httpx"}
    assert not heavy & set(loaded)
