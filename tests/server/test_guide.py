"""docs/server.md and its translation: what they say can be done is done here, and what settings are is compared."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import pytest

from kaishu.loading import load_model
from kaishu.server.app import create_app
from kaishu.server.configuration import MODEL_SETTINGS, flag_of, read_configuration, setting_types, variable_of
from kaishu.server.settings import ServerSettings
from tests.server.conftest import LiveServer, live, service_on

DOCS = Path(__file__).parents[2] / "docs"
GUIDES = {name: (DOCS / name).read_text(encoding="utf-8") for name in ("server.md", "server.zh.md")}
ADDRESS = "http://127.0.0.1:8000"
guides = pytest.mark.parametrize("guide", GUIDES.values(), ids=GUIDES)


def blocks(guide: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", guide, re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def server() -> Iterator[LiveServer]:
    loaded = load_model("tiny", threads=1, context_tokens=512, say=lambda _: None)
    with live(service_on(loaded), ServerSettings(port=0)) as made:
        yield made


def test_both_languages_show_the_same_code_and_the_same_names():
    english, chinese = (
        (
            re.findall(r"^```.*?^```", guide, re.MULTILINE | re.DOTALL),
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
    others = {"--config", "--url", "--stop-timeout"}
    assert set(re.findall(r"(?<![-\w])--[a-z][a-z-]+", guide)) <= {
        *map(flag_of, setting_types()),
        *others,
        "--rm",
        "--help",
    }
    variables = {"KAISHU_CONFIG", "KAISHU_API_KEYS"}
    assert set(re.findall(r"KAISHU_[A-Z_]+", guide)) <= {*map(variable_of, setting_types()), *variables}


@guides
def test_the_request_is_answered(guide, server):
    (line,) = re.findall(r"^\$ (curl .*)$", guide, re.MULTILINE)
    _, url, *options = shlex.split(line)
    given = dict(zip(options[::2], options[1::2], strict=True))
    name, _, value = given["-H"].partition(": ")
    answer = server.client.post(url.removeprefix(ADDRESS), content=given["-d"], headers={name: value})
    assert answer.json()["choices"][0]["message"]["content"] == "12 + 30 = 42"


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


def test_the_continue_settings_name_the_server():
    (shown,) = blocks(GUIDES["server.md"], "yaml")
    assert f"apiBase: {ADDRESS}/v1" in shown
