"""`kaishu rerank`: documents in the order in which they answer a query.

Owns how documents get in (arguments, or lines of a pipe) and the one way out: a JSON object for each, the best first.
"""

# No `from __future__ import annotations`: typer reads the annotations as objects.

from typing import Annotated

import typer

from kaishu.cli.options import MODEL_OPTIONS, ModelOptions, with_options


@with_options(model_options=MODEL_OPTIONS)
def rerank(
    model: Annotated[str, typer.Argument(help="A reranker: a folder or a hub's name.")],
    query: Annotated[str, typer.Argument(help="What is asked.")],
    documents: Annotated[
        list[str] | None,
        typer.Argument(
            help="The documents; else standard input, one a line.", metavar="[DOCUMENT]...", show_default=False
        ),
    ] = None,
    instruct: Annotated[
        str | None,
        typer.Option("--instruct", help="What makes a document a good one; else that it answers.", metavar="TASK"),
    ] = None,
    truncate: Annotated[
        bool, typer.Option("--truncate", help="Cut documents that are too long, instead of refusing them.")
    ] = False,
    *,
    model_options: ModelOptions,
) -> None:
    """Put documents in order for a query: one JSON object a line, with `index`, `score` and `document`."""
    from kaishu.cli.printable import printable_json_line, show_notes
    from kaishu.cli.stdin import read_lines

    given = documents or read_lines("document", instead="Give DOCUMENT")
    llm = model_options.load(model)
    show_notes(llm.notes)
    for result in llm.rerank(query, given, instruct=instruct, truncate=truncate):
        line = {"index": result.index, "score": result.score, "document": given[result.index]}
        print(printable_json_line(line))
