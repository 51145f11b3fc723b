"""Names become folders: the bundled model, local folders, and two hubs imitated on 127.0.0.1.

Hugging Face's client reads its environment once, when it is imported. Most tests therefore set what it read; a few run
a process of their own with the real environment variables.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from kaishu.checkpoint.hub import resolve
from kaishu.errors import CheckpointError, InvalidParameterError, KaishuError, ModelNotFoundError
from tests.checkpoint.hub_server import COMMIT, Hub, serve

NAME = "Qwen/Qwen3-tiny"
WEIGHTS = bytes(range(256)) * 12_000  # about 3 MB, not a real file: nothing here looks inside
FILES: Mapping[str, bytes] = {
    "config.json": b'{"model_type": "qwen3"}',
    "generation_config.json": b"{}",
    "tokenizer.json": b'{"version": "1.0"}',
    "tokenizer_config.json": b"{}",
    "chat_template.jinja": b"{{ messages }}",
    "model.safetensors": WEIGHTS,
    "README.md": b"not needed",
    "pytorch_model.bin": b"never",
    "original/params.json": b"never",
}
NEEDED = {
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "model.safetensors",
}
DRIVER = """
import json, sys
from kaishu.checkpoint.hub import resolve
from kaishu.errors import KaishuError
seen = []
try:
    folder = resolve(sys.argv[1], progress=lambda *counts: seen.append(counts), refresh=len(sys.argv) > 2)
    answer = {"folder": str(folder)}
except KaishuError as error:
    answer = {"error": type(error).__name__, "message": str(error)}
print(json.dumps({**answer, "progress": seen[-1:], "fetched": "huggingface_hub.hf_api" in sys.modules}))
"""


@dataclass(frozen=True)
class User:
    """A person with a home folder of their own, and one hub."""

    hub: Hub
    home: Path
    monkeypatch: pytest.MonkeyPatch

    def environment(self, **changes: str) -> dict[str, str]:
        ours = {
            "HF_HOME": str(self.home / "hf"),
            "XDG_CACHE_HOME": str(self.home / "cache"),
            "HF_ENDPOINT": self.hub.endpoint,
            "MODELSCOPE_ENDPOINT": self.hub.endpoint,
            "NO_PROXY": "127.0.0.1",
        }
        return ours | changes

    def resolve(self, name: str, *, refresh: bool = False, **changes: str) -> dict[str, Any]:
        """What `resolve` answers in this process, in the user's environment."""
        from huggingface_hub import constants

        environment = self.environment(**changes)
        seen: list[tuple[int, int]] = []
        with self.monkeypatch.context() as patch:
            for key, value in environment.items():
                patch.setenv(key, value)
            patch.setattr(constants, "ENDPOINT", environment["HF_ENDPOINT"])
            file_url = environment["HF_ENDPOINT"] + "/{repo_id}/resolve/{revision}/{filename}"
            patch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", file_url)
            patch.setattr(constants, "HF_HUB_CACHE", str(self.home / "hf" / "hub"))
            patch.setattr(constants, "HF_HUB_OFFLINE", environment.get("HF_HUB_OFFLINE") == "1")
            try:
                folder = resolve(name, progress=lambda *counts: seen.append(counts), refresh=refresh)
            except KaishuError as error:
                return {"error": type(error).__name__, "message": str(error), "progress": seen[-1:]}
        return {"folder": str(folder), "progress": seen[-1:]}

    def process_environment(self, **changes: str) -> dict[str, str]:
        kept = {key: value for key, value in os.environ.items() if not key.startswith(("HF_", "MODELSCOPE", "KAISHU"))}
        return kept | {"PYTHONPATH": str(Path(__file__).parents[2])} | self.environment(**changes)

    def resolve_in_a_process(self, name: str, *, refresh: bool = False, **changes: str) -> dict[str, Any]:
        """What `resolve` answers in a process of its own."""
        command = [sys.executable, "-c", DRIVER, name, *(["refresh"] if refresh else [])]
        done = subprocess.run(
            command, capture_output=True, text=True, env=self.process_environment(**changes), timeout=60
        )
        assert done.returncode == 0, done.stderr
        answer: dict[str, Any] = json.loads(done.stdout)
        return answer


@pytest.fixture
def user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[User]:
    for key in ("HF_TOKEN", "KAISHU_HUB"):
        monkeypatch.delenv(key, raising=False)
    with serve({NAME: FILES}) as hub:
        yield User(hub, tmp_path, monkeypatch)


def names_in(folder: str) -> set[str]:
    return {str(path.relative_to(folder)) for path in Path(folder).rglob("*") if path.is_file()}


def contents_of(folder: str) -> dict[str, bytes]:
    return {name: (Path(folder) / name).read_bytes() for name in names_in(folder)}


PREFIXES = ["", "modelscope:"]


@pytest.mark.parametrize("prefix", PREFIXES)
def test_a_download_brings_the_needed_files_and_no_others(user: User, prefix: str) -> None:
    answer = user.resolve(prefix + NAME)
    assert contents_of(answer["folder"]) == {name: FILES[name] for name in NEEDED}
    done, total = answer["progress"][-1]
    assert done == total >= len(WEIGHTS)
    assert len(user.hub.gets(r"model\.safetensors$")) == 1
    assert not user.hub.gets("pytorch_model|README|original")


@pytest.mark.parametrize("prefix", PREFIXES)
def test_a_cached_model_needs_no_network_at_all(user: User, prefix: str) -> None:
    first = user.resolve_in_a_process(prefix + NAME)
    user.hub.requests.clear()
    again = user.resolve_in_a_process(prefix + NAME)
    assert again["folder"] == first["folder"]
    assert not again["fetched"]  # the hub's client wasn't even imported
    assert user.resolve_in_a_process(prefix + NAME, HF_HUB_OFFLINE="1")["folder"] == first["folder"]
    assert not user.hub.requests
    assert "folder" in user.resolve(prefix + NAME, refresh=True)
    assert user.hub.requests and not user.hub.gets(r"model\.safetensors$")


@pytest.mark.parametrize("prefix", PREFIXES)
def test_a_broken_transfer_resumes_where_it_broke(user: User, prefix: str) -> None:
    user.hub.break_after_bytes, user.hub.max_breaks = 1_000_000, 10
    answer = user.resolve(prefix + NAME)
    assert contents_of(answer["folder"])["model.safetensors"] == WEIGHTS
    ranges = [headers.get("Range") for headers in user.hub.gets(r"model\.safetensors$")]
    assert ranges == [None, "bytes=1000000-", "bytes=2000000-", "bytes=3000000-"]


@pytest.mark.parametrize("prefix", PREFIXES)
def test_what_arrived_before_a_failure_is_not_fetched_again(user: User, prefix: str) -> None:
    part_folder = user.home
    user.hub.break_after_bytes = 0  # nothing arrives: the first run gives up
    failed = user.resolve(prefix + NAME)
    assert failed["error"] == "HubUnavailableError" and "broke off after 0 of 3,072,000 bytes" in failed["message"]
    (part,) = part_folder.rglob("*.part")
    part.write_bytes(WEIGHTS[:123_456])  # as an interrupted process leaves it
    user.hub.break_after_bytes = None
    user.hub.requests.clear()
    answer = user.resolve(prefix + NAME)
    assert contents_of(answer["folder"])["model.safetensors"] == WEIGHTS
    assert [headers.get("Range") for headers in user.hub.gets(r"model\.safetensors$")] == ["bytes=123456-"]
    assert not list(user.home.rglob("*.part"))


@pytest.mark.parametrize("prefix", PREFIXES)
def test_a_server_that_ignores_ranges_still_yields_a_right_file(user: User, prefix: str) -> None:
    user.hub.break_after_bytes, user.hub.max_breaks, user.hub.ignore_ranges = 1_000_000, 2, True
    answer = user.resolve(prefix + NAME)
    assert contents_of(answer["folder"])["model.safetensors"] == WEIGHTS
    done, total = answer["progress"][-1]
    assert done == total


@pytest.mark.parametrize("prefix", PREFIXES)
def test_a_damaged_transfer_is_noticed_and_kept_nowhere(user: User, prefix: str) -> None:
    user.hub.damage_weights = True
    answer = user.resolve(prefix + NAME)
    assert answer["error"] == "HubUnavailableError"
    assert "model.safetensors arrived damaged: its SHA-256 is" in answer["message"]
    user.hub.damage_weights = False
    assert contents_of(user.resolve(prefix + NAME)["folder"])["model.safetensors"] == WEIGHTS


@pytest.mark.parametrize("prefix", PREFIXES)
def test_no_answer_says_where_it_asked_and_what_to_do_instead(user: User, prefix: str) -> None:
    nobody = "http://127.0.0.1:9"  # the discard port: nobody listens
    answer = user.resolve(prefix + NAME, HF_ENDPOINT=nobody, MODELSCOPE_ENDPOINT=nobody)
    assert answer["error"] == "HubUnavailableError"
    for words in (NAME, nobody, "HF_ENDPOINT=", "modelscope:", "a folder", "`tiny`"):
        assert words in answer["message"]


@pytest.mark.parametrize("prefix", PREFIXES)
def test_a_hub_out_of_order_is_unavailable_not_missing_the_model(user: User, prefix: str) -> None:
    user.hub.broken_status = 500
    answer = user.resolve(prefix + NAME)
    assert answer["error"] == "HubUnavailableError" and "500" in answer["message"]


@pytest.mark.parametrize("prefix", PREFIXES)
def test_offline_without_a_copy_says_that_offline_is_why(user: User, prefix: str) -> None:
    answer = user.resolve(prefix + NAME, HF_HUB_OFFLINE="1")
    assert answer["error"] == "HubUnavailableError" and "HF_HUB_OFFLINE" in answer["message"]
    assert not user.hub.requests


@pytest.mark.parametrize(
    "name", ["Qwen/absent", "modelscope:Qwen/absent", f"modelscope:{NAME}@absent", f"{NAME}@absent"]
)
def test_a_model_or_revision_that_the_hub_lacks_is_not_found(user: User, name: str) -> None:
    answer = user.resolve(name)
    assert answer["error"] == "ModelNotFoundError"
    assert name.removeprefix("modelscope:").partition("@")[0] in answer["message"]


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


@pytest.mark.parametrize("prefix", PREFIXES)
@pytest.mark.parametrize(
    "files, words",
    [
        ({"config.json": b"{}", "pytorch_model.bin": b"x"}, "only pickled weights"),
        ({"config.json": b"{}", "model-q4.gguf": b"x"}, "only GGUF"),
        ({"model.safetensors": b"x"}, "no config.json"),
        ({"config.json": b"{}", "README.md": b"x"}, "no weights"),
    ],
)
def test_a_model_without_usable_weights_is_refused_before_downloading(
    user: User, prefix: str, files: Mapping[str, bytes], words: str
) -> None:
    user.hub.models["org/odd"] = files
    answer = user.resolve(prefix + "org/odd")
    assert answer["error"] == "CheckpointError" and words in answer["message"]
    assert not user.hub.gets("pytorch_model|gguf|resolve|FilePath")


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


def test_kaishu_hub_chooses_the_hub_for_plain_names(user: User) -> None:
    answer = user.resolve(NAME, KAISHU_HUB="modelscope")
    assert answer["folder"] == str(user.home / "cache" / "kaishu" / "modelscope" / NAME / "master")
    wrong = user.resolve("org/other", KAISHU_HUB="somewhere")
    assert wrong["error"] == "InvalidParameterError" and "KAISHU_HUB" in wrong["message"]


def test_paths_that_a_hub_lists_cannot_leave_the_folder(user: User) -> None:
    user.hub.models["org/evil"] = {
        **{name: FILES[name] for name in NEEDED},
        "../../evil.jinja": b"x",
        "additional_chat_templates/../../evil.jinja": b"x",
        "/tmp/evil.jinja": b"x",
        "model-../x-of-/../../evil.safetensors": b"x",
    }
    assert names_in(user.resolve("modelscope:org/evil")["folder"]) == NEEDED
    assert not list(user.home.parent.rglob("evil*.*"))


def test_two_downloads_of_one_file_do_not_mix(user: User) -> None:
    import fcntl

    folder = user.home / "cache" / "kaishu" / "modelscope" / NAME / "master"
    folder.mkdir(parents=True)
    with (folder / "model.safetensors.part").open("ab") as other_process:
        fcntl.flock(other_process, fcntl.LOCK_EX)
        answer = user.resolve("modelscope:" + NAME)
    assert answer["error"] == "HubUnavailableError" and "Another process" in answer["message"]


def test_an_interrupted_process_leaves_what_the_next_one_continues(user: User) -> None:
    """Kill a real download in its middle, by the process's own id, then run it again."""
    big = {**FILES, "model.safetensors": WEIGHTS * 8}
    user.hub.models["org/big"] = big
    user.hub.break_after_bytes = (
        6_000_000  # each connection carries this much, so the process is still busy when killed
    )
    driver = DRIVER.replace("seen.append(counts)", "__import__('time').sleep(0.05)")
    process = subprocess.Popen(
        [sys.executable, "-c", driver, "modelscope:org/big"], env=user.process_environment(), stdout=subprocess.DEVNULL
    )
    folder = user.home / "cache" / "kaishu" / "modelscope" / "org" / "big" / "master"
    part = folder / "model.safetensors.part"
    while process.poll() is None and not (part.exists() and part.stat().st_size > 4_000_000):
        time.sleep(0.005)
    process.kill()
    process.wait()
    have = part.stat().st_size
    assert 0 < have < len(big["model.safetensors"])
    user.hub.requests.clear()
    answer = user.resolve("modelscope:org/big")
    assert contents_of(answer["folder"])["model.safetensors"] == big["model.safetensors"]
    assert user.hub.gets(r"model\.safetensors$")[0]["Range"] == f"bytes={have}-"


# Names that need no hub.


def test_a_local_folder_is_itself_however_it_is_spelt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "Qwen" / "model"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("Qwen/model", "./Qwen/model", str(folder), "~/Qwen/model", "Qwen/../Qwen/model/"):
        assert resolve(name).resolve() == folder.resolve()


def test_a_folder_without_config_says_what_it_has(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").touch()
    (tmp_path / "deeper").mkdir()
    with pytest.raises(ModelNotFoundError, match=r"no config\.json\. It holds: deeper/, notes\.txt"):
        resolve(str(tmp_path))


@pytest.mark.parametrize(
    "file, error, words",
    [
        ("model.gguf", CheckpointError, "GGUF isn't read yet"),
        ("pytorch_model.bin", CheckpointError, "a pickle, which is not opened"),
        ("model.pth", CheckpointError, "a pickle, which is not opened"),
        ("model.safetensors", ModelNotFoundError, "the folder that it is in"),
    ],
)
def test_a_path_to_a_file_says_what_to_give_instead(tmp_path: Path, file: str, error: type, words: str) -> None:
    (tmp_path / file).touch()
    with pytest.raises(error, match=words):
        resolve(str(tmp_path / file))


def test_a_folder_of_gguf_says_so(tmp_path: Path) -> None:
    (tmp_path / "model.gguf").touch()
    with pytest.raises(CheckpointError, match="GGUF"):
        resolve(str(tmp_path))


@pytest.mark.parametrize(
    "name", ["qwen3", "./absent", "/absent/folder", "a/b/c", "~/absent", "", "org/na me", "org/../x"]
)
def test_a_name_that_means_nothing_says_what_names_are(name: str) -> None:
    if name == "":
        name = "nothing at all"
    with pytest.raises(ModelNotFoundError, match="A name is `tiny`, a folder"):
        resolve(name)


def test_an_unknown_hub_is_an_error() -> None:
    with pytest.raises(InvalidParameterError, match="huggingface or modelscope"):
        resolve("elsewhere:Qwen/Qwen3-0.6B")
