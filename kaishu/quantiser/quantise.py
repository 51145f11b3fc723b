"""A checkpoint → a folder with its linear layers quantised, and a report of what that did.

Owns the way through the tensors: piece by piece without a text to calibrate with, block by block with one. Pieces are
rows of one matrix; several threads compute them and write them where they belong, so memory holds a few pieces, or one
block and its moments. The arithmetic is rounding.py's and compensation.py's. Called by `kaishu quantize`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from kaishu.checkpoint import Checkpoint, StoredTensor
from kaishu.checkpoint.quantised import GROUP
from kaishu.checkpoint.stored_numbers import bfloat16_bits
from kaishu.checkpoint.writing import TensorFile, new_folder
from kaishu.errors import CheckpointError, MissingDependencyError, NumericalError
from kaishu.quantiser.compensation import compensated, factor, output_error
from kaishu.quantiser.folder import write_beside
from kaishu.quantiser.plan import Plan, kind_of, plan_of
from kaishu.quantiser.rounding import FORMS, Floats, FormName, rounded, values_of

if TYPE_CHECKING:
    from kaishu.reference.input_moments import BlockByBlock

_Sums = tuple[float, float, float]
Progress = Callable[[int, int], None]
"""Called with how many of the weights are done, and how many there are."""

_WEIGHTS_AT_ONCE = 1 << 21
_ROWS_MEASURED = 32  # of each piece: what an error comes to is measured on some rows
_SMALL_FILES_BYTES = 32 << 20  # tokenizer and templates


@dataclass
class KindReport:
    """What was done to all matrices of one kind, such as `down_proj`. Sums of squares, over the rows measured.

    weights: how many
    lost:    of what was written: of outputs over the text where there is one, else of weights
    nearest: what rounding to the nearest would have lost
    whole:   of the outputs, or weights, themselves
    """

    weights: int = 0
    lost: float = 0.0
    nearest: float = 0.0
    whole: float = 0.0

    @property
    def error(self) -> float:
        """Root mean square, as a share."""
        return (self.lost / self.whole) ** 0.5 if self.whole else 0.0

    @property
    def nearest_error(self) -> float:
        """The same for rounding to the nearest."""
        return (self.nearest / self.whole) ** 0.5 if self.whole else 0.0


@dataclass
class Report:
    """What came of it.

    calibration_tokens: how many were read; 0 without a text
    unseen:             matrices that no token of the text reached, as of experts that were never chosen
    kinds:              by the last part of the layer's name
    source_formats:     what the source had quantised already, empty if nothing
    """

    form: FormName
    calibration_tokens: int
    source_bytes: int
    written_bytes: int
    kept_bytes: int
    uneven: tuple[str, ...]
    unseen: list[str] = field(default_factory=list)
    kinds: dict[str, KindReport] = field(default_factory=dict)

    @property
    def bits_per_weight(self) -> float:
        """Of the quantised layers, scales included."""
        return 8 * (self.written_bytes - self.kept_bytes) / sum(kind.weights for kind in self.kinds.values())


def quantise(
    checkpoint: Checkpoint,
    folder: Path,
    form: FormName,
    *,
    texts: Sequence[Sequence[int]] | None = None,
    threads: int | None = None,
    progress: Progress = lambda _done, _all: None,
) -> Report:
    """Write a quantised model.

    folder:  made anew; it appears when it is complete
    texts:   token ids to calibrate with, each as long as the model's context at most; None to go without
    threads: how many compute; None for as many as can really run at once
    raises:  CheckpointError when the source can't be read or has weights that are no numbers, or the folder can't be
             written; MissingDependencyError for texts without torch
    """
    from kaishu.cpu.threads import available_threads

    plan, threads = plan_of(checkpoint, FORMS[form]), threads or available_threads()
    tensors = plan.tensors()
    written = sum(tensor.nbytes for tensor in tensors.values())
    kept = sum(tensors[name].nbytes for name in plan.kept)
    tokens = sum(map(len, texts)) if texts is not None else 0
    report = Report(form, tokens, checkpoint.nbytes, written, kept, plan.uneven)
    walk = None if texts is None else _walk(checkpoint, texts, threads)
    with new_folder(folder, "a quantised model", written + _SMALL_FILES_BYTES) as unfinished:
        write_beside(checkpoint, plan.quantization_config(), unfinished)
        with TensorFile(unfinished / "model.safetensors", tensors) as file, ThreadPoolExecutor(threads) as pool:
            job = _Job(plan, file, report, pool, window=2 * threads, progress=progress)
            job.copy_kept()
            if walk is None:
                job.run(plan.quantised, {}, {})
            else:
                job.run_calibrated(walk)
    return report


class _Job:
    """One model on its way: pieces are computed by the pool's threads, everything else by the caller's."""

    def __init__(
        self,
        plan: Plan,
        file: TensorFile,
        report: Report,
        pool: ThreadPoolExecutor,
        *,
        window: int,
        progress: Progress,
    ) -> None:
        """window: how many pieces may be under way"""
        self._plan, self._file, self._report, self._progress = plan, file, report, progress
        self._pool, self._window = pool, window
        self._done, self._all = 0, sum(plan.checkpoint.tensors[name].num_values for name in plan.quantised)

    def copy_kept(self) -> None:
        """Copy what isn't quantised, bit for bit where the source has it plain."""
        for name in self._plan.kept:
            tensor = self._plan.checkpoint.tensors[name]
            if isinstance(tensor, StoredTensor):
                self._file.write(name, tensor.read())
                continue
            for first, last in _pieces(tensor.shape):
                self._file.write(name, bfloat16_bits(tensor.values(first, last)), first * tensor.shape[1])

    def run_calibrated(self, walk: BlockByBlock) -> None:
        """Block by block, so that each is calibrated on what the quantised ones before it make."""
        for layer in range(self._plan.checkpoint.config.num_hidden_layers):
            names = [name for name in self._plan.quantised if name.startswith(f"model.layers.{layer}.")]
            found = walk.moments()
            self._report.unseen += [name for name in names if name not in found]
            replaced = {name: np.empty(self._plan.checkpoint.tensors[name].shape, np.float32) for name in names}
            self.run(names, found, replaced)
            walk.advance(replaced)

    def run(self, names: Sequence[str], moments: Mapping[str, Floats], replaced: Mapping[str, Floats]) -> None:
        """Quantise some matrices.

        moments:  [K, K] float32, Σ x xᵀ of what enters those of which it is known
        replaced: filled with the new values, of those that are in it
        """
        waiting: deque[tuple[str, int, Future[_Sums]]] = deque()
        last, upper = None, None  # consecutive matrices are often entered by the same
        for name in names:
            entering = _usable(name, moments.get(name))
            if entering is not None and entering is not last:
                last, upper = entering, factor(entering)
            rows, columns = self._plan.checkpoint.tensors[name].shape
            self._file.write(f"{name}_shape", np.array([rows, columns], np.int64))
            for first, end in _pieces((rows, columns)):
                known = None if entering is None or upper is None else (entering, upper)
                job = self._pool.submit(self._piece, name, first, end, known, replaced.get(name))
                waiting.append((name, (end - first) * columns, job))
                if len(waiting) >= self._window:
                    self._finish(*waiting.popleft())
        while waiting:
            self._finish(*waiting.popleft())

    def _finish(self, name: str, weights: int, job: Future[_Sums]) -> None:
        sums, kind = job.result(), kind_of(name)
        assert kind is not None
        report = self._report.kinds.setdefault(kind, KindReport())
        report.weights += weights
        report.lost, report.nearest, report.whole = (
            old + new for old, new in zip((report.lost, report.nearest, report.whole), sums, strict=True)
        )
        self._done += weights
        self._progress(self._done, self._all)

    def _piece(
        self, name: str, first: int, last: int, known: tuple[Floats, Floats] | None, replaced: Floats | None
    ) -> _Sums:
        """Quantise rows of a matrix and write them. return: what was lost, would have been lost, and the whole"""
        tensor, form = self._plan.checkpoint.tensors[name], self._plan.form
        weights = tensor.values(first, last)
        groups = None
        if np.isfinite(weights).all():
            groups = rounded(weights, form) if known is None else compensated(weights, known[1], form)
        if groups is None or not np.isfinite(groups.scales).all():
            raise CheckpointError(
                f"{name} has values in rows {first:,} to {last - 1:,} that are no numbers, or too large for a scale in "
                "float16; allowed: finite weights up to 500,000.",
                hint="The file is damaged, or the model was saved while it was broken.",
            )
        self._file.write(
            f"{name}_packed", packed(groups.numbers(), form.bits), first * tensor.shape[1] * form.bits // 32
        )
        self._file.write(f"{name}_scale", groups.scales, first * tensor.shape[1] // GROUP)
        values = values_of(groups)
        if replaced is not None:
            replaced[first:last] = values
        some = slice(None, None, max(1, len(weights) // _ROWS_MEASURED))
        nearest = values_of(rounded(weights[some], form, search=False))
        changes = (weights[some] - values[some], weights[some] - nearest, weights[some])
        if known is None:
            lost, lost_nearest, whole = (float(np.square(change, dtype=np.float64).sum()) for change in changes)
        else:
            lost, lost_nearest, whole = (output_error(change, known[0]) for change in changes)
        return lost, lost_nearest, whole


def _usable(name: str, moments: Floats | None) -> Floats | None:
    """The same, or None where nothing but zeros has entered.

    raises: NumericalError
    """
    if moments is None or not moments.any():
        return None
    if not np.isfinite(moments).all():
        raise NumericalError(
            f"While the model reads the text, what enters {name} becomes infinite or no number.",
            hint="`kaishu verify` shows in which layer that begins; without a text to calibrate with, it isn't run.",
        )
    return moments


def packed(whole: NDArray[np.int8], bits: int) -> NDArray[np.int32]:
    """Whole numbers as compressed-tensors packs them: consecutive ones in a word, from its lowest bits on.

    whole:  [n, K] int8, K a multiple of 32
    bits:   4 or 8
    return: [n, K·bits/32] int32, q + 2^(bits - 1) each
    """
    unsigned = (whole.astype(np.int16) + (1 << (bits - 1))).astype(np.uint8)
    pairs = unsigned if bits == 8 else np.bitwise_or(unsigned[:, 0::2], unsigned[:, 1::2] << np.uint8(4))
    return np.ascontiguousarray(pairs).view(np.dtype("<i4"))


def _walk(checkpoint: Checkpoint, texts: Sequence[Sequence[int]], threads: int) -> BlockByBlock:
    try:
        from kaishu.reference.input_moments import BlockByBlock
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        what = "Calibrating, which runs the reference model,"
        raise MissingDependencyError(what, package="torch", extra="torch") from None
    return BlockByBlock(checkpoint, texts, threads=threads)


def _pieces(shape: tuple[int, ...]) -> Iterator[tuple[int, int]]:
    """Ranges of rows that together are a matrix."""
    rows, columns = shape
    step = max(1, _WEIGHTS_AT_ONCE // max(columns, 1))
    return ((first, min(rows, first + step)) for first in range(0, rows, step))
