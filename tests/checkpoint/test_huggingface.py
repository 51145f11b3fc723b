"""Hugging Face's own ways: permissions, redirects, and a cache that other tools share."""

from __future__ import annotations

import json
from pathlib import Path

from tests.checkpoint.hub_server import COMMIT, serve
from tests.checkpoint.hub_user import FILES, NAME, NEEDED, WEIGHTS, User, contents_of, names_in


def test_a_gated_model_asks_for_a_token_and_opens_with_one(user: User) -> None:
    user.hub.gated.add(NAME)
    answer = user.resolve(NAME)
    assert answer["error"] == "HubUnavailableError"
    assert "needs permission" in answer["message"] and "HF_TOKEN" in answer["message"]
    assert names_in(user.resolve(NAME, HF_TOKEN="hf_secret")["folder"]) == NEEDED
    assert user.hub.gets(r"model\.safetensors$")[-1]["Authorization"] == "Bearer hf_secret"


def test_the_token_does_not_follow_a_redirect_to_another_host(user: User) -> None:
    with serve({NAME: FILES}) as strangers:
        user.hub.redirect_weights_to = strangers.endpoint
        answer = user.resolve(NAME, HF_TOKEN="hf_secret")
        assert contents_of(answer["folder"])["model.safetensors"] == WEIGHTS
        assert strangers.requests and not any("hf_secret" in str(headers) for _, _, headers in strangers.requests)


def test_shards_arrive_whole_and_the_cache_is_hugging_faces_own(user: User) -> None:
    index = {"weight_map": {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}}
    shards = {name: name.encode() * 1000 for name in index["weight_map"].values()}
    user.hub.models["org/sharded"] = {
        "config.json": b"{}",
        "tokenizer.json": b"{}",
        "model.safetensors.index.json": json.dumps(index).encode(),
        **shards,
    }
    folder = Path(user.resolve("org/sharded")["folder"])
    assert folder == user.home / "hf" / "hub" / "models--org--sharded" / "snapshots" / COMMIT
    assert all((folder / name).read_bytes() == contents for name, contents in shards.items())
    (folder / "model-00002-of-00002.safetensors").unlink()  # no longer whole: the hub is asked again
    user.hub.requests.clear()
    assert Path(user.resolve("org/sharded")["folder"]) == folder
    assert user.hub.requests and (folder / "model-00002-of-00002.safetensors").exists()


def test_the_hubs_own_client_finds_what_we_downloaded(user: User) -> None:
    from huggingface_hub import snapshot_download

    folder = user.resolve(NAME)["folder"]
    cache = user.home / "hf" / "hub"
    found = snapshot_download(NAME, cache_dir=cache, local_files_only=True, allow_patterns=sorted(NEEDED))
    assert Path(found) == Path(folder)
    assert (Path(folder) / "model.safetensors").resolve().parent == cache / "models--Qwen--Qwen3-tiny" / "blobs"


def test_a_commit_is_a_revision_too(user: User) -> None:
    folder = user.resolve(f"{NAME}@{COMMIT}")["folder"]
    user.hub.requests.clear()
    assert user.resolve(f"{NAME}@{COMMIT}", HF_HUB_OFFLINE="1")["folder"] == folder
    assert not user.hub.requests
