"""What a name may mean: the bundled model, a local folder, a model on either hub."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest

from kaishu.checkpoint import open_checkpoint
from kaishu.checkpoint.hub import resolve
from kaishu.checkpoint.safetensors import StoredTensor
from kaishu.errors import CheckpointError, InvalidParameterError, ModelNotFoundError
from tests.checkpoint.gguf_files import write_gguf
from tests.checkpoint.hub_server import COMMIT
from tests.checkpoint.hub_user import FILES, NAME, NEEDED, PREFIXES, WEIGHTS, User, contents_of, names_in

Write = Callable[..., Path]


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
        ({"config.json": b"{}", "model-q4_0.gguf": b"x", "model-q8_0.gguf": b"x"}, "2 GGUF models"),
        ({"model-q8_0-00002-of-00002.gguf": b"x"}, "1 of 2 parts"),
        ({"mmproj-f16.gguf": b"x"}, "no model"),
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


# Repositories of GGUF files.

GGUFS: Mapping[str, bytes] = {
    "README.md": b"not needed",
    "config.json": b"{}",
    "m-Q4_K_M.gguf": b"GGUF four" * 1000,
    "mmproj-F16.gguf": b"not needed",
    "Q8_0/m-Q8_0-00001-of-00002.gguf": b"GGUF eight, first" * 1000,
    "Q8_0/m-Q8_0-00002-of-00002.gguf": b"GGUF eight, second" * 1000,
}


@pytest.mark.parametrize("prefix", PREFIXES)
def test_the_only_gguf_of_a_repository_is_the_model_and_all_that_is_downloaded(
    user: User, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    user.hub.models["org/one"] = {name: GGUFS[name] for name in GGUFS if not name.startswith("Q8")}
    said: list[str] = []
    monkeypatch.setattr(logging.Handler, "handle", lambda _, record: said.append(record.getMessage()))
    answer = user.resolve(prefix + "org/one")
    assert not said  # the hub's client warns when it is asked for no files
    file = Path(answer["folder"])
    assert file.name == "m-Q4_K_M.gguf" and file.read_bytes() == GGUFS[file.name]
    assert answer["progress"] == [(len(GGUFS[file.name]),) * 2]
    assert names_in(str(file.parent)) == {file.name}
    user.hub.requests.clear()
    for name in ("org/one", "org/one:Q4_K_M", "org/one:m-q4_k_m.gguf"):
        assert user.resolve(prefix + name, HF_HUB_OFFLINE="1")["folder"] == str(file)
    assert not user.resolve_in_a_process(prefix + name)["fetched"]
    assert not user.hub.requests


@pytest.mark.parametrize("prefix", PREFIXES)
@pytest.mark.parametrize("choice", ["Q8_0", "m-q8_0", "Q8_0/m-Q8_0-00001-of-00002.gguf"])
def test_of_several_ggufs_the_chosen_one_comes_with_all_its_parts(user: User, prefix: str, choice: str) -> None:
    user.hub.models["org/many"] = GGUFS
    first = Path(user.resolve(f"{prefix}org/many:{choice}")["folder"])
    parts = {name: contents for name, contents in GGUFS.items() if name.startswith("Q8")}
    assert first.name == "m-Q8_0-00001-of-00002.gguf"
    assert contents_of(str(first.parent.parent)) == parts
    user.hub.requests.clear()
    assert user.resolve(f"{prefix}org/many:Q8_0", HF_HUB_OFFLINE="1")["folder"] == str(first)
    (first.parent / "m-Q8_0-00002-of-00002.gguf").unlink()  # no longer whole: the hub is asked again
    assert not user.hub.requests
    assert user.resolve(f"{prefix}org/many:Q8_0")["folder"] == str(first)
    assert user.hub.requests and contents_of(str(first.parent.parent)) == parts


@pytest.mark.parametrize("prefix", PREFIXES)
def test_who_has_to_choose_among_ggufs_is_told_how_and_nothing_is_downloaded(user: User, prefix: str) -> None:
    user.hub.models["org/many"] = GGUFS
    answer = user.resolve(prefix + "org/many")
    assert answer["error"] == "CheckpointError"
    listed, hint = answer["message"].split("\n  ")
    assert listed == "org/many has 2 GGUF models: Q8_0/m-Q8_0-00001-of-00002.gguf, m-Q4_K_M.gguf."
    assert hint == "Add the one that you want to the name: :Q8_0, :Q4_K_M."
    answer = user.resolve(prefix + "org/many:Q5_0")
    assert answer["error"] == "ModelNotFoundError" and "no GGUF model 'Q5_0'. It has: Q8_0/m-Q8" in answer["message"]
    assert user.resolve(f"{prefix}{NAME}:Q8_0")["error"] == "ModelNotFoundError"
    assert not user.hub.gets("resolve|FilePath")


@pytest.mark.parametrize("prefix", PREFIXES)
def test_a_repository_of_both_is_its_safetensors_unless_a_gguf_is_chosen(user: User, prefix: str) -> None:
    user.hub.models["org/both"] = {**FILES, **GGUFS}
    folder = Path(user.resolve(f"{prefix}org/both")["folder"])
    assert (folder / "model.safetensors").exists()
    assert user.resolve(f"{prefix}org/both:Q4_K_M")["folder"] == str(folder / "m-Q4_K_M.gguf")
    assert user.resolve(f"{prefix}org/both", HF_HUB_OFFLINE="1")["folder"] == str(folder)
    assert user.resolve(f"{prefix}org/both:Q4_K_M", HF_HUB_OFFLINE="1")["folder"] == str(folder / "m-Q4_K_M.gguf")


@pytest.mark.parametrize("prefix", PREFIXES)
def test_of_several_ggufs_that_are_here_one_must_be_chosen(user: User, prefix: str) -> None:
    user.hub.models["org/many"] = GGUFS
    first = user.resolve(f"{prefix}org/many:Q4_K_M")
    assert user.resolve(prefix + "org/many", HF_HUB_OFFLINE="1")["folder"] == first["folder"]  # the only one here
    user.resolve(f"{prefix}org/many:Q8_0")
    assert "2 GGUF models" in user.resolve(prefix + "org/many", HF_HUB_OFFLINE="1")["message"]


@pytest.mark.parametrize("prefix", PREFIXES)
def test_a_split_gguf_from_a_hub_opens_as_the_model_that_it_is(user: User, prefix: str, tiny_checkpoint: Write) -> None:
    """In Hugging Face's cache its parts are links to files that are called otherwise."""
    folder = tiny_checkpoint("dense_untied")
    written = write_gguf(folder, user.home / "m-F32.gguf", split_max_tensors=10)
    parts = {f"F32/{path.name}": path.read_bytes() for path in sorted(user.home.glob("*.gguf"))}
    assert len(parts) > 1
    user.hub.models["org/split"] = parts
    found = open_checkpoint(Path(user.resolve(f"{prefix}org/split")["folder"]))
    expected = open_checkpoint(written)
    assert found.config == expected.config and found.tensors.keys() == expected.tensors.keys()
    for name, tensor in found.tensors.items():
        other = expected.tensors[name]
        assert isinstance(tensor, StoredTensor) and isinstance(other, StoredTensor)
        assert np.array_equal(tensor.read(), other.read())


def test_a_chosen_gguf_may_be_of_a_revision(user: User) -> None:
    user.hub.models["org/many"] = GGUFS
    file = Path(user.resolve(f"org/many@{COMMIT}:Q4_K_M")["folder"])
    assert file.name == "m-Q4_K_M.gguf" and file.parent.name == COMMIT
    assert user.resolve("org/many@absent:Q4_K_M")["error"] == "ModelNotFoundError"


@pytest.mark.parametrize("prefix", PREFIXES)
def test_a_gguf_that_broke_off_resumes(user: User, prefix: str) -> None:
    user.hub.models["org/many"] = GGUFS
    user.hub.break_after_bytes, user.hub.max_breaks = 4000, 1
    file = Path(user.resolve(f"{prefix}org/many:Q4_K_M")["folder"])
    assert file.read_bytes() == GGUFS["m-Q4_K_M.gguf"]
    assert [headers.get("Range") for headers in user.hub.gets(r"m-Q4_K_M\.gguf$")] == [None, "bytes=4000-"]


def test_kaishu_hub_chooses_the_hub_for_plain_names(user: User) -> None:
    answer = user.resolve(NAME, KAISHU_HUB="modelscope")
    assert answer["folder"] == str(user.home / "cache" / "kaishu" / "modelscope" / NAME / "master")
    wrong = user.resolve("org/other", KAISHU_HUB="somewhere")
    assert wrong["error"] == "InvalidParameterError" and "KAISHU_HUB" in wrong["message"]


# Names that need no hub.


def test_tiny_is_the_bundled_model_wherever_one_stands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import kaishu

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
    assert resolve(str(tmp_path)) == file
    (tmp_path / "model.safetensors").touch()
    assert resolve(str(tmp_path)) == tmp_path and resolve(f"{tmp_path}:q8_0") == file


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
    words = r"2 GGUF models: a-Q8_0-00001-of-00002\.gguf, b-Q4_0\.gguf\.\n  Add the one .* name: :Q8_0, :Q4_0"
    with pytest.raises(CheckpointError, match=words):
        resolve(str(tmp_path))


def test_one_of_a_folder_s_ggufs_is_chosen_by_kind_or_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "org" / "models"
    folder.mkdir(parents=True)
    for name in ("b-Q4_0.gguf", "a-Q8_0-00001-of-00002.gguf", "a-Q8_0-00002-of-00002.gguf"):
        (folder / name).touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in (f"{folder}:Q4_0", "org/models:q4_0", "./org/models:b-Q4_0.gguf", "~/org/models:b-Q4_0"):
        assert resolve(name).resolve() == folder / "b-Q4_0.gguf"
    assert resolve("org/models:Q8_0") == Path("org/models/a-Q8_0-00001-of-00002.gguf")
    for choice in ("Q5_0", ""):
        with pytest.raises(ModelNotFoundError, match=rf"org/models has no GGUF model '{choice}'\. It has: a-Q8_0"):
            resolve(f"org/models:{choice}")
    folder.rename(tmp_path / "org" / "other:Q4_0")  # a folder of that very name comes first
    with pytest.raises(CheckpointError, match="other:Q4_0 has 2 GGUF models"):
        resolve("org/other:Q4_0")


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
