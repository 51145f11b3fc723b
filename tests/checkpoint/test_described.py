"""Models that aren't here, by their config.json: nothing else is downloaded, and their tensors are what they'd be."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kaishu.checkpoint import open_checkpoint
from kaishu.checkpoint.described import describe
from kaishu.checkpoint.hub import BUNDLED, resolve
from kaishu.config import GenerationDefaults, ModelConfig
from kaishu.errors import CheckpointError, ConfigError, HubUnavailableError, ModelNotFoundError
from tests.checkpoint.hub_user import FILES, NAME, PREFIXES, User


@pytest.fixture
def online(user: User, monkeypatch: pytest.MonkeyPatch) -> User:
    """The user's environment for the whole test."""
    from huggingface_hub import constants

    for key, value in user.environment().items():
        monkeypatch.setenv(key, value)
    monkeypatch.setattr(constants, "ENDPOINT", user.hub.endpoint)
    monkeypatch.setattr(
        constants, "HUGGINGFACE_CO_URL_TEMPLATE", user.hub.endpoint + "/{repo_id}/resolve/{revision}/{filename}"
    )
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(user.home / "hf" / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    return user


def has(user: User, config: object, **files: bytes) -> None:
    """The model on the hub has this config.json."""
    user.hub.models[NAME] = {**FILES, "config.json": json.dumps(config).encode(), **files}


def config_of(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "config.json").read_text())


def shape(config: ModelConfig) -> ModelConfig:
    """A config without what generation_config.json adds, which isn't asked for."""
    return replace(config, generation=GenerationDefaults(), eos_token_ids=())


@pytest.mark.parametrize("prefix", PREFIXES)
@pytest.mark.parametrize("kind, dtype", [("dense_tied", "bfloat16"), ("moe_mixed", "float32"), ("qwen2", "float16")])
def test_its_tensors_have_the_names_shapes_and_bytes_that_the_files_have(prefix, kind, dtype, online, tiny_checkpoint):
    opened = open_checkpoint(tiny_checkpoint(kind, dtype=dtype))
    has(online, config_of(opened.folder))
    described = describe(prefix + NAME)
    assert shape(described.config) == shape(opened.config)
    assert {name: (t.shape, t.dtype) for name, t in described.tensors.items()} == {
        name: (t.shape, t.dtype) for name, t in opened.tensors.items()
    }
    assert (described.nbytes, described.num_parameters) == (opened.nbytes, opened.num_parameters)
    (note,) = described.notes
    assert note.startswith(f"{prefix}{NAME} is not here yet")
    assert not online.hub.gets(r"safetensors|tokenizer"), "only the config was asked for"


@pytest.mark.parametrize("prefix", PREFIXES)
def test_a_model_that_is_here_is_opened_and_nobody_is_asked(prefix, online, tiny_checkpoint):
    files = {path.name: path.read_bytes() for path in tiny_checkpoint("dense_tied", with_tokenizer=True).iterdir()}
    online.hub.models[NAME] = files
    folder = resolve(prefix + NAME)
    online.hub.requests.clear()
    assert describe(prefix + NAME).folder == folder and describe(prefix + NAME).notes == ()
    assert not online.hub.requests


def test_folders_and_the_bundled_model_are_opened(tiny_checkpoint):
    folder = tiny_checkpoint("dense_tied")
    assert describe(str(folder)) == open_checkpoint(folder)
    assert describe(BUNDLED) == open_checkpoint(resolve(BUNDLED))


@pytest.mark.parametrize("prefix", PREFIXES)
def test_a_quantised_model_that_is_not_here_must_be_pulled(prefix, online, tiny_checkpoint):
    quantised = {"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": False, "sym": True}
    has(online, config_of(tiny_checkpoint("dense_tied")) | {"quantization_config": quantised})
    with pytest.raises(CheckpointError, match=f"only its files say how.*\n  Run `kaishu pull {prefix}"):
        describe(prefix + NAME)


@pytest.mark.parametrize("prefix", PREFIXES)
def test_a_model_that_nobody_has_or_a_hub_that_does_not_answer(prefix, online):
    with pytest.raises(ModelNotFoundError):
        describe(prefix + "Qwen/Nothing")
    online.hub.broken_status = 503
    with pytest.raises(HubUnavailableError):
        describe(prefix + "Qwen/Other")


@pytest.mark.parametrize("prefix", PREFIXES)
def test_offline_means_offline(prefix, online, monkeypatch):
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(HubUnavailableError, match="HF_HUB_OFFLINE forbids asking"):
        describe(prefix + NAME)


def test_a_repository_without_a_config_says_so(online):
    online.hub.models[NAME] = {"model.safetensors": b"x"}
    with pytest.raises(CheckpointError, match=r"has no config\.json"):
        describe(NAME)


@pytest.mark.parametrize("prefix", PREFIXES)
@pytest.mark.parametrize("name", [NAME, f"{NAME}:Q8_0"])
def test_a_gguf_model_that_is_not_here_must_be_pulled(prefix, name, online):
    """Also where its repository has a config.json: how the weights are kept isn't in there."""
    online.hub.models[NAME] = {"config.json": FILES["config.json"], "m-Q8_0.gguf": b"GGUF"}
    with pytest.raises(
        CheckpointError, match=r"only the file says how they are kept: it is not here\..*\n  Run `kaishu"
    ):
        describe(prefix + name)
    assert not online.hub.gets("resolve|FilePath=")


@pytest.mark.parametrize("text", [b"{", b"[1]", b'{"model_type": "gpt2"}', b"{}"])
def test_a_config_that_is_none_of_ours_is_a_config_error(text, online):
    online.hub.models[NAME] = {**FILES, "config.json": text}
    with pytest.raises(ConfigError):
        describe(NAME)
