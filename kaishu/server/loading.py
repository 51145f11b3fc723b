"""From a model's name to a service that answers.

Owns the names under which a model is served, and how the engine is set up for a server. Loading itself is loading.py's
in kaishu/. Called in a thread of app.py's; kaishu/cli/serve.py says with which arguments.
"""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from kaishu.async_engine import Engine
from kaishu.checkpoint.hub import Progress
from kaishu.engine.scheduler import Budget
from kaishu.loading import load_model
from kaishu.server.metrics import Metrics
from kaishu.server.service import Service
from kaishu.server.settings import ServerSettings

_LOG = logging.getLogger("kaishu.server")


def load_service(
    model: str,
    arguments: Mapping[str, Any],
    settings: ServerSettings,
    metrics: Metrics,
    *,
    progress: Progress | None = None,
) -> Service:
    """Load a model and start its engine. What there is to know about the files goes into the log.

    model:     a bundled name, a folder, a file or a hub's name
    arguments: of load_model, beside these
    raises:    as load_model
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # notes come in the log
        loaded = load_model(model, **arguments, sequences=settings.sequences, progress=progress, say=_LOG.info)
    for note in loaded.notes:
        _LOG.warning("%s", note)
    engine_settings = replace(
        loaded.usual_settings,
        budget=Budget(running=settings.max_running),
        max_waiting=settings.max_waiting,
        queue_timeout_s=settings.queue_timeout_s,
    )
    engine = Engine(loaded, settings=engine_settings)
    return Service(engine, settings, metrics, settings.names or model_names(model))


def model_names(model: str) -> tuple[str, ...]:
    """The names that requests may use for a model, best first.

    model: as typed. Of a path only the last part, and without `.gguf`: where files lie is nobody's business. Of a hub's
           name, as modelscope:Qwen/Qwen3-0.6B, the whole, without the hub, and the last part
    """
    path = Path(model).expanduser()
    if path.exists():
        name = Path(os.path.abspath(path)).name  # noqa: PTH100  # of `.`, too, and without following links
        return _distinct(name.removesuffix(".gguf"), name)
    before, colon, after = model.partition(":")
    without_hub = after if colon and "/" not in before else model
    return _distinct(without_hub, model, without_hub.rpartition("/")[2])


def _distinct(*names: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for name in names if name))
