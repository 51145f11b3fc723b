"""docs/server.md and its translation: what they say can be done is done here, and what settings are is compared."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import pytest
import yaml

from kaishu.loading import load_model
from kaishu.server.app import create_app
from kaishu.server.configuration import MODEL_SETTINGS, flag_of, read_configuration, setting_types, variable_of
from kaishu.server.keys import read_keys
from kaishu.server.run import check_certificate
from kaishu.server.settings import ServerSettings
from kaishu.server.unknown_fields import HEADER as IGNORED_FIELDS
from tests.server.conftest import LiveServer, live, service_on

DOCS = Path(__file__).parents[2] / "docs"
GUIDES = {name: (DOCS / name).read_text(encoding="utf-8") for name in ("server.md", "server.zh.md")}
ADDRESS = "http://127.0.0.1:8000"
guides = pytest.mark.parametrize("guide", GUIDES.values(), ids=GUIDES)


def blocks(guide: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", guide, re.MULTILINE | re.DOTALL)


def without_comments(block: str) -> str:
    return re.sub(r"^# .*|  +# .*", "#", block, flags=re.MULTILINE)


@pytest.fixture(scope="module")
def server() -> Iterator[LiveServer]:
    loaded = load_model("tiny", threads=1, context_tokens=512, say=lambda _: None)
    with live(service_on(loaded), ServerSettings(port=0)) as made:
        yield made


def test_both_languages_show_the_same_code_and_the_same_names():
    english, chinese = (
        (
            [without_comments(block) for block in re.findall(r"^ *```.*?^ *```", guide, re.MULTILINE | re.DOTALL)],
            re.findall(r"^\| (`[^|]*`) \|", guide, re.MULTILINE),
        )
        for guide in GUIDES.values()
    )
    assert english == chinese
    first, second = (guide.count("\n## ") for guide in GUIDES.values())
    assert first == second


@guides
def test_the_table_has_every_setting_with_its_default(guide):
    rows = re.findall(r"^\| (`[a-z_]+`(?:, `[a-z_]+`)*) \| ([^|]+) \| [^|]+ \|$", guide, re.MULTILINE)
    said = {name: default.strip("` ") for names, default in rows for name in re.findall(r"`(\w+)`", names)}
    assert list(said) == [field.name for field in fields(ServerSettings)]
    for field in fields(ServerSettings):
        default = field.default
        if isinstance(default, bool):
            assert said[field.name] == str(default).lower()
        elif isinstance(default, int | float):
            amount = f"{default:,.0f}"
            assert said[field.name].replace(",", "") == amount.replace(",", "")
        elif isinstance(default, str):
            assert said[field.name] == default
        else:
            assert not re.search(r"[a-z]*[0-9]", said[field.name]), "nothing is set, or it is said in words"
    for name in MODEL_SETTINGS:
        assert f"`{name}`" in guide


@guides
def test_the_file_of_settings_is_one(guide, tmp_path):
    (shown,) = blocks(guide, "toml")
    path = tmp_path / "kaishu.toml"
    path.write_text(shown, encoding="utf-8")
    found = read_configuration({}, {}, path)
    assert (found.settings.names, found.settings.max_running) == (("qwen", "gpt-4o"), 16)
    assert found.settings.api_keys_file == tmp_path / "keys"


@guides
def test_the_commands_have_options_and_variables_that_exist(guide):
    others = {"--config", "--url", "--api-key", "--help", "--rm", "--stop-timeout", "--cacert"}
    assert set(re.findall(r"(?<![-\w])--[a-z][a-z-]+", guide)) <= {*map(flag_of, setting_types()), *others}
    variables = {"KAISHU_CONFIG", "KAISHU_API_KEYS", "KAISHU_CACHE"}
    assert set(re.findall(r"KAISHU_[A-Z_]+", guide)) <= {*map(variable_of, setting_types()), *variables}


@guides
def test_the_requests_are_answered(guide, server):
    lines = re.findall(rf"^\$ curl (?:-N )?{ADDRESS}(/\S+) (.*)$", guide, re.MULTILINE)
    assert len(lines) == guide.count("$ curl ") - 1, "all but that over https"
    answers = []
    for path, options in lines:
        header, content_type, data, body = shlex.split(options)
        assert (header, content_type, data) == ("-H", "Content-Type: application/json", "-d")
        answer = server.client.post(path, content=body, headers={"Content-Type": "application/json"})
        assert answer.status_code == 200, (path, answer.text)
        assert IGNORED_FIELDS not in answer.headers
        answers.append(answer.text)
    shown = ("12 + 30 = 42", "[DONE]", "get_weather", '"finish_reason":"stop"', '"content":"12 + 30 = 42"')
    shown += ("output_text", "end_turn", "upon a time", "embedding", "token_strs")
    assert [part for part, answer in zip(shown, answers, strict=True) if part not in answer] == []


@guides
def test_the_programs_run(guide, server, capsys):
    programs = blocks(guide, "python")
    assert ["openai" in programs[0], "langchain" in programs[1]] == [True, True]
    for program in programs:
        exec(program.replace(ADDRESS, server.url), {})
    assert capsys.readouterr().out == "12 + 30 = 42\n" * len(programs)


@guides
def test_the_routes_are_the_servers(guide):
    said = set(re.findall(r"`(GET|POST) (/[^`]*)`", guide))
    app = create_app(ServerSettings(), _never, environment={})
    routed = {(method, route.path) for route in app_routes(app) for method in route.methods}
    assert said <= routed, said - routed
    for method, path in routed:
        if path.startswith("/v1/") and "{" not in path and method in ("GET", "POST"):
            assert (method, path) in said, f"{path} is not in the table"


def app_routes(app) -> list:
    """All routes, those of routers within routers too."""
    found, waiting = [], list(app.routes)
    while waiting:
        route = waiting.pop()
        inner = getattr(getattr(route, "original_router", None), "routes", None) or getattr(route, "routes", None)
        if inner:
            waiting += inner
        elif getattr(route, "methods", None):
            found.append(route)
    return found


def _never(*_: object):
    raise AssertionError("nothing is loaded")


@guides
def test_the_numbers_are_shown(guide, server):
    shown = server.client.get("/metrics").text
    names = set(re.findall(r"`((?:vllm:|kaishu_)[a-z_]+)`", guide))
    assert len(names) >= 9
    for name in names:
        assert f"\n{name}" in shown, name


@guides
def test_the_settings_of_others_name_the_server(guide):
    of_continue, of_prometheus = (yaml.safe_load(block) for block in blocks(guide, "yaml"))
    assert of_continue["models"][0]["apiBase"] == f"{ADDRESS}/v1"
    assert of_prometheus["scrape_configs"][0]["static_configs"] == [{"targets": [ADDRESS.removeprefix("http://")]}]


@guides
def test_the_certificate_is_one_that_a_server_can_use(guide, tmp_path):
    (line,) = re.findall(r"^ *\$ (openssl .*)$", guide, re.MULTILINE)
    if shutil.which("openssl") is None:  # then nobody can follow it here
        return
    subprocess.run(shlex.split(line), cwd=tmp_path, check=True, capture_output=True)
    check_certificate(ServerSettings(tls_certificate=tmp_path / "cert.pem", tls_key=tmp_path / "key.pem"))


@guides
def test_the_line_of_a_key_is_one(guide, tmp_path):
    (program,) = re.findall(r"^\$ python3 -c (.*) > keys && chmod 600 keys$", guide, re.MULTILINE)
    made = subprocess.run([sys.executable, "-c", shlex.split(program)[0]], check=True, capture_output=True, text=True)
    (tmp_path / "keys").write_text(made.stdout)
    assert read_keys(tmp_path / "keys", "").name_of(made.stdout.split()[1]) == "anna"
