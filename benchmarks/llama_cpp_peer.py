"""llama.cpp as an engine to measure: through llama-cpp-python's low-level API, which is llama.cpp's C API itself.

The high-level `Llama.eval` copies logits in Python and understates decoding by a third, so it isn't used. Settings are
llama.cpp's own, but for the threads and a micro-batch of 512. Tokens are random: no time is spent on picking them.
"""

from __future__ import annotations

import ctypes
import importlib.util
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.work import Work

NAME = "llama.cpp"
FORMATS: Mapping[str, str] = MappingProxyType({"int4": "q4_0", "int8": "q8_0", "bf16": "bf16"})
DOES_LONG_CONTEXT = True
_TOKENS_AT_ONCE = 512

Row = tuple[int, int, int, bool]
"""A row of a batch: token, position, sequence, and whether its logits are wanted."""


def missing(executor: str) -> str | None:
    """What isn't there to run it, in words; None if nothing."""
    return None if importlib.util.find_spec("llama_cpp") else "the package llama-cpp-python isn't installed"


def load(path: Path, width: str, threads: int, work: Work, executor: str) -> LlamaCppEngine:
    """Load a GGUF file."""
    return LlamaCppEngine(path, threads)


class LlamaCppEngine:
    """A model and the settings of its contexts."""

    def __init__(self, path: Path, threads: int) -> None:
        import llama_cpp

        self._library: Any = llama_cpp
        self._threads = threads
        self._quiet = llama_cpp.llama_log_callback(lambda level, text, data: None)  # kept, or C calls freed memory
        llama_cpp.llama_log_set(self._quiet, ctypes.c_void_p(0))
        llama_cpp.llama_backend_init()
        self._model = llama_cpp.llama_model_load_from_file(str(path).encode(), llama_cpp.llama_model_default_params())
        if not self._model:
            raise RuntimeError(f"llama.cpp can't load {path}")
        self.vocab_size: int = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(self._model))

    def open(self, sequences: int, tokens: int) -> LlamaCppSequences:
        """A context of its own for these sequences."""
        context = self.context(sequences, tokens, n_batch=_TOKENS_AT_ONCE, n_ubatch=_TOKENS_AT_ONCE)
        return LlamaCppSequences(context, sequences, self.vocab_size)

    def context(self, sequences: int, tokens: int, **settings: int) -> LlamaCppContext:
        """A context for so many sequences of at most so many tokens each.

        settings: fields of llama.cpp's context parameters, n_batch among them
        """
        parameters = self._library.llama_context_default_params()
        parameters.n_ctx = sequences * (-(-tokens // 256) * 256)  # llama.cpp rounds a sequence's share to 256
        parameters.n_threads = parameters.n_threads_batch = self._threads
        parameters.n_seq_max = sequences
        for name, value in settings.items():
            setattr(parameters, name, value)
        context = self._library.llama_init_from_model(self._model, parameters)
        if not context:
            raise RuntimeError(f"llama.cpp can't make a context of {parameters.n_ctx} tokens")
        return LlamaCppContext(self._library, context, parameters.n_batch, self.vocab_size)


class LlamaCppContext:
    """A context with the batch that it is given."""

    def __init__(self, library: Any, context: Any, room: int, vocab_size: int) -> None:
        self._library = library
        self._context = context
        self._memory = library.llama_get_memory(context)
        self._batch = library.llama_batch_init(room, 0, 1)
        self._vocab_size = vocab_size

    def run(self, rows: Sequence[Row]) -> None:
        """Compute the rows, at most n_batch of them."""
        batch = self._batch
        batch.n_tokens = len(rows)
        for at, (token, position, sequence, wants_logits) in enumerate(rows):
            batch.token[at] = token
            batch.pos[at] = position
            batch.n_seq_id[at] = 1
            batch.seq_id[at][0] = sequence
            batch.logits[at] = wants_logits
        if code := self._library.llama_decode(self._context, batch):
            raise RuntimeError(f"llama_decode answered {code}")
        self._library.llama_synchronize(self._context)

    def most_likely(self, at: int) -> int:
        """The most likely token after a row of the last run that wanted logits."""
        logits = self._library.llama_get_logits_ith(self._context, at)
        return int(np.ctypeslib.as_array(logits, (self._vocab_size,)).argmax())

    def keep(self, sequence: int, tokens: int) -> None:
        """Forget what a sequence has behind its first so many tokens."""
        if not self._library.llama_memory_seq_rm(self._memory, sequence, tokens, -1):
            raise RuntimeError("llama.cpp can't shorten a sequence")

    def copy(self, source: int, target: int) -> None:
        """Give one sequence what another has, in place of its own."""
        self.keep(target, 0)
        self._library.llama_memory_seq_cp(self._memory, source, target, -1, -1)

    def close(self) -> None:
        """Free the context."""
        self._library.llama_batch_free(self._batch)
        self._library.llama_free(self._context)


class LlamaCppSequences:
    """Sequences in step: all have the same number of tokens."""

    def __init__(self, context: LlamaCppContext, sequences: int, vocab_size: int) -> None:
        self._context = context
        self._sequences = range(sequences)
        self._tokens = 0
        # The same for every run: which tokens they are makes no difference to the time.
        self._random = np.random.default_rng(0).integers(0, vocab_size, (4096, sequences))

    def prefill(self, prompts: NDArray[np.int32]) -> None:
        """Compute prompts in chunks of 512 tokens of all together; logits of each prompt's last token."""
        length = prompts.shape[1]
        chunk = max(1, _TOKENS_AT_ONCE // len(prompts))
        for start in range(0, length, chunk):
            stop = min(start + chunk, length)
            rows = [
                (int(prompts[sequence, at]), at, sequence, at == length - 1)
                for sequence in self._sequences
                for at in range(start, stop)
            ]
            self._context.run(rows)
        self._tokens = length

    def step(self) -> None:
        """Append a random token to each sequence."""
        tokens = self._random[self._tokens % len(self._random)]
        self._context.run([(int(tokens[sequence]), self._tokens, sequence, True) for sequence in self._sequences])
        self._tokens += 1

    def close(self) -> None:
        """Free the context."""
        self._context.close()
