"""schemathesis against a live server: cases that it makes of the OpenAPI document, right ones and wrong ones.

What it checks of each answer: no status of 500 or above; status, type and form are among those that the document has;
what the document forbids was refused; methods that it doesn't have were refused with what is allowed; no connection
broke off. What it doesn't: that whatever the document allows by itself is answered, since fields may contradict each
other, and the model here is no reranker.

The whole of it, over 20,000 cases, takes some minutes:

    KAISHU_LONG_TESTS=1 python -m pytest -n 0 -s tests/server/test_schemathesis.py
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.server.conftest import LiveServer

ROOT = Path(__file__).parent.parent.parent
LONG_CASES = 20_000


def run(server: LiveServer, folder: Path, *options: str) -> tuple[dict[str, Any], str]:
    """Run it. return: its report, and what it says of failures; empty if there are none"""
    report = folder / "report.json"
    command = [
        *(sys.executable, "-m", "schemathesis.cli", "--no-color", "run", f"{server.url}/openapi.json"),
        *("--exclude-checks", "positive_data_acceptance", "--continue-on-failure", "--request-timeout", "60"),
        *("--report", "json", "--report-json-path", str(report), *options),
    ]
    hooks = {"SCHEMATHESIS_HOOKS": "tests.server.schemathesis_hooks", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=folder, env=os.environ | hooks, capture_output=True, text=True, check=False)
    assert report.exists(), done.stdout + done.stderr
    found: dict[str, Any] = json.loads(report.read_text())
    if done.returncode or found["failures"] or found["errors"]:
        said = re.search(r"=== (ERRORS|FAILURES)", done.stdout)  # errors are its own, or of the connection
        return found, done.stdout[said.start() if said else 0 :] + done.stderr
    return found, ""


def check_use(server: LiveServer) -> None:
    server.wait_until_idle()
    body = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2}
    assert server.client.post("/v1/chat/completions", json=body).status_code == 200


def test_no_case_makes_the_server_fail(tiny: LiveServer, tmp_path: Path) -> None:
    found, failures = run(tiny, tmp_path, "--phases", "fuzzing", "-n", "6", "--seed", "1", "--no-shrink")
    assert not failures, failures
    assert found["operations"]["tested"] == found["operations"]["total"]
    assert found["test_cases"]["generated"] > 60
    check_use(tiny)


if os.environ.get("KAISHU_LONG_TESTS"):

    def test_no_case_of_twenty_thousand_makes_the_server_fail(tiny: LiveServer, tmp_path: Path) -> None:
        cases, failures = 0, []
        while cases < LONG_CASES:
            found, said_failures = run(tiny, tmp_path, "--phases", "coverage,fuzzing", "-n", "200", "-w", "2")
            counts = found["test_cases"]
            cases += counts["generated"]
            failures += [said_failures] if said_failures else []
            said = f"{counts['generated']:,} cases, {counts['unique_failures']} failures"
            print(f"\nschemathesis: {said}, {found['running_time']:.0f} s, seed {found['seed']}")
        check_use(tiny)
        assert not failures, "\n".join(failures)
