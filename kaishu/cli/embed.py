"""`kaishu embed`: texts as vectors.

Owns how texts get in (arguments, or lines of a pipe) and the one way out: a JSON object for each, on a line of its own.
"""

# No `from __future__ import annotations`: typer reads the annotations as objects.

from typing import Annotated

import typer

from kaishu.cli.options import MODEL_OPTIONS, ModelOptions, with_options


@with_options(model_options=MODEL_OPTIONS)
def embed(
    model: Annotated[str, typer.Argument(help="A folder, a hub's name, or a bundled model.")],
    texts: Annotated[
        list[str] | None,
        typer.Argument(help="The texts; else standard input, one a line.", metavar="[TEXT]...", show_default=False),
    ] = None,
    instruct: Annotated[
        str | None,
        typer.Option("--instruct", help="The texts are queries: what is looked for.", metavar="TASK"),
    ] = None,
    dimensions: Annotated[
        int | None, typer.Option("--dimensions", help="Keep only the first N dimensions.", metavar="N")
    ] = None,
    truncate: Annotated[
        bool, typer.Option("--truncate", help="Cut texts that are too long, instead of refusing them.")
    ] = False,
    *,
    model_options: ModelOptions,
) -> None:
    """Turn texts into vectors of unit length: one JSON object a line, with `index` and `embedding`."""
    from kaishu.cli.printable import printable_json_line, show_notes
    from kaishu.cli.stdin import read_lines

    given = texts or read_lines("text", instead="Give TEXT")
    llm = model_options.load(model)
    show_notes(llm.notes)
    vectors = llm.embed(given, instruct=instruct, dimensions=dimensions, truncate=truncate)
    for index, vector in enumerate(vectors):
        # numpy writes a float32 in as few digits as say which it is
        print(printable_json_line({"index": index, "embedding": [float(str(value)) for value in vector]}))
