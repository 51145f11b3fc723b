"""`kaishu serve`: a model behind HTTP, in OpenAI's forms.

Owns the options, one for each field of ServerSettings, and what is printed when the server is ready. Where else
settings can be written is server/configuration.py's, the process is server/run.py's. What comes with the extra [server]
is imported only when the command runs.
"""

# No `from __future__ import annotations`: typer reads the annotations as objects.

import os
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kaishu.cli.options import (
    DEFAULT_MODEL,
    GENERATING_MODEL_OPTIONS,
    ModelOptions,
    OptionGroup,
    with_options,
)
from kaishu.server.settings import ServerSettings

if TYPE_CHECKING:
    from kaishu.server.configuration import Configuration
    from kaishu.server.metrics import Metrics
    from kaishu.server.service import Service

SERVER_PACKAGES = ("fastapi", "starlette", "pydantic", "uvicorn", "prometheus_client")


def _option(name: str, kind: Any, help_text: str, panel: str, metavar: str | None = None) -> Any:
    """An option for a field of ServerSettings; it is None where it isn't given."""
    flag = "--" + name.replace("_", "-")
    if kind is bool:
        flag = f"{flag}/--no-{flag[2:]}"
    default = getattr(ServerSettings, name)
    if default not in (None, (), False):
        help_text += f" (default {_shown(name, default)})"
    return Annotated[
        kind | None, typer.Option(flag, help=help_text, rich_help_panel=panel, metavar=metavar, show_default=False)
    ]


def _shown(name: str, default: Any) -> str:
    if isinstance(default, float):
        return f"{default:g}"
    return f"{default:,}" if isinstance(default, int) and name != "port" else str(default)


_WHERE, _WHO, _MUCH = "Where it listens", "Who may use it", "How much"
_LONG, _LOG = "How long, in seconds", "Log"
SERVER_OPTIONS = OptionGroup(
    {
        "host": _option("host", str, "The address; 0.0.0.0 lets other machines in.", _WHERE, "ADDRESS"),
        "port": _option("port", int, "The port; 0 takes one that is free.", _WHERE, "N"),
        "tls_certificate": _option("tls_certificate", Path, "For https: the certificate, in PEM form.", _WHERE, "FILE"),
        "tls_key": _option("tls_key", Path, "For https: the certificate's key.", _WHERE, "FILE"),
        "names": _option(
            "names", list[str], "What requests may call the model; may be repeated. Else its own name.", _WHERE, "NAME"
        ),
        "api_keys_file": _option(
            "api_keys_file", Path, "API keys, one in each line: `NAME KEY`. Without keys everybody may.", _WHO, "FILE"
        ),
        "allowed_hosts": _option(
            "allowed_hosts", list[str], "A name by which the server is asked; may be repeated.", _WHO, "NAME"
        ),
        "cors_origins": _option(
            "cors_origins", list[str], "A site whose pages may use it, as https://a.b; may be repeated.", _WHO, "ORIGIN"
        ),
        "key_requests_per_minute": _option(
            "key_requests_per_minute", int, "Requests a minute of each key; of each address without keys.", _WHO, "N"
        ),
        "key_concurrent_requests": _option(
            "key_concurrent_requests", int, "Requests at the same time of each key, likewise.", _WHO, "N"
        ),
        "strict": _option("strict", bool, "Refuse fields that the API doesn't have; else a warning header.", _WHO),
        "max_running": _option("max_running", int, "Requests that are computed at the same time.", _MUCH, "N"),
        "sequences": _option(
            "sequences", int, "Requests of the whole context that have room at once; of shorter ones more.", _MUCH, "N"
        ),
        "max_waiting": _option("max_waiting", int, "Requests that wait; more get 429.", _MUCH, "N"),
        "max_body_bytes": _option("max_body_bytes", int, "Bytes of a request; more get 413.", _MUCH, "N"),
        "max_messages": _option("max_messages", int, "Messages of a chat.", _MUCH, "N"),
        "request_timeout_s": _option("request_timeout_s", float, "Of a request, with its answer.", _LONG, "SECONDS"),
        "queue_timeout_s": _option("queue_timeout_s", float, "Until a request is begun with.", _LONG, "SECONDS"),
        "body_timeout_s": _option("body_timeout_s", float, "Until a request has arrived.", _LONG, "SECONDS"),
        "send_timeout_s": _option("send_timeout_s", float, "That a client may read nothing.", _LONG, "SECONDS"),
        "drain_s": _option("drain_s", float, "That running answers get after SIGTERM or Ctrl-C.", _LONG, "SECONDS"),
        "log_format": _option("log_format", str, "text, or json with an object in each line.", _LOG, "FORM"),
        "log_prompts": _option("log_prompts", bool, "Write what people ask and get into the log.", _LOG),
    },
    dict,
)


@with_options(server=SERVER_OPTIONS, model_options=GENERATING_MODEL_OPTIONS)
def serve(
    model: Annotated[
        str | None, typer.Argument(help="A folder, a hub's name, or a bundled model.", show_default=False)
    ] = None,
    config: Annotated[
        Path | None, typer.Option(help="A TOML file with settings.", metavar="FILE", show_default=False)
    ] = None,
    *,
    server: dict[str, Any],
    model_options: ModelOptions,
) -> None:
    """Serve a model over HTTP, for apps that speak OpenAI's API, and as a page to chat with.

    Example: kaishu serve Qwen/Qwen3-0.6B --port 8000

    Then open http://127.0.0.1:8000/ in a browser, or give an app the base
    URL http://127.0.0.1:8000/v1. Only this machine can connect, unless
    --host says otherwise. Ctrl-C ends it.

    Each option can also stand in the environment, --max-running 8 as
    KAISHU_MAX_RUNNING=8, or in the file of --config, as max_running = 8.
    The command line goes before the environment, that before the file.
    """
    from kaishu.cli.chat import TINY_NOTE
    from kaishu.cli.printable import show_notes
    from kaishu.errors import InvalidParameterError, MissingDependencyError
    from kaishu.server.configuration import read_configuration

    loading = asdict(model_options)
    loading["context"] = loading.pop("context_tokens")
    given = {"model": model, **loading, **{name: _given(value) for name, value in server.items()}}
    configuration = read_configuration(given, os.environ, config)
    if configuration.model is None:
        show_notes([TINY_NOTE.replace("kaishu chat", "kaishu serve")])
    try:
        _run(configuration)
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in SERVER_PACKAGES:
            raise
        raise MissingDependencyError("`kaishu serve`", package=package.replace("_", "-"), extra="server") from None
    except InvalidParameterError as error:
        raise configuration.respelt(error) from None


def _given(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _run(configuration: "Configuration") -> None:
    from kaishu.cli.download_bar import download_bar
    from kaishu.server.loading import load_service
    from kaishu.server.run import run_server

    model = configuration.model or DEFAULT_MODEL
    settings = configuration.settings

    def load(settings: ServerSettings, metrics: "Metrics") -> "Service":
        with download_bar(model) as progress:
            return load_service(model, configuration.model_arguments, settings, metrics, progress=progress)

    has_keys = settings.api_keys_file is not None or bool(os.environ.get("KAISHU_API_KEYS", "").strip())
    run_server(settings, load, has_keys=has_keys, on_ready=_announce)


def _announce(service: "Service", url: str) -> None:
    """Say that requests are answered, and what can be done next."""
    from kaishu.cli.printable import printable
    from kaishu.server.run import ready_lines

    with suppress(OSError):  # whoever read it has gone, as with `| head -1`; the server hasn't
        for line in ready_lines(service, url):
            print(printable(line), flush=True)
