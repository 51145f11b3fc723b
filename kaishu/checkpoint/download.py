"""One file over HTTP: resumed where it broke off, checked, and in its place only once it is whole.

Owns the transfer, the list of files that a model needs, and whether they are here. Knows nothing of hubs and their
APIs. Used by huggingface.py for weights and by modelscope.py for everything.

    FILE.part  grows, survives an interruption, and is locked by its one writer until it is gone from there
    FILE       appears by renaming, after size and SHA-256 were found right
"""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import IO, Any
from urllib.parse import urlsplit

from kaishu.errors import CheckpointError, HubUnavailableError, KaishuError, ModelNotFoundError, and_more
from kaishu.json_fields import MAX_BYTES, parse_json_object, read_json_object
from kaishu.locked_file import open_locked

Progress = Callable[[int, int], None]
"""Called as bytes arrive: how many of the model's bytes are here, and how many there are in all."""

SMALL_FILES = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "additional_chat_templates/*.jinja",
    "model.safetensors.index.json",
)
WEIGHT_FILES = ("model.safetensors", "model-*-of-*.safetensors")
WEIGHT_SUFFIXES = (".safetensors", ".gguf")
INSTEAD = (
    "Instead: another endpoint (HF_ENDPOINT=https://hf-mirror.com), the other hub (modelscope:ORG/NAME or "
    "huggingface:ORG/NAME), a folder with the files, or the bundled model, `tiny`."
)
_TIMEOUT_SECONDS = 30
OFFLINE_HINT = "Unset HF_HUB_OFFLINE, use a folder with the files, or the bundled model, `tiny`."
_ATTEMPTS_WITHOUT_PROGRESS = 3


class StatusError(Exception):
    """A server answered with a status that is no success."""

    def __init__(self, status: int) -> None:
        super().__init__(f"status {status}")
        self.status = status


@dataclass(frozen=True)
class RemoteFile:
    """A file that a hub lists."""

    path: str
    url: str
    size: int
    sha256: str | None
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)  # may hold a token


def needed_files(paths: Iterable[str], model: str, choice: str | None = None) -> list[str]:
    """Pick the files that a model needs; weights last, so that where they are, the rest is.

    paths:  all that a repository has
    choice: which of its GGUF models; None for its safetensors, or where it has none, its only GGUF model
    return: the needed ones: those of a folder, or the parts of a GGUF model, which needs nothing else
    raises: CheckpointError when there is nothing to choose (no config.json, only pickles), or too much;
            ModelNotFoundError when there is no such GGUF model
    """
    all_paths = sorted(paths)
    if choice is not None:
        return _gguf_files(all_paths, model, choice)
    flat = [path for path in all_paths if path.count("/") == path.startswith("additional_chat_templates/")]
    small = [path for path in flat if any(fnmatchcase(path, pattern) for pattern in SMALL_FILES)]
    weights = [path for path in flat if any(fnmatchcase(path, pattern) for pattern in WEIGHT_FILES)]
    if not weights and any(path.endswith(".gguf") for path in all_paths):
        return _gguf_files(all_paths, model, None)
    if "config.json" not in small:
        raise CheckpointError(f"{model} has no config.json. It has: {and_more(all_paths)}.")
    if not weights:
        from kaishu.checkpoint.shards import PICKLE_HINT, PICKLE_SUFFIXES

        pickles = [path for path in all_paths if path.endswith(PICKLE_SUFFIXES)]
        if pickles:
            raise CheckpointError(
                f"{model} has only pickled weights, which are not downloaded: {and_more(pickles)}.", hint=PICKLE_HINT
            )
        raise CheckpointError(f"{model} has no weights. It has: {and_more(all_paths)}.")
    return small + weights


def _gguf_files(paths: list[str], model: str, choice: str | None) -> list[str]:
    from kaishu.checkpoint.gguf_names import chosen_gguf, gguf_models

    models = gguf_models(paths)
    if not models and choice is None:
        raise CheckpointError(f"{model} has no model. It has: {and_more(paths)}.")
    found = chosen_gguf(models, choice, model)
    if not found.is_whole:
        raise CheckpointError(
            f"{model} has {len(found.parts):,} of {found.count:,} parts of a model: {and_more(list(found.parts))}.",
            hint="Use another of its models, or another repository: this one was not uploaded in full.",
        )
    return list(found.parts)


def refuse_gguf(files: list[str], model: str) -> None:
    """Where a model's files, of which none is here, are GGUF: only they say what it is.

    raises: CheckpointError
    """
    if files[0].endswith(".gguf"):
        raise CheckpointError(
            f"{model} has its weights in GGUF, and only the file says how they are kept: it is not here.",
            hint="Run `kaishu pull` with the same name first.",
        )


def model_here(folder: Path, model: str, choice: str | None) -> Path | None:
    """What a hub's model is on this machine, if it is whole, so that no hub need be asked.

    folder: where it was downloaded to, if it was
    choice: which of its GGUF models; None for its safetensors, or where these aren't here, the only GGUF model that is
    return: the folder, or the first part of a GGUF model; None where neither is here
    raises: CheckpointError where several are here, any of which may be meant
    """
    if choice is None and is_complete(folder):
        return folder
    files = [path.relative_to(folder).as_posix() for path in folder.rglob("*.gguf") if path.is_file()]
    if not files:
        return None
    from kaishu.checkpoint.gguf_names import chosen_gguf, gguf_models

    models = [found for found in gguf_models(files) if found.is_whole and (choice is None or found.is_called(choice))]
    return folder / chosen_gguf(models, choice, model).parts[0] if models else None


def is_complete(folder: Path) -> bool:
    """Whether a downloaded folder has its config, tokenizer and all weights, so that no hub need be asked."""
    if not all((folder / name).is_file() for name in ("config.json", "tokenizer.json")):
        return False
    if (folder / "model.safetensors").is_file():
        return True
    try:
        index = read_json_object(folder / "model.safetensors.index.json", CheckpointError)
        return all((folder / name).is_file() for name in set(index["weight_map"].values()))
    except (CheckpointError, OSError, KeyError, TypeError, AttributeError):
        return False


def unavailable(model: str, endpoint: str, why: str) -> HubUnavailableError:
    """The error for a hub that didn't answer, or not usefully."""
    return HubUnavailableError(f"{model} can't be fetched from {endpoint}: {why}.", hint=INSTEAD)


def refused(model: str, endpoint: str, status: int, *, how: str) -> KaishuError:
    """The error for an HTTP status that is an answer about the model: 401, 403, 404."""
    if status == 404:
        return ModelNotFoundError(f"{endpoint} has no model {model}.", hint="Names look like Qwen/Qwen3-0.6B.")
    return HubUnavailableError(f"{endpoint} answers {status} for {model}: it needs permission.", hint=how)


def get_json(url: str, headers: Mapping[str, str]) -> dict[str, Any]:
    """Fetch one bounded JSON object.

    raises: StatusError, HubUnavailableError, and the HTTP library's HTTPError when nobody answers
    """
    text = b""
    with _get(url, headers) as response:
        for chunk in response.iter_bytes():
            text += chunk
            if len(text) > MAX_BYTES:
                break
    return parse_json_object(text, f"the answer of {url}", HubUnavailableError)


class ProgressLines:
    """The progress that is shown when the caller has nothing better: a line on stderr for each tenth."""

    def __init__(self, model: str) -> None:
        self._model = model
        self._tenths = -1

    def __call__(self, done_bytes: int, total_bytes: int) -> None:
        tenths = 10 * done_bytes // max(total_bytes, 1)
        if tenths > self._tenths:
            self._tenths = tenths
            print(f"{self._model}: {done_bytes / 1e6:,.0f} of {total_bytes / 1e6:,.0f} MB", file=sys.stderr)


class TransferMeter:
    """Adds up the bytes of a model's files and reports them."""

    def __init__(self, total_bytes: int, report: Progress) -> None:
        self.total_bytes = total_bytes
        self.done_bytes = 0
        self._report = report

    def add(self, num_bytes: int) -> None:
        """More bytes are here; negative when some turned out to be useless."""
        self.done_bytes += num_bytes
        self._report(self.done_bytes, self.total_bytes)


def download(file: RemoteFile, target: Path, meter: TransferMeter) -> None:
    """Bring one file to its place, resuming `target.part` if there is one.

    raises: StatusError for an answer that won't change, HubUnavailableError when the transfer keeps breaking, arrives
            damaged, has no room, or is being done by another process
    """
    if _is_here(file, target):
        meter.add(file.size)
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(target.name + ".part")
    with _opened_alone(part, file) as output:
        if _is_here(file, target):  # another process has brought it since we looked
            part.unlink()
            meter.add(file.size)
            return
        _check_room(file, output.tell(), target.parent)
        _transfer(file, output, meter)
        _check_contents(file, part, meter)
        part.replace(target)


def _is_here(file: RemoteFile, target: Path) -> bool:
    return target.is_file() and target.stat().st_size == file.size


@contextmanager
def _opened_alone(part: Path, file: RemoteFile) -> Iterator[IO[bytes]]:
    """Open the partial file to append to, as the only process that does, until the end of the context.

    raises: HubUnavailableError when another process has it
    """
    try:
        output = open_locked(part)
    except BlockingIOError:
        raise HubUnavailableError(f"Another process is downloading {file.path} now; wait for it.") from None
    with output:
        output.seek(0, os.SEEK_END)  # between opening and locking, another process may have written more
        yield output


def _check_room(file: RemoteFile, have: int, folder: Path) -> None:
    free = shutil.disk_usage(folder).free
    if free < file.size - have:
        raise HubUnavailableError(
            f"{file.path} needs {file.size - have:,} more bytes, but {folder} has {free:,} free.",
            hint="Make room, or set HF_HOME (or XDG_CACHE_HOME for ModelScope) to a folder on a larger disk.",
        )


def _transfer(file: RemoteFile, output: IO[bytes], meter: TransferMeter) -> None:
    """Append what is missing, asking again from where it broke off while that gets anywhere."""
    from huggingface_hub.errors import HTTPError  # type: ignore[attr-defined]  # the HTTP library's own

    if output.tell() > file.size:
        output.seek(0)
        output.truncate()
    meter.add(output.tell())
    failures = 0
    while output.tell() < file.size:
        before = output.tell()
        why = "the connection closed early"
        try:
            _append(file, output, meter)
        except StatusError as error:
            if error.status < 500 and error.status not in (408, 429):
                raise
            why = str(error)
        except HTTPError as error:
            why = str(error) or type(error).__name__
        failures = 0 if output.tell() > before else failures + 1
        if failures == _ATTEMPTS_WITHOUT_PROGRESS:
            raise HubUnavailableError(
                f"{file.path} broke off after {output.tell():,} of {file.size:,} bytes: {why}.",
                hint="Run it again: it resumes. " + INSTEAD,
            )
        if failures:
            time.sleep(0.2 * 2**failures)


def _append(file: RemoteFile, output: IO[bytes], meter: TransferMeter) -> None:
    start = output.tell()
    headers = {**file.headers, "Accept-Encoding": "identity"}
    if start:
        headers["Range"] = f"bytes={start}-"
    with _get(file.url, headers) as response:
        if start and response.status_code != 206:  # a server that knows no ranges starts from the beginning
            output.seek(0)
            output.truncate()
            meter.add(-start)
        for received in response.iter_raw():  # as it arrives: gathered chunks would be lost when the connection breaks
            chunk = received[: file.size - output.tell()]
            output.write(chunk)
            output.flush()
            meter.add(len(chunk))
            if len(chunk) < len(received):
                return  # more than was announced; the digest will tell


def _check_contents(file: RemoteFile, part: Path, meter: TransferMeter) -> None:
    if file.sha256 is None:
        return
    with part.open("rb") as contents:
        found = hashlib.file_digest(contents, "sha256").hexdigest()
    if found != file.sha256:
        meter.add(-file.size)
        part.unlink()
        raise HubUnavailableError(
            f"{file.path} arrived damaged: its SHA-256 is {found}, the hub says {file.sha256}. It was deleted.",
            hint="Run it again. If it happens again, the endpoint or something on the way changes files.",
        )


@contextmanager
def _get(url: str, headers: Mapping[str, str]) -> Iterator[Any]:
    """Open a GET in the hub client's HTTP session: its proxies and certificates, and no token carried to other hosts.

    yields: the response, of whichever HTTP library that client is built on
    raises: StatusError, HubUnavailableError for an address that isn't one or when offline, the library's HTTPError
    """
    from huggingface_hub import get_session
    from huggingface_hub.errors import OfflineModeIsEnabled

    if urlsplit(url).scheme not in ("http", "https"):
        raise HubUnavailableError(f"{url} is not an address to download from; allowed: http:// and https://.")
    session: Any = get_session()
    try:
        with session.stream("GET", url, headers=dict(headers), timeout=_TIMEOUT_SECONDS) as response:
            if response.status_code not in (200, 206):
                raise StatusError(response.status_code)
            yield response
    except OfflineModeIsEnabled:
        raise HubUnavailableError(f"HF_HUB_OFFLINE forbids asking {url}.", hint=OFFLINE_HINT) from None
