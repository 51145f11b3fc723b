"""`kaishu verify`: does this model compute here what it computes in transformers?

Owns the table and the exit code: 0 when every stage agrees, 1 when one differs. The comparison is reference/verify.py.
"""

# No `from __future__ import annotations`: typer reads the annotations as objects.

from typing import TYPE_CHECKING, Annotated

import typer

from kaishu.errors import InvalidParameterError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.text import Text

    from kaishu.reference.verify import Verification
    from kaishu.reference.weights import DtypeName

DIFFERS = 1


def verify(
    model: Annotated[str, typer.Argument(help="A folder, a GGUF file, a hub's name, or a bundled model.")],
    weights: Annotated[
        str, typer.Option(help="What both keep weights and compute in: float32 or bf16.", metavar="FORM")
    ] = "float32",
    text: Annotated[
        str | None, typer.Option("--text", help="A text to run; else 64 arbitrary tokens.", show_default=False)
    ] = None,
) -> None:
    """Compare a model with transformers, layer by layer."""
    from kaishu.cli.pull import fetch

    if weights not in ("float32", "bf16"):
        raise InvalidParameterError("weights", weights, "float32 or bf16")
    if text == "":
        raise InvalidParameterError("--text", text, "a text of at least one token")
    folder = fetch(model)
    from rich.console import Console

    from kaishu.reference.verify import verify_against_transformers
    from kaishu.text_files import tokenizer_of

    tokens = None if text is None else tokenizer_of(folder).encode(text)
    dtype: DtypeName = "bfloat16" if weights == "bf16" else "float32"
    verification = verify_against_transformers(folder, dtype=dtype, tokens=tokens)
    console = Console(highlight=False)
    for line in lines_of(verification):
        console.print(line, soft_wrap=True)
    if not verification.agrees:
        raise typer.Exit(DIFFERS)


def lines_of(verification: "Verification") -> "Iterator[Text]":
    """A table with a row for each stage, and the verdict."""
    from rich.text import Text

    width = max(len(stage.stage) for stage in verification.stages)
    title = (
        f"{verification.num_tokens} tokens in {verification.dtype}, transformers {verification.transformers_version}"
    )
    yield Text(title, style="bold")
    yield Text(f"{'stage':<{width}}  {'max |Δ|':>9}  {'allowed':>9}  {'largest':>9}", style="dim")
    for stage in verification.stages:
        row = f"{stage.stage:<{width}}  {stage.max_difference:>9.2e}  {stage.allowed:>9.2e}  {stage.largest:>9.2e}"
        yield Text(row if stage.agrees else f"{row}  differs", style="" if stage.agrees else "red")
    same = f"{verification.same_choices} of {verification.num_tokens} positions have the same likeliest next token."
    first = verification.first_difference
    if first is None:
        yield Text(f"Every stage agrees; {same}", style="green")
    else:
        yield Text(f"The first stage that differs is {first.stage}; {same}", style="red")
