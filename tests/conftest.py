"""Fixtures that every folder of tests may use. Heavy packages are imported only by the tests that need them."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

TinyCheckpoint = Callable[..., Path]

# Packed weights and compiled kernels of tests stay out of the user's own cache, and from one run to the next, because
# compiling takes half a minute. Set here and not in a fixture, so that every process that a test starts has it too.
os.environ.setdefault("KAISHU_CACHE", str(Path(__file__).parent.parent / ".cache" / "test-kernels"))


@pytest.fixture
def rng() -> np.random.Generator:
    """A generator with a fixed seed, fresh for each test."""
    return np.random.default_rng(20250427)


@pytest.fixture(scope="session")
def tiny_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> TinyCheckpoint:
    """`tiny_checkpoint(kind, **options)`: the folder of a tiny checkpoint, written once a session. Don't change it.

    kind:    a key of tiny_checkpoints.KINDS
    options: as for write_tiny_checkpoint
    """
    from tests.tiny_checkpoints import write_tiny_checkpoint

    written: dict[str, Path] = {}

    def folder_of(kind: str, **options: Any) -> Path:
        key = f"{kind} {sorted(options.items())}"
        if key not in written:
            written[key] = write_tiny_checkpoint(tmp_path_factory.mktemp(kind), kind, **options)
        return written[key]

    return folder_of


@pytest.fixture
def own_checkpoint(tmp_path: Path) -> TinyCheckpoint:
    """`own_checkpoint(kind, **options)`: as tiny_checkpoint, but the test's own copy, to be damaged at will."""
    from tests.tiny_checkpoints import write_tiny_checkpoint

    def folder_of(kind: str, **options: Any) -> Path:
        return write_tiny_checkpoint(tmp_path / kind, kind, **options)

    return folder_of


@pytest.fixture(scope="session")
def smollm2_file() -> Path:
    """A real GGUF file that nobody here made; see smollm2_file.py. Skips where it can't be fetched."""
    from tests.smollm2_file import SmolLM2UnavailableError, find_smollm2_file

    try:
        return find_smollm2_file()
    except SmolLM2UnavailableError as error:
        pytest.skip(str(error))


def pytest_sessionfinish(session: pytest.Session) -> None:
    """In CI a skipped test is a failure, unless it waits for hardware (the `gpu` marker)."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    skipped = reporter.stats.get("skipped", []) if reporter else []
    without_excuse = [report.nodeid for report in skipped if "gpu" not in report.keywords]
    if os.environ.get("CI") and without_excuse and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
        reporter.write_line(f"CI allows no skipped tests, but these were: {', '.join(without_excuse)}", red=True)
