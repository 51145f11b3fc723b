"""What a server is told, from wherever it was said: the command line, else the environment, else a file, else defaults.

Owns the three spellings of each setting, which are one name (`--max-running`, `KAISHU_MAX_RUNNING`, `max_running`), the
reading of texts as values, and that an error says where the value stands. Which settings of the server there are is
settings.py's; those of the model are arguments of load_model. Called by kaishu/cli/serve.py.
"""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from types import NoneType
from typing import Any, get_args, get_type_hints

from kaishu.errors import ConfigError, InvalidParameterError, KaishuError, shortened
from kaishu.server.settings import ServerSettings

PREFIX = "KAISHU_"
MODEL_SETTINGS: Mapping[str, Any] = {
    "model": str,
    "weights": str,
    "head": str,
    "kv": str,
    "executor": str,
    "device": str,
    "threads": int,
    "context": int,
    "max_memory": str,
    "lora": tuple[str, ...],
    "draft": str,
    "speculation": bool,
}
_ARGUMENTS = {"context": "context_tokens"}  # whose name in load_model is another
_OTHER_VARIABLES = ("KAISHU_CONFIG", "KAISHU_API_KEYS", "KAISHU_CACHE", "KAISHU_HUB")  # which others read
_WORDS: Mapping[Any, str] = {
    str: "a text",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    Path: "a file's name",
    tuple: "a list of texts; in the environment, with commas between",
}
_BOOLEANS = {"true": True, "1": True, "yes": True, "on": True, "false": False, "0": False, "no": False, "off": False}


@dataclass(frozen=True)
class Configuration:
    """A server to be started.

    model:           a bundled name, a folder or a hub's name; None where nothing was said
    model_arguments: of load_model, as far as they were given
    settings:        of the server
    places:          field or argument → where its value was said, as "KAISHU_PORT"
    """

    model: str | None
    model_arguments: Mapping[str, Any]
    settings: ServerSettings
    places: Mapping[str, str]

    def respelt(self, error: KaishuError) -> KaishuError:
        """The same error about what the user wrote: `KAISHU_THREADS is 0`, not `threads is 0`."""
        return _respelt(error, self.places) if isinstance(error, InvalidParameterError) else error


@dataclass(frozen=True)
class _Said:
    value: Any
    place: str


def setting_types() -> dict[str, Any]:
    """All settings by name, the server's first, with the type of their values."""
    hints = get_type_hints(ServerSettings)
    return {field.name: _without_none(hints[field.name]) for field in fields(ServerSettings)} | dict(MODEL_SETTINGS)


def flag_of(name: str) -> str:
    """A setting as an option: `--max-running`."""
    return "--" + name.replace("_", "-")


def variable_of(name: str) -> str:
    """A setting as a variable of the environment: `KAISHU_MAX_RUNNING`."""
    return PREFIX + name.upper()


def read_configuration(
    given: Mapping[str, Any], environment: Mapping[str, str], file: Path | None = None
) -> Configuration:
    """Put together what was said.

    given:       of the command line, typed: name of a setting → value, or None where it wasn't given
    environment: of the process. A variable that is empty counts as not set
    file:        in TOML; None: the one that KAISHU_CONFIG names, if any. Names of files in it (keys, certificates) are
                 relative to its folder; models and adapters are named as on the command line
    raises:      ConfigError, InvalidParameterError; both say where
    """
    said: dict[str, _Said] = {}
    if file is None and environment.get("KAISHU_CONFIG"):
        file = Path(environment["KAISHU_CONFIG"])
    if file is not None:
        said |= _in_file(file)
    said |= _in_environment(environment)
    said |= {name: _Said(value, _given_place(name)) for name, value in given.items() if value is not None}
    _check_keys_name(said, environment)

    places = {_ARGUMENTS.get(name, name): one.place for name, one in said.items()}
    of_server = {name: one.value for name, one in said.items() if name not in MODEL_SETTINGS}
    arguments = {_ARGUMENTS.get(name, name): one.value for name, one in said.items() if name in MODEL_SETTINGS}
    try:
        settings = ServerSettings(**of_server)
    except InvalidParameterError as error:
        raise _respelt(error, places) from None
    model = arguments.pop("model", None)
    if "lora" in arguments:
        arguments["lora"] = list(arguments["lora"])
    return Configuration(model, arguments, settings, places)


def _given_place(name: str) -> str:
    return "MODEL" if name == "model" else flag_of(name)


def _respelt(error: InvalidParameterError, places: Mapping[str, str]) -> InvalidParameterError:
    place = places.get(error.field)
    if place is None:
        return error
    return InvalidParameterError(place, error.value, error.allowed, hint=error.hint)


def _without_none(kind: Any) -> Any:
    others = [one for one in get_args(kind) if one is not NoneType]
    return others[0] if NoneType in get_args(kind) and len(others) == 1 else kind


def _base(kind: Any) -> Any:
    """Of what type a value is; a choice among words is a text, which settings.py looks at."""
    if kind in (str, int, float, bool, Path):
        return kind
    return tuple if getattr(kind, "__origin__", None) is tuple else str


def _in_file(file: Path) -> dict[str, _Said]:
    try:
        read = tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"The settings in {file} can't be read: {error.strerror or error}.") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigError(
            f"The settings in {file} are not TOML: {shortened(str(error))}.",
            hint='A setting is a line such as port = 8000; texts stand in quotes, as model = "tiny".',
        ) from None
    types = setting_types()
    said = {}
    for name, value in read.items():
        place = f"{name} in {file}"
        if name not in types:
            raise ConfigError(f"There is no setting {shortened(name)!r}, as in {file}.", hint=_near(name, types))
        said[name] = _Said(_of_toml(types[name], value, place, file.parent), place)
    return said


def _of_toml(kind: Any, value: Any, place: str, folder: Path) -> Any:
    base = _base(kind)
    if base is tuple and isinstance(value, list) and all(isinstance(one, str) for one in value):
        return tuple(value)
    if base is Path and isinstance(value, str) and value:
        return folder / _home(value, place)
    if base is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if base in (str, int, float, bool) and type(value) is base:
        return value
    raise InvalidParameterError(place, value, _WORDS[base].partition(";")[0])


def _in_environment(environment: Mapping[str, str]) -> dict[str, _Said]:
    types = setting_types()
    names = {variable_of(name): name for name in types}
    _check_misspelt(environment, names)
    return {
        name: _Said(_of_text(types[name], environment[variable].strip(), variable), variable)
        for variable, name in names.items()
        if environment.get(variable, "").strip()
    }


def _of_text(kind: Any, text: str, place: str) -> Any:
    base = _base(kind)
    if base is str:
        return text
    if base is Path:
        return _home(text, place)
    if base is tuple:
        return tuple(part.strip() for part in text.split(",") if part.strip())
    if base is bool:
        if text.lower() not in _BOOLEANS:
            raise InvalidParameterError(place, text, ", ".join(_BOOLEANS))
        return _BOOLEANS[text.lower()]
    try:
        return base(text)
    except ValueError:
        raise InvalidParameterError(place, text, _WORDS[base], hint=_kubernetes(text)) from None


def _home(text: str, place: str) -> Path:
    try:
        return Path(text).expanduser()
    except RuntimeError:
        raise InvalidParameterError(place, text, "a file's name; this home folder is nobody's here") from None


def _kubernetes(text: str) -> str | None:
    if not text.startswith("tcp://"):
        return None
    return "Kubernetes sets this for a service named kaishu: give the pod enableServiceLinks: false."


def _check_misspelt(environment: Mapping[str, str], names: Mapping[str, str]) -> None:
    """Refuse variables that only look like ours; the cache's, the tests' and the like are others'."""
    known = [*names, *_OTHER_VARIABLES, "KAISHU_API_KEY"]
    for variable in _unknown(environment, known):
        tails = {name.removeprefix(PREFIX): name for name in known if name != "KAISHU_API_KEY"}
        near = difflib.get_close_matches(variable.removeprefix(PREFIX), tails, n=1, cutoff=0.8)
        if near:
            raise ConfigError(
                f"The environment has {variable}, which is no setting.", hint=f"Did you mean {tails[near[0]]}?"
            )


def _unknown(environment: Mapping[str, str], known: list[str]) -> Iterator[str]:
    return (name for name in sorted(environment) if name.startswith(PREFIX) and name not in known)


def _check_keys_name(said: Mapping[str, _Said], environment: Mapping[str, str]) -> None:
    """KAISHU_API_KEY is the key of `kaishu chat --url`. Who sets it for a server thinks that the server asks for it.

    raises: ConfigError
    """
    has_keys = "api_keys_file" in said or environment.get("KAISHU_API_KEYS")
    if environment.get("KAISHU_API_KEY") and not has_keys:
        raise ConfigError(
            "The environment has KAISHU_API_KEY, which is the key that `kaishu chat --url` sends; a server reads none "
            "from there.",
            hint="The server's keys are in KAISHU_API_KEYS, or in a file: --api-keys-file.",
        )


def _near(name: str, types: Mapping[str, Any]) -> str:
    near = difflib.get_close_matches(name.replace("-", "_").lower(), types, n=1)
    return f"Did you mean {near[0]}?" if near else f"There are {', '.join(types)}."
