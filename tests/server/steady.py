"""A model that goes on and on, at a pace that the test sets, for tests of everything that ends a request early.

Owns its executor. What it says depends on the whole context, so a neighbour that were mixed up with it would be seen.
"""

from __future__ import annotations

import threading
import time
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from kaishu.batch import TokenBatch
from kaishu.loading import LoadedModel
from tests.scripted import ScriptedExecutor


class SteadyExecutor(ScriptedExecutor):
    """One letter after the other, without an end.

    step_seconds: how long a step takes
    may_step:     cleared, it holds every step
    fails:        what the next step raises
    """

    def __init__(self, model: LoadedModel, step_seconds: float = 0.002) -> None:
        letters = [model.tokenizer.encode(letter)[0] for letter in "abcdefghijklmnopqrstuvwxyz"]
        super().__init__(lambda context: letters[sum(context) % 26], vocab_size=model.config.vocab_size)
        self.step_seconds = step_seconds
        self.may_step = threading.Event()
        self.may_step.set()
        self.fails: Exception | None = None

    def step(self, batch: TokenBatch) -> NDArray[np.float32]:
        """As ScriptedExecutor's, in its own time."""
        assert self.may_step.wait(60), "the test lets it go on"
        time.sleep(self.step_seconds)
        if (problem := self.fails) is not None:
            self.fails = None
            raise problem
        return super().step(batch)


def steady_model(model: LoadedModel) -> tuple[LoadedModel, SteadyExecutor]:
    """The model's tokenizer and templates, on a steady executor."""
    executor = SteadyExecutor(model)
    return replace(model, executor=executor), executor
