"""`kaishu serve`: its options are the server's settings, and what is wrong is said before anything starts."""

from __future__ import annotations

import sys
from dataclasses import fields
from typing import Any

import pytest

from kaishu.cli.main import main
from kaishu.cli.options import GENERATING_MODEL_OPTIONS
from kaishu.cli.serve import SERVER_OPTIONS
from kaishu.server import run
from kaishu.server.configuration import MODEL_SETTINGS, flag_of, setting_types
from kaishu.server.settings import ServerSettings


@pytest.fixture
def started(monkeypatch) -> list[Any]:
    """What servers would be started with."""
    made: list[Any] = []
    monkeypatch.setattr(run, "run_server", lambda settings, load, **options: made.append((settings, load, options)))
    for name in setting_types():
        monkeypatch.delenv(f"KAISHU_{name.upper()}", raising=False)
    return made


def serve(*arguments: str) -> int:
    with pytest.raises(SystemExit) as leaving:
        main(["serve", *arguments])
    return leaving.value.code


def test_every_setting_has_an_option_of_its_name_and_every_option_is_a_setting():
    assert set(SERVER_OPTIONS.options) == {field.name for field in fields(ServerSettings)}
    flags = {option.__metadata__[0].default.partition("/")[0] for option in GENERATING_MODEL_OPTIONS.options.values()}
    assert flags == {flag_of(name) for name in MODEL_SETTINGS if name != "model"}
    for name, option in SERVER_OPTIONS.options.items():
        assert option.__metadata__[0].default.partition("/")[0] == flag_of(name)


def test_help_shows_an_example_the_defaults_and_the_other_places(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    assert serve("--help") == 0
    shown = " ".join(capsys.readouterr().out.split())
    for text in (
        "Example: kaishu serve Qwen/Qwen3-0.6B",
        "KAISHU_MAX_RUNNING=8",
        "(default 8000)",
        "(default 16,777,216)",
    ):
        assert text in shown
    for name in setting_types():
        assert name == "model" or flag_of(name) in shown


def test_options_reach_the_server(started, tmp_path):
    code = serve(
        "tiny", "--port", "0", "--names", "a", "--names", "b", "--strict", "--drain-s", "2", "--api-keys-file",
        str(tmp_path / "keys"), "--log-format", "json", "--threads", "1", "--context", "64", "--no-speculation",
    )  # fmt: skip
    assert code == 0
    ((settings, _, options),) = started
    assert settings == ServerSettings(
        port=0, names=("a", "b"), strict=True, drain_s=2.0, api_keys_file=tmp_path / "keys", log_format="json"
    )
    assert options["has_keys"] is True


def test_a_switch_on_the_command_line_can_undo_one_elsewhere(started, monkeypatch):
    monkeypatch.setenv("KAISHU_STRICT", "true")
    assert serve("tiny") == 0
    assert serve("tiny", "--no-strict") == 0
    assert [settings.strict for settings, _, _ in started] == [True, False]


def test_without_a_model_the_bundled_one_is_served_and_that_is_said(started, capsys):
    assert serve() == 0
    assert "then `kaishu serve Qwen/Qwen3-0.6B`" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["tiny", "--port", "70000"], "--port is 70000; allowed: a whole number from 0 to 65,535."),
        (["tiny", "--tls-key", "key.pem"], "tls_certificate is None; allowed: a file in PEM form"),
        (["tiny", "--config", "/nowhere.toml"], "The settings in /nowhere.toml can't be read"),
        (["tiny", "--prt", "1"], "No such option: --prt"),
    ],
)
def test_what_is_wrong_is_said(started, capsys, arguments, said):
    assert serve(*arguments) == 2
    assert f"kaishu: error: {said}" in capsys.readouterr().err
    assert not started


@pytest.mark.parametrize("package", ["fastapi", "uvicorn", "prometheus_client"])
def test_without_the_extra_the_command_says_what_to_install(capsys, monkeypatch, package):
    for name in [name for name in sys.modules if name.startswith("kaishu.server.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
    assert serve("tiny", "--port", "0") == 2
    said = capsys.readouterr().err
    assert f"`kaishu serve` needs the package {package.replace('_', '-')}, which is not installed." in said
    assert "pip install 'kaishu[server]'" in said
