"""Where settings come from, which goes before which, and what errors say."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as some

from kaishu.errors import ConfigError, InvalidParameterError
from kaishu.server.configuration import (
    MODEL_SETTINGS,
    flag_of,
    read_configuration,
    setting_types,
    variable_of,
)
from kaishu.server.settings import ServerSettings


@pytest.fixture
def file(tmp_path):
    """`file("max_running = 3")`: a file of settings"""

    def written(text: str) -> Path:
        path = tmp_path / "kaishu.toml"
        path.write_text(text, encoding="utf-8")
        return path

    return written


def test_what_is_said_nowhere_is_the_default():
    found = read_configuration({}, {"HOME": "/root"})
    assert found.settings == ServerSettings()
    assert (found.model, found.model_arguments) == (None, {})


def test_a_setting_has_one_name_in_three_spellings():
    assert (flag_of("max_body_bytes"), variable_of("max_body_bytes")) == ("--max-body-bytes", "KAISHU_MAX_BODY_BYTES")
    assert {field.name for field in fields(ServerSettings)} | set(MODEL_SETTINGS) == set(setting_types())


@given(some.tuples(*[some.none() | some.integers(1, 99)] * 3))
def test_the_command_line_goes_before_the_environment_and_that_before_the_file(tmp_path_factory, said):
    option, variable, line = said
    path = tmp_path_factory.mktemp("settings") / "kaishu.toml"
    path.write_text("" if line is None else f"max_running = {line}")
    environment = {} if variable is None else {"KAISHU_MAX_RUNNING": str(variable)}
    found = read_configuration({"max_running": option}, environment, path).settings.max_running
    assert found == next((value for value in said if value is not None), 32)


def test_every_kind_of_value_can_be_written_in_a_file_and_in_the_environment(file, tmp_path):
    expected = ServerSettings(
        host="::1", port=0, names=("a", "b"), api_keys_file=tmp_path / "keys", strict=True, drain_s=2.0,
        key_requests_per_minute=7, log_format="json",
    )  # fmt: skip
    in_file = file(
        'host = "::1"\nport = 0\nnames = ["a", "b"]\napi_keys_file = "keys"\nstrict = true\ndrain_s = 2\n'
        'key_requests_per_minute = 7\nlog_format = "json"\nmodel = "m"\nthreads = 2\ncontext = 64\nlora = ["x"]\n'
        "speculation = false\n"
    )
    environment = {
        "KAISHU_HOST": "::1", "KAISHU_PORT": "0", "KAISHU_NAMES": "a, b,", "KAISHU_API_KEYS_FILE": f"{tmp_path}/keys",
        "KAISHU_STRICT": "yes", "KAISHU_DRAIN_S": "2", "KAISHU_KEY_REQUESTS_PER_MINUTE": "7",
        "KAISHU_LOG_FORMAT": "json", "KAISHU_MODEL": "m", "KAISHU_THREADS": "2", "KAISHU_CONTEXT": "64",
        "KAISHU_LORA": "x", "KAISHU_SPECULATION": "0",
    }  # fmt: skip
    for found in (read_configuration({}, {}, in_file), read_configuration({}, environment)):
        assert found.settings == expected
        assert found.model == "m"
        assert found.model_arguments == {"threads": 2, "context_tokens": 64, "lora": ["x"], "speculation": False}


def test_the_file_can_be_named_in_the_environment_and_the_option_goes_before_it(file, tmp_path):
    named = file("port = 1")
    other = tmp_path / "other.toml"
    other.write_text("port = 2")
    assert read_configuration({}, {"KAISHU_CONFIG": str(named)}).settings.port == 1
    assert read_configuration({}, {"KAISHU_CONFIG": str(named)}, other).settings.port == 2


def test_a_variable_that_is_empty_is_not_set():
    assert read_configuration({}, {"KAISHU_PORT": "", "KAISHU_API_KEYS_FILE": " "}).settings == ServerSettings()


def test_an_error_says_where_the_value_stands(file):
    path = file("port = 70000")
    for given_port, environment, config, place in (
        (70000, {}, None, "--port"),
        (None, {"KAISHU_PORT": "70000"}, None, "KAISHU_PORT"),
        (None, {}, path, f"port in {path}"),
    ):
        with pytest.raises(InvalidParameterError) as caught:
            read_configuration({"port": given_port}, environment, config)
        assert str(caught.value) == f"{place} is 70000; allowed: a whole number from 0 to 65,535."


def test_an_error_that_comes_with_the_model_says_so_too():
    found = read_configuration({"weights": "int3"}, {"KAISHU_CONTEXT": "1"})
    asked = [InvalidParameterError(name, 1, "more") for name in ("weights", "context_tokens", "head")]
    assert [found.respelt(error).field for error in asked] == ["--weights", "KAISHU_CONTEXT", "head"]
    other = ConfigError("No.")
    assert found.respelt(other) is other


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("port = true", "is True; allowed: a whole number."),
        ('port = "8000"', "is '8000'; allowed: a whole number."),
        ("port = 1.5", "is 1.5; allowed: a whole number."),
        ("strict = 1", "is 1; allowed: true or false."),
        ('drain_s = "long"', "is 'long'; allowed: a number."),
        ('names = "a"', "is 'a'; allowed: a list of texts."),
        ("names = [1]", "is [1]; allowed: a list of texts."),
        ("host = 1", "is 1; allowed: a text."),
        ('api_keys_file = ""', "is ''; allowed: a file's name."),
        ('log_format = "xml"', "is 'xml'; allowed: text, json."),
        ("drain_s = nan", "is nan; allowed: a number of seconds"),
    ],
)
def test_a_value_of_another_type_is_refused_in_a_file(file, line, said):
    with pytest.raises(InvalidParameterError) as caught:
        read_configuration({}, {}, file(line))
    assert said in str(caught.value)
    assert "kaishu.toml" in str(caught.value)


@pytest.mark.parametrize(
    ("variable", "text", "said"),
    [
        ("KAISHU_PORT", "80a", "a whole number"),
        ("KAISHU_DRAIN_S", "soon", "a number"),
        ("KAISHU_STRICT", "maybe", "true, 1, yes, on, false"),
        ("KAISHU_PORT", "tcp://10.0.0.1:8000", "enableServiceLinks"),
        ("KAISHU_TLS_KEY", "~nobody-of-that-name/key.pem", "home folder"),
        ("KAISHU_TLS_KEY", "key.pem", "certificate and key"),
    ],
)
def test_a_value_of_another_type_is_refused_in_the_environment(variable, text, said):
    with pytest.raises(InvalidParameterError) as caught:
        read_configuration({}, {variable: text})
    assert said in str(caught.value)


@pytest.mark.parametrize("text", ["port 1", "model = tiny", "port = 1\nport = 2", "\udce4", "[" * 5000])
def test_a_file_that_is_no_toml_is_said(tmp_path, text):
    path = tmp_path / "kaishu.toml"
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(ConfigError, match="are not TOML") as caught:
        read_configuration({}, {}, path)
    assert "texts stand in quotes" in str(caught.value)


def test_a_file_that_is_not_there_is_said(tmp_path):
    with pytest.raises(ConfigError, match=r"none\.toml can't be read: No such file"):
        read_configuration({}, {}, tmp_path / "none.toml")


def test_unknown_names_in_a_file_are_refused_with_the_nearest(file):
    for line, hint in (("max-runing = 1", "Did you mean max_running?"), ("[server]\nport = 1", "There are host, port")):
        with pytest.raises(ConfigError, match="There is no setting") as caught:
            read_configuration({}, {}, file(line))
        assert hint in str(caught.value)


def test_variables_that_look_like_ours_are_refused_and_others_are_left_alone():
    for variable, meant in (
        ("KAISHU_MAX_BODY_BYTE", "KAISHU_MAX_BODY_BYTES"),
        ("KAISHU_API_KEYFILE", "KAISHU_API_KEYS_FILE"),
        ("KAISHU_APIKEYS", "KAISHU_API_KEYS"),
        ("KAISHU_MODELS", "KAISHU_MODEL"),
    ):
        with pytest.raises(ConfigError) as caught:
            read_configuration({}, {variable: "1"})
        assert f"{variable}, which is no setting" in str(caught.value)
        assert f"Did you mean {meant}?" in str(caught.value)
    others = ("KAISHU_CACHE", "KAISHU_HUB", "KAISHU_LONG_TESTS", "KAISHU_WRITE_DOCS", "KAISHU_QWEN", "KAISHU_FUZZ_SEED")
    read_configuration({}, dict.fromkeys((*others, "PORT", "OTHER_PORT"), "1"))


def test_the_key_of_the_chat_is_not_taken_for_a_key_of_the_server(tmp_path):
    with pytest.raises(ConfigError, match="KAISHU_API_KEY, which is the key that `kaishu chat --url` sends"):
        read_configuration({}, {"KAISHU_API_KEY": "secret"})
    read_configuration({}, {"KAISHU_API_KEY": "secret", "KAISHU_API_KEYS": "other"})
    read_configuration({"api_keys_file": tmp_path / "keys"}, {"KAISHU_API_KEY": "secret"})
