"""What a name may mean: the bundled model, a local folder, a model on either hub."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from kaishu.checkpoint.hub import resolve
from kaishu.errors import CheckpointError, InvalidParameterError, ModelNotFoundError
from tests.checkpoint.hub_user import FILES, NAME, NEEDED, PREFIXES, WEIGHTS, User, contents_of


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
    assert answer["error"] == "HubUnavailableError"
    assert "is not in the local cache, and HF_HUB_OFFLINE forbids asking" in answer["message"]
    assert not user.hub.requests


@pytest.mark.parametrize(
    "name", ["Qwen/absent", "modelscope:Qwen/absent", f"modelscope:{NAME}@absent", f"{NAME}@absent"]
)
def test_a_model_or_revision_that_the_hub_lacks_is_not_found(user: User, name: str) -> None:
    answer = user.resolve(name)
    assert answer["error"] == "ModelNotFoundError"
    assert name.removeprefix("modelscope:").partition("@")[0] in answer["message"]


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


def test_kaishu_hub_chooses_the_hub_for_plain_names(user: User) -> None:
    answer = user.resolve(NAME, KAISHU_HUB="modelscope")
    assert answer["folder"] == str(user.home / "cache" / "kaishu" / "modelscope" / NAME / "master")
    wrong = user.resolve("org/other", KAISHU_HUB="somewhere")
    assert wrong["error"] == "InvalidParameterError" and "KAISHU_HUB" in wrong["message"]


# Names that need no hub.


def test_tiny_is_the_bundled_model_wherever_one_stands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import kaishu
    from kaishu.checkpoint import open_checkpoint

    (tmp_path / "tiny").mkdir()
    monkeypatch.chdir(tmp_path)
    folder = resolve("tiny")
    assert folder == Path(kaishu.__file__).parent / "models" / "tiny"
    assert open_checkpoint(folder).config.model_type == "qwen3"


def test_an_empty_name_is_not_the_folder_one_stands_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "config.json").write_text("{}")
    monkeypatch.chdir(tmp_path)
    assert resolve(".").resolve() == tmp_path.resolve()
    with pytest.raises(ModelNotFoundError, match="The name of the model is empty"):
        resolve("")


def test_a_folder_that_must_not_be_looked_into_is_an_error_with_the_systems_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path, **_: object) -> object:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "stat", refuse)  # root may look everywhere, so no real folder will do
    with pytest.raises(ModelNotFoundError, match="can't be looked up: Permission denied"):
        resolve(str(tmp_path))


def test_the_bundled_model_stays_small() -> None:
    assert sum(path.stat().st_size for path in resolve("tiny").rglob("*") if path.is_file()) <= 6_000_000


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
        ("pytorch_model.bin", CheckpointError, "a pickle, which is not opened"),
        ("model.pth", CheckpointError, "a pickle, which is not opened"),
        ("model.safetensors", ModelNotFoundError, "the folder that it is in"),
    ],
)
def test_a_path_to_a_file_says_what_to_give_instead(tmp_path: Path, file: str, error: type, words: str) -> None:
    (tmp_path / file).touch()
    with pytest.raises(error, match=words):
        resolve(str(tmp_path / file))


def test_a_gguf_file_is_a_model_and_so_is_a_folder_with_one(tmp_path: Path) -> None:
    (tmp_path / "README.md").touch()
    file = tmp_path / "model-Q8_0.gguf"
    file.touch()
    assert resolve(str(file)) == resolve(str(tmp_path)) == file
    (tmp_path / "config.json").touch()
    assert resolve(str(tmp_path)) == tmp_path


def test_a_split_gguf_is_one_model(tmp_path: Path) -> None:
    parts = [tmp_path / f"model-0000{number}-of-00003.gguf" for number in (1, 2, 3)]
    for part in parts:
        part.touch()
    assert resolve(str(tmp_path)) == parts[0] and resolve(str(parts[2])) == parts[2]
    parts[0].unlink()  # opening then says which part is missing
    assert resolve(str(tmp_path)) == parts[1]


def test_a_folder_of_several_ggufs_lists_them(tmp_path: Path) -> None:
    for name in ("b-Q4_0.gguf", "a-Q8_0-00001-of-00002.gguf", "a-Q8_0-00002-of-00002.gguf", "c.txt"):
        (tmp_path / name).touch()
    words = r"2 GGUF models: a-Q8_0-00001-of-00002\.gguf, b-Q4_0\.gguf\.\n  Open one GGUF file, not its folder"
    with pytest.raises(CheckpointError, match=words):
        resolve(str(tmp_path))


@pytest.mark.parametrize(
    "name",
    [
        *["qwen3", "./absent", "/absent/folder", "a/b/c", "~/absent", "", "org/na me", "org/../x", "nothing at all"],
        *["x" * 300, "org/" + "x" * 300, "./" + "x/" * 3000, "~nobody-of-this-name/x", "~nobody-of-this-name"],
        *["a\0b", "\ud800/x", f"{'o' * 200}/{'n' * 200}", "org/x@" + "r" * 300, f"modelscope:org/x@{'r' * 300}"],
    ],
)
def test_a_name_that_means_nothing_says_what_names_are(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(ModelNotFoundError, match="A name is `tiny`, a folder"):
        resolve(name)


def test_an_unknown_hub_is_an_error() -> None:
    with pytest.raises(InvalidParameterError, match="huggingface or modelscope"):
        resolve("elsewhere:Qwen/Qwen3-0.6B")
