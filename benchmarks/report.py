"""From the lines that the processes printed to medians and ratios, and those as text.

Owns the arithmetic: a value is the median over the rounds; a ratio is ours over the fastest other engine's, at the same
width. Knows nothing of processes or files.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from benchmarks.one_process import OURS, PEERS
from benchmarks.work import DECODE, LONG_DECODE, PEAK_MEMORY, PREFILL, Work

_COSTS = (PEAK_MEMORY,)


@dataclass(frozen=True)
class Row:
    """One measure at one width.

    values: engine → the median of its rounds
    spread: engine → its lowest and highest round
    ratio:  ours over the fastest other; more than 1: ours is faster. None where one of the two is missing. For a cost
            it is ours over the lowest other, and less than 1 is better
    """

    measure: str
    width: str
    values: Mapping[str, float]
    spread: Mapping[str, tuple[float, float]]
    fastest_other: str | None
    ratio: float | None

    def to_json(self) -> dict[str, Any]:
        """As a plain object."""
        return asdict(self)


def summarise(results: Iterable[Mapping[str, Any]], costs: Sequence[str] = _COSTS) -> list[Row]:
    """Medians and ratios.

    results: what one_process.run returned, in any order; failed ones are left out
    costs:   the measures of which less is better
    return:  rows in the order in which measures and widths first occur, measures outermost
    """
    found: dict[str, dict[str, dict[str, list[float]]]] = {}  # measure → width → engine → a value a round
    for result in results:
        for measure, value in result.get("values", {}).items():
            found.setdefault(measure, {}).setdefault(result["width"], {}).setdefault(result["peer"], []).append(value)
    return [_row(m, width, found[m][width], m in costs) for m in found for width in found[m]]


def _row(measure: str, width: str, rounds: Mapping[str, Sequence[float]], is_cost: bool) -> Row:
    values = {peer: statistics.median(rounds[peer]) for peer in PEERS if peer in rounds}
    others = {peer: value for peer, value in values.items() if peer != OURS}
    best = (min if is_cost else max)(others, key=lambda peer: others[peer]) if others else None
    ratio = values[OURS] / others[best] if best is not None and others[best] and OURS in values else None
    spread = {peer: (min(rounds[peer]), max(rounds[peer])) for peer in values}
    return Row(measure, width, values, spread, best, ratio)


def title(measure: str, work: Work) -> str:
    """A measure as a reader sees it."""
    titles = {
        DECODE: "decode, 1 sequence",
        PREFILL: f"prefill of {work.prompt_tokens}",
        LONG_DECODE: f"decode after {work.long_prompt:,}" if work.long_prompt else "",
        PEAK_MEMORY: "peak memory, MB",
    }
    return titles.get(measure) or f"{measure.removeprefix('streams_')} streams"


def table(rows: Sequence[Row], work: Work) -> str:
    """The rows as a Markdown table; speeds in tokens/s of all sequences together."""
    return tabulate(rows, "tokens/s", lambda measure: title(measure, work))


def tabulate(rows: Sequence[Row], head: str, titled: Callable[[str], str]) -> str:
    """The rows as a Markdown table: a column for each engine, ratios in the last.

    head:   over the measures
    titled: a measure as a reader sees it
    """
    peers = [peer for peer in PEERS if any(peer in row.values for row in rows)]
    lines = [[head, "width", *peers, f"{OURS} / best other"]]
    for row in rows:
        ratio = "–" if row.ratio is None else f"{row.ratio:.2f}× {row.fastest_other}"
        cells = [_number(row.values[peer]) if peer in row.values else "–" for peer in peers]
        lines.append([titled(row.measure), row.width, *cells, ratio])
    lines.insert(1, ["---", "---", *["---:"] * (len(peers) + 1)])
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    return "\n".join(
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) + " |" for line in lines
    )


def _number(value: float) -> str:
    return f"{value:.1f}" if value < 200 else f"{value:,.0f}"


def failures(results: Iterable[Mapping[str, Any]]) -> list[str]:
    """A line for each process that failed."""
    return [f"{r['peer']} at {r['width']}, round {r['round']}: {r['failed']}" for r in results if "failed" in r]
