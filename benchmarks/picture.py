"""The summary as a picture: a panel for each measure, a group of bars for each width, a bar for each engine.

Needs matplotlib, which is imported here alone.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from benchmarks.one_process import PEERS
from benchmarks.report import Row, title
from benchmarks.work import PEAK_MEMORY, Work

_COLOURS: Mapping[str, str] = MappingProxyType(
    {"Kaishu": "#b5352c", "llama.cpp": "#5b7a99", "OpenVINO": "#8fa3b5", "transformers": "#c9ced3"}
)


def missing() -> str | None:
    """What isn't there to draw with; None if nothing."""
    return None if importlib.util.find_spec("matplotlib") else "the package matplotlib isn't installed"


def draw(rows: Sequence[Row], work: Work, caption: str, path: Path) -> None:
    """Write the picture.

    caption: one line under it: which machine, which model
    path:    .svg or .png
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    matplotlib.rcParams.update({"font.size": 9, "svg.hashsalt": "kaishu", "svg.fonttype": "none"})
    measures = [m for m in dict.fromkeys(row.measure for row in rows) if m != PEAK_MEMORY]
    columns = min(3, len(measures))
    lines = -(-len(measures) // columns)
    figure, axes = pyplot.subplots(lines, columns, figsize=(3.6 * columns, 2.7 * lines), squeeze=False)
    for axis, measure in zip(axes.flat, measures, strict=False):
        _panel(axis, [row for row in rows if row.measure == measure])
        axis.set_title(f"{title(measure, work)} (tokens/s)", loc="left", fontsize=9, fontweight="bold")
    for axis in axes.flat[len(measures) :]:
        axis.set_visible(False)
    peers = [peer for peer in PEERS if any(peer in row.values for row in rows)]
    handles = [matplotlib.patches.Patch(color=_COLOURS[peer], label=peer) for peer in peers]
    figure.legend(handles=handles, loc="upper center", ncols=len(peers), frameon=False)
    figure.text(0.5, 0.01, caption, ha="center", fontsize=7.5, color="#555555")
    figure.tight_layout(rect=(0, 0.04, 1, 0.94))
    figure.savefig(path, dpi=160, metadata={"Date": None} if path.suffix == ".svg" else None)
    pyplot.close(figure)


def _panel(axis: Any, rows: Sequence[Row]) -> None:
    """Bars of one measure; a bar's label is its value, an engine that doesn't do a width has no bar."""
    peers = [peer for peer in PEERS if any(peer in row.values for row in rows)]
    bar = 0.8 / len(peers)
    for index, peer in enumerate(peers):
        at = [place for place, row in enumerate(rows) if peer in row.values]
        heights = [rows[place].values[peer] for place in at]
        left = [place + (index - (len(peers) - 1) / 2) * bar for place in at]
        bars = axis.bar(left, heights, bar * 0.92, color=_COLOURS[peer])
        axis.bar_label(bars, [f"{height:,.0f}" for height in heights], fontsize=6.5, padding=1)
    axis.set_xticks(range(len(rows)), [row.width for row in rows])
    axis.set_yticks([])
    axis.margins(y=0.14)
    axis.spines[["top", "right", "left"]].set_visible(False)
