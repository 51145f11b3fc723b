"""`kaishu inspect`: what a model is made of, tensor by tensor.

Owns how the facts and the tensors are laid out and how layers that repeat are folded. What each tensor means comes from
checkpoint/names.py. Reads headers alone, so that a model of any size takes a moment.
"""

# No `from __future__ import annotations`: typer reads the annotations as objects.

import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kaishu.byte_sizes import size

if TYPE_CHECKING:
    from rich.text import Text

    from kaishu.checkpoint import Checkpoint
    from kaishu.config import ModelConfig


def inspect(
    model: Annotated[str, typer.Argument(help="A folder, a GGUF file, a hub's name, or a bundled model.")],
    show_all: Annotated[
        bool, typer.Option("--all", help="Every layer and expert, not one for all that repeat.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object with every tensor.")] = False,
) -> None:
    """Show a model's shape and what each of its tensors is for."""
    from kaishu.checkpoint import open_checkpoint
    from kaishu.cli.printable import printable_json
    from kaishu.cli.pull import fetch

    checkpoint = open_checkpoint(fetch(model))
    if as_json:
        print(printable_json(inspection_json(checkpoint)))
        return
    from rich.console import Console

    console = Console(highlight=False)
    for line in _lines(checkpoint, fold=not show_all):
        console.print(line, soft_wrap=True)


@dataclass(frozen=True)
class Row:
    """A tensor, or several that differ only in whose they are.

    place:  where it stands: "" or "layer 3", "layers 0–27, each"
    name:   its name within that place
    copies: how many tensors the row stands for within its place (experts)
    """

    place: str
    name: str
    shape: tuple[int, ...]
    dtype: str
    nbytes: int
    meaning: str
    copies: int = 1


def rows_of(checkpoint: "Checkpoint", *, fold: bool) -> list[Row]:
    """One row a tensor, in the order in which a token meets them.

    fold: put layers that are alike, and experts that are alike, into one
    """
    from kaishu.checkpoint.names import needed_tensors

    needed = needed_tensors(checkpoint.config)
    places: dict[str, list[Row]] = {}
    for name, tensor in checkpoint.tensors.items():
        place, inner = _place(name)
        row = Row(place, inner, tensor.shape, tensor.dtype, tensor.nbytes, needed[name].meaning)
        places.setdefault(place, []).append(row)
    if fold:
        places = _fold_layers({place: _fold_experts(rows) for place, rows in places.items()})
    return [row for rows in places.values() for row in rows]


def _place(name: str) -> tuple[str, str]:
    match = re.match(r"model\.layers\.(\d+)\.(.+)", name)
    if match:
        return f"layer {match[1]}", match[2]
    return ("before the layers" if "embed" in name else "after the layers"), name


def _fold_experts(rows: list[Row]) -> list[Row]:
    """Experts of one layer that are alike become one: `mlp.experts.*.gate_proj.weight`, with its count."""
    folded: dict[Row, int] = {}
    for row in rows:
        name = re.sub(r"(?<=\.experts\.)\d+(?=\.)", "*", row.name)
        meaning = re.sub(r"^expert \d+, ", "each expert's own; ", row.meaning)
        alike = replace(row, name=name, meaning=meaning)
        folded[alike] = folded.get(alike, 0) + 1
    return [replace(row, copies=count) for row, count in folded.items()]


def _fold_layers(places: dict[str, list[Row]]) -> dict[str, list[Row]]:
    """Layers that are alike become one place, wherever they stand: `layers 0–2, 4, each`."""
    alike: dict[tuple[Row, ...], list[str]] = {}
    for place, rows in places.items():
        alike.setdefault(tuple(replace(row, place="") for row in rows), []).append(place)
    folded: dict[str, list[Row]] = {}
    for signature, members in alike.items():
        place = members[0]
        if len(members) > 1:
            place = f"layers {_ranges([int(member.removeprefix('layer ')) for member in members])}, each"
        folded[place] = [replace(row, place=place) for row in signature]
    return folded


def _ranges(numbers: list[int]) -> str:
    """Sorted numbers in short: 0–2, 4, 6–9."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}–{run[-1]}" for run in runs)


def facts_of(checkpoint: "Checkpoint") -> list[tuple[str, str]]:
    """What there is to say about the whole model, as pairs of a name and a sentence."""
    from kaishu.checkpoint import StoredTensor

    c = checkpoint.config
    heads = f"{c.num_attention_heads} query heads × {c.head_dim}, {c.num_key_value_heads} key/value heads"
    shared = (
        "each of its own" if c.queries_per_key == 1 else f"each shared by {c.queries_per_key} (grouped-query attention)"
    )
    normed = "; queries and keys normed" if c.qk_norm else ""
    head = "tied to the embedding" if c.tie_word_embeddings else "of its own"
    dtypes = sorted({tensor.dtype for tensor in checkpoint.tensors.values()})
    facts = [
        ("family", f"{c.model_type}, {c.num_hidden_layers} layers, D = {c.hidden_size:,}"),
        ("attention", f"{heads}, {shared}{normed}"),
        ("positions", f"{_rope(c)}; context {c.max_position_embeddings:,} tokens{_windows(c)}"),
        ("feed-forward", f"SwiGLU, F = {c.intermediate_size:,}"),
        ("vocabulary", f"V = {c.vocab_size:,}; the output head is {head}"),
        ("parameters", f"{checkpoint.num_parameters:,}"),
        ("weights", f"{size(checkpoint.nbytes)} in the files, {', '.join(dtypes)}"),
        ("KV cache", f"{c.kv_bytes_per_token(2):,} bytes a token in bf16, {c.kv_bytes_per_token(4):,} in float32"),
    ]
    quantised = [tensor for tensor in checkpoint.tensors.values() if not isinstance(tensor, StoredTensor)]
    if quantised:
        kept = sorted({f"{tensor.dtype} as {tensor.layout}" for tensor in quantised})
        facts.insert(7, ("kept", ", ".join(kept)))
    if c.experts:
        e = c.experts
        sparse = f"{e.num_experts} experts in {len(e.sparse_layers)} of {c.num_hidden_layers} layers"
        facts.insert(
            4, ("experts", f"{sparse}, {e.num_experts_per_tok} run for a token, F = {e.moe_intermediate_size:,}")
        )
    said = ", ".join(f"{name} {value:g}" for name, value in asdict(c.generation).items() if value is not None)
    return [*facts, ("sampling", f"recommended: {said}")] if said else facts


def _rope(c: "ModelConfig") -> str:
    stretched = "" if c.rope.kind == "default" else f", {c.rope.kind} × {c.rope.factor:g}"
    return f"RoPE, θ = {c.rope.theta:,.0f}{stretched}"


def _windows(c: "ModelConfig") -> str:
    windows = {window for window in c.sliding_windows if window is not None}
    layers = sum(window is not None for window in c.sliding_windows)
    return f"; {layers} layers see the last {max(windows):,} only" if windows else ""


def _lines(checkpoint: "Checkpoint", *, fold: bool) -> Iterator["Text"]:
    from rich.text import Text

    from kaishu.cli.printable import printable

    yield Text(printable(str(checkpoint.folder)), style="bold")
    for name, fact in facts_of(checkpoint):
        yield Text.assemble((f"{name:<14}", "cyan"), fact)
    for note in checkpoint.notes:
        yield Text(f"note: {printable(note)}", style="yellow")
    rows = rows_of(checkpoint, fold=fold)
    names = [row.name + (f" × {row.copies}" if row.copies > 1 else "") for row in rows]
    shapes = [str(list(row.shape)) for row in rows]
    name_width, shape_width = max(map(len, names)), max(map(len, shapes))
    dtype_width = max(len(row.dtype) for row in rows)
    place = ""
    for row, name, shape in zip(rows, names, shapes, strict=True):
        if row.place != place:
            place = row.place
            total = sum(other.nbytes * other.copies for other in rows if other.place == place)
            yield Text.assemble("\n", (place, "bold"), (f"  {size(total)}", "dim"))
        yield Text(f"  {name:<{name_width}}  {shape:<{shape_width}}  {row.dtype:<{dtype_width}}  {size(row.nbytes):>8}")
        yield Text(f"      {row.meaning}", style="dim")


def inspection_json(checkpoint: "Checkpoint") -> dict[str, Any]:
    """Everything as plain JSON values: the config, the totals, and every tensor unfolded."""
    from kaishu.checkpoint import StoredTensor
    from kaishu.checkpoint.names import needed_tensors

    c, needed = checkpoint.config, needed_tensors(checkpoint.config)
    return {
        "folder": str(checkpoint.folder),
        "config": asdict(c),
        "parameters": checkpoint.num_parameters,
        "weight_bytes": checkpoint.nbytes,
        "kv_bytes_per_token": {"bf16": c.kv_bytes_per_token(2), "float32": c.kv_bytes_per_token(4)},
        "queries_per_key": c.queries_per_key,
        "notes": list(checkpoint.notes),
        "tensors": [
            {
                "name": name,
                "shape": list(tensor.shape),
                "dtype": tensor.dtype,
                "bytes": tensor.nbytes,
                "layout": None if isinstance(tensor, StoredTensor) else tensor.layout,
                "meaning": needed[name].meaning,
            }
            for name, tensor in checkpoint.tensors.items()
        ],
    }
