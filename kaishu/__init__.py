"""Kaishu: Qwen3 inference written by hand in Python.

Owns the list of public names and nothing else. Names are looked up when they are first used, so that `import kaishu`
costs nothing and the command line starts at once.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kaishu.async_engine import Engine, EngineRequest
    from kaishu.deltas import ChoiceDelta
    from kaishu.engine.core import EngineSettings
    from kaishu.engine.statistics import Statistics
    from kaishu.errors import (
        CheckpointError,
        ConfigError,
        ContextLengthError,
        EngineClosedError,
        HubUnavailableError,
        InvalidMessagesError,
        InvalidParameterError,
        InvalidRequestError,
        KaishuError,
        MissingDependencyError,
        ModelNotFoundError,
        NumericalError,
        OutOfMemoryError,
        QueueFullError,
        TemplateError,
        TokenizerError,
    )
    from kaishu.llm import LLM
    from kaishu.output_format import OutputFormat
    from kaishu.prompting import ChatRequest
    from kaishu.results import (
        ChatCompletion,
        ChatEnd,
        Completion,
        CompletionEnd,
        PositionLogprobs,
        RerankResult,
        TextDelta,
        Timing,
        TokenLogprob,
        Usage,
    )
    from kaishu.sampling import SamplingParams
    from kaishu.text.channels import (
        ContentDelta,
        ThinkingDelta,
        ToolCall,
        ToolCallArguments,
        ToolCallEnd,
        ToolCallStart,
    )

__version__ = "0.1.0"

__all__ = [
    "LLM",
    "ChatCompletion",
    "ChatEnd",
    "ChatRequest",
    "CheckpointError",
    "ChoiceDelta",
    "Completion",
    "CompletionEnd",
    "ConfigError",
    "ContentDelta",
    "ContextLengthError",
    "Engine",
    "EngineClosedError",
    "EngineRequest",
    "EngineSettings",
    "HubUnavailableError",
    "InvalidMessagesError",
    "InvalidParameterError",
    "InvalidRequestError",
    "KaishuError",
    "MissingDependencyError",
    "ModelNotFoundError",
    "NumericalError",
    "OutOfMemoryError",
    "OutputFormat",
    "PositionLogprobs",
    "QueueFullError",
    "RerankResult",
    "SamplingParams",
    "Statistics",
    "TemplateError",
    "TextDelta",
    "ThinkingDelta",
    "Timing",
    "TokenLogprob",
    "TokenizerError",
    "ToolCall",
    "ToolCallArguments",
    "ToolCallEnd",
    "ToolCallStart",
    "Usage",
]


def __getattr__(name: str) -> Any:
    """Import the module that holds a public name, on first use.

    name:   one of `__all__`
    raises: AttributeError for any other name
    """
    homes = {
        "kaishu.errors": tuple(name for name in __all__ if name.endswith("Error")),
        "kaishu.async_engine": ("Engine", "EngineRequest"),
        "kaishu.deltas": ("ChoiceDelta",),
        "kaishu.engine.core": ("EngineSettings",),
        "kaishu.engine.statistics": ("Statistics",),
        "kaishu.llm": ("LLM",),
        "kaishu.output_format": ("OutputFormat",),
        "kaishu.prompting": ("ChatRequest",),
        "kaishu.results": (
            "ChatCompletion",
            "ChatEnd",
            "Completion",
            "CompletionEnd",
            "PositionLogprobs",
            "RerankResult",
            "TextDelta",
            "Timing",
            "TokenLogprob",
            "Usage",
        ),
        "kaishu.sampling": ("SamplingParams",),
        "kaishu.text.channels": (
            "ContentDelta",
            "ThinkingDelta",
            "ToolCall",
            "ToolCallArguments",
            "ToolCallEnd",
            "ToolCallStart",
        ),
    }
    for module, names in homes.items():
        if name in names:
            return getattr(import_module(module), name)
    raise AttributeError(f"module 'kaishu' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
