"""GET /v1/models and /v1/models/NAME."""

from __future__ import annotations

import time

import pytest


@pytest.fixture
def server(scripted):
    return scripted(names=("Qwen/Qwen3-0.6B", "small"))


def test_every_name_of_the_model_is_listed_in_openais_form(server):
    body = server.client.get("/v1/models").json()
    assert body["object"] == "list" and [one["id"] for one in body["data"]] == ["Qwen/Qwen3-0.6B", "small"]
    for one in body["data"]:
        assert one["object"] == "model" and one["owned_by"] == "kaishu"
        assert abs(one["created"] - time.time()) < 100
        assert one["context_length"] == one["max_model_len"] == 1024


@pytest.mark.parametrize("spelling", ["Qwen/Qwen3-0.6B", "Qwen%2FQwen3-0.6B", "small"])
def test_each_can_be_asked_for_also_with_a_slash_in_its_name(server, spelling):
    response = server.client.get(f"/v1/models/{spelling}")
    assert response.json() in server.client.get("/v1/models").json()["data"]


@pytest.mark.parametrize("name", ["large", "Qwen", "SMALL", "..%2Fetc%2Fpasswd", "%ff", "x" * 5000])
def test_any_other_name_is_404_with_those_that_are_allowed(server, name):
    response = server.client.get(f"/v1/models/{name}")
    error = response.json()["error"]
    assert (response.status_code, error["code"], error["param"]) == (404, "model_not_found", "model")
    assert "allowed: Qwen/Qwen3-0.6B, small" in error["message"] and len(error["message"]) < 300


def test_any_of_the_names_can_be_used_and_no_other(server):
    body = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1}
    for name, status in {"Qwen/Qwen3-0.6B": 200, "small": 200, "": 400, "tiny": 404, "..": 404}.items():
        response = server.client.post("/v1/chat/completions", json={**body, "model": name})
        assert response.status_code == status
        if status == 200:
            assert response.json()["model"] == name
        else:
            assert response.json()["error"]["param"] == "model"
