"""From a model's name to a service."""

from __future__ import annotations

import asyncio
import logging
import shutil
from pathlib import Path

import pytest

import kaishu
from kaishu.errors import InvalidParameterError
from kaishu.server.loading import load_service, model_names
from kaishu.server.metrics import Metrics
from kaishu.server.settings import ServerSettings


def test_a_hubs_name_is_served_whole_without_the_hub_and_by_its_last_part():
    assert model_names("Qwen/Qwen3-0.6B") == ("Qwen/Qwen3-0.6B", "Qwen3-0.6B")
    assert model_names("modelscope:Qwen/Qwen3-0.6B") == (
        "Qwen/Qwen3-0.6B", "modelscope:Qwen/Qwen3-0.6B", "Qwen3-0.6B",
    )  # fmt: skip
    assert model_names("Qwen/Qwen3-0.6B-GGUF:Q8_0") == ("Qwen/Qwen3-0.6B-GGUF:Q8_0", "Qwen3-0.6B-GGUF:Q8_0")
    assert model_names("tiny") == ("tiny",)


def test_of_a_path_only_the_last_part_is_told(tmp_path, monkeypatch):
    folder = tmp_path / "secret" / "my-model"
    folder.mkdir(parents=True)
    (folder / "weights.gguf").touch()
    assert model_names(str(folder)) == model_names(f"{folder}/") == ("my-model",)
    assert model_names(str(folder / "weights.gguf")) == ("weights", "weights.gguf")
    monkeypatch.chdir(folder)
    assert model_names(".") == ("my-model",)


def test_a_service_has_the_settings_its_names_and_its_limits(tmp_path, caplog):
    model = tmp_path / "copied"
    shutil.copytree(Path(kaishu.__file__).parent / "models" / "tiny", model)
    settings = ServerSettings(max_running=3, max_waiting=5, queue_timeout_s=7)
    with caplog.at_level(logging.INFO, "kaishu"):
        service = load_service(str(model), {"threads": 1, "context_tokens": 128}, settings, Metrics())
    try:
        assert service.names == ("copied",)
        made = service.engine._core.settings
        assert (made.budget.running, made.max_waiting, made.queue_timeout_s) == (3, 5, 7)
        assert made.warm_pages == service.engine.loaded.usual_settings.warm_pages is not None
        assert service.engine.loaded.context_tokens == 128
    finally:
        asyncio.run(service.engine.close())


def test_names_that_are_set_go_before_the_models_own():
    settings = ServerSettings(names=("gpt", "other"))
    service = load_service("tiny", {"threads": 1, "context_tokens": 128}, settings, Metrics())
    asyncio.run(service.engine.close())
    assert service.names == ("gpt", "other")


def test_what_is_wrong_with_an_argument_is_said():
    with pytest.raises(InvalidParameterError, match="threads is 0"):
        load_service("tiny", {"threads": 0}, ServerSettings(), Metrics())


def test_several_requests_of_the_whole_context_have_room_at_once():
    settings = ServerSettings(sequences=3)
    service = load_service("tiny", {"threads": 1, "context_tokens": 128}, settings, Metrics())
    asyncio.run(service.engine.close())
    executor = service.engine.loaded.executor
    assert service.engine.loaded.context_tokens == 128 and executor.num_pages * executor.page_tokens == 3 * 128
