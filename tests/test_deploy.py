"""deploy/: a container image, a systemd unit, a file of settings. Each is read by the rules of what will read it."""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from kaishu.server.configuration import flag_of, read_configuration, setting_types, variable_of
from kaishu.server.run import GRACE_S
from kaishu.server.settings import ServerSettings
from tests.server.test_run import start  # noqa: F401  # a fixture

ROOT = Path(__file__).parent.parent
DEPLOY = ROOT / "deploy"
DOCKERFILE = (DEPLOY / "Dockerfile").read_text(encoding="utf-8")
UNIT = (DEPLOY / "kaishu.service").read_text(encoding="utf-8")


def instructions() -> list[tuple[str, str]]:
    """The Dockerfile's instructions, lines that go on put together."""
    lines = [line for line in DOCKERFILE.splitlines() if not line.startswith("#")]
    joined = "\n".join(lines).replace("\\\n", " ")
    return [
        (name, " ".join(rest.split()))
        for name, _, rest in (line.partition(" ") for line in joined.splitlines() if line)
    ]


def of_last_stage(name: str) -> list[str]:
    stage: list[str] = []
    for found, rest in instructions():
        stage = [] if found == "FROM" else [*stage, rest] if found == name else stage
    return stage


def test_the_dockerfile_has_instructions_that_docker_knows():
    known = {
        "FROM", "RUN", "COPY", "ENV", "USER", "WORKDIR", "VOLUME", "EXPOSE", "STOPSIGNAL", "HEALTHCHECK", "ENTRYPOINT",
    }  # fmt: skip
    assert {name for name, _ in instructions()} == known


def test_images_have_names_without_a_registry():
    images = [rest.split()[0] for name, rest in instructions() if name == "FROM"]
    assert images == ["python:3.11-slim"] * 2


def test_what_is_copied_exists_and_is_let_through_by_the_ignore_file():
    allowed = {line[1:] for line in (DEPLOY / "Dockerfile.dockerignore").read_text().splitlines() if line[:1] == "!"}
    copied = {
        source
        for name, rest in instructions()
        if name == "COPY" and "--from" not in rest
        for source in rest.split()[:-1]
    }
    assert copied == allowed
    assert all((ROOT / source).exists() for source in copied)
    # What the build reads of the tree, beside the package.
    metadata = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    for field in ("readme", "license-files"):
        (said,) = re.findall(rf'^{field} = \[?"([^"]+)"', metadata, re.MULTILINE)
        assert said in copied


def test_the_container_runs_without_root_is_checked_and_gets_signals_itself():
    (number,) = re.findall(r"useradd --uid (\d+) --user-group", of_last_stage("RUN")[0])
    assert int(number) > 0
    assert of_last_stage("USER") == [f"{number}:{number}"], "as a number, which Kubernetes can tell from root's"
    order = [name for name, _ in instructions()]
    assert order.index("USER") < order.index("ENTRYPOINT")
    assert json.loads(of_last_stage("ENTRYPOINT")[0]) == ["kaishu", "serve"]  # no shell between
    check = of_last_stage("HEALTHCHECK")[0]
    assert json.loads(check.partition("CMD ")[2]) == ["python", "/opt/kaishu/health.py"]
    assert "deploy/health.py /opt/kaishu/health.py" in of_last_stage("COPY")


def test_the_containers_environment_is_a_configuration():
    pairs = dict(pair.split("=", 1) for pair in of_last_stage("ENV")[0].split())
    settings = read_configuration({}, pairs).settings
    assert (settings.host, settings.port) == ("0.0.0.0", int(of_last_stage("EXPOSE")[0]))
    assert pairs["XDG_CACHE_HOME"] == of_last_stage("VOLUME")[0]


def test_the_health_check_tells_a_server_that_answers_from_one_that_does_not(start, monkeypatch, capsys):  # noqa: F811
    spec = importlib.util.spec_from_file_location("health", DEPLOY / "health.py")
    health = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(health)
    process = start("-m", "tests.server.slow_server", "{}")
    monkeypatch.setenv("KAISHU_PORT", process.line(r"http://.*:(\d+)")[1])
    assert health.main() == 0
    process.end()
    process.ended()
    assert health.main() == 1
    assert "refused" in capsys.readouterr().err


def unit(name: str) -> list[str]:
    return re.findall(rf"^{name}=(.*)$", UNIT, re.MULTILINE)


def test_the_unit_is_one_that_systemd_takes(tmp_path):
    sections = re.findall(r"^\[(\w+)\]$", UNIT, re.MULTILINE)
    assert sections == ["Unit", "Service", "Install"]
    assert all(re.match(r"(#|\[|[A-Za-z]+=|$)", line) for line in UNIT.splitlines())
    checker = shutil.which("systemd-analyze")
    if checker is None:  # systems without systemd have no other judge
        return
    copied = tmp_path / "kaishu.service"
    copied.write_text(re.sub(r"^ExecStart=\S+", "ExecStart=/bin/true", UNIT, flags=re.MULTILINE))
    found = subprocess.run([checker, "verify", str(copied)], capture_output=True, text=True, check=False)
    assert (found.returncode, found.stderr) == (0, "")


def test_the_unit_gives_a_server_the_time_to_end():
    assert int(unit("TimeoutStopSec")[0]) > ServerSettings().drain_s + GRACE_S
    assert unit("KillSignal") == ["SIGTERM"]


@pytest.mark.parametrize(
    "line",
    ["DynamicUser=yes", "ProtectSystem=strict", "ProtectHome=yes", "NoNewPrivileges=yes", "CapabilityBoundingSet="],
)
def test_the_unit_takes_away_what_a_server_does_not_need(line):
    assert line in UNIT.splitlines()


def test_what_the_unit_and_the_file_of_settings_say_are_settings():
    config = unit("ExecStart")[0].split()
    assert config[1:] == ["serve", flag_of("config"), "/etc/kaishu/kaishu.toml"]
    for name in re.findall(r"KAISHU_\w+", UNIT):
        assert name in map(variable_of, setting_types())
    text = (DEPLOY / "kaishu.toml").read_text(encoding="utf-8")
    found = read_configuration({}, {}, DEPLOY / "kaishu.toml")
    assert found.model == "Qwen/Qwen3-0.6B"
    assert found.settings == ServerSettings()  # what the file shows are the defaults
    for line in re.findall(r"^# (\w+) = ", text, re.MULTILINE):
        assert line in setting_types()
