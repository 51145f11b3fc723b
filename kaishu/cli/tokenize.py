"""`kaishu tokenize`: what a model's tokenizer makes of a text, and what ids mean.

Owns how a token is shown: text in quotes, bytes that are no whole character in hex, control tokens marked. Reads the
tokenizer alone, no weights.
"""

# No `from __future__ import annotations`: typer reads the annotations as objects.

import re
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kaishu.errors import InvalidParameterError

_MAX_DIGITS = 10  # tokenizers number their tokens in 32 bits

if TYPE_CHECKING:
    from kaishu.text.tokenizer import Tokenizer


def tokenize(
    model: Annotated[str, typer.Argument(help="A folder, a hub's name, or a bundled model.")],
    text: Annotated[str | None, typer.Argument(help="The text; else standard input.", show_default=False)] = None,
    ids: Annotated[bool, typer.Option("--ids", help="TEXT is a list of token ids: decode them.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
    allow_control: Annotated[
        bool, typer.Option("--allow-control", help="Let <|im_end|> and the like in TEXT be control tokens.")
    ] = False,
) -> None:
    """Show the tokens of a text, or the text of tokens."""
    from kaishu.cli.printable import counted, printable, printable_json
    from kaishu.cli.pull import fetch
    from kaishu.cli.stdin import read_stdin
    from kaishu.text_files import tokenizer_of

    if text is None:
        text = read_stdin("text", instead="Give TEXT")
    given_ids = parse_ids(text) if ids else None
    tokenizer = tokenizer_of(fetch(model))
    token_ids = tokenizer.encode(text, allow_control=allow_control) if given_ids is None else given_ids
    tokens = [token_json(tokenizer, token_id) for token_id in token_ids]
    decoded = tokenizer.decode(token_ids)
    if as_json:
        print(printable_json({"text": decoded, "token_ids": token_ids, "tokens": tokens}))
        return
    width = max((len(str(token_id)) for token_id in token_ids), default=0)
    for token in tokens:
        mark = "  control" if token["is_control"] else ""
        print(f"{token['token_id']:>{width}}  {printable(token['piece'])}{mark}")
    if ids:
        print(f"\n{printable(decoded)}")
    else:
        num_bytes = len(decoded.encode())
        print(f"\n{counted(len(tokens), 'token')}, {counted(len(decoded), 'character')}, {counted(num_bytes, 'byte')}")


def parse_ids(text: str) -> list[int]:
    """Read token ids however they are separated: `1 2 3`, `1,2,3` or `[1, 2, 3]`.

    raises: InvalidParameterError naming what isn't an id
    """
    words = [word for word in re.split(r"[\s,]+", text.strip().strip("[]")) if word]
    for word in words:
        if not (word.isascii() and word.isdigit()) or len(word) > _MAX_DIGITS:
            allowed = f"whole numbers of at most {_MAX_DIGITS} digits, separated by spaces or commas"
            raise InvalidParameterError("--ids", word, allowed)
    return [int(word) for word in words]


def token_json(tokenizer: "Tokenizer", token_id: int) -> dict[str, Any]:
    """One token: its id, bytes, readable piece, and whether it is a control token."""
    raw = tokenizer.token_bytes(token_id)
    is_control = token_id in tokenizer.control_tokens.values()
    piece = raw.decode("utf-8", errors="replace") if is_control else readable(raw)
    return {"token_id": token_id, "bytes": list(raw), "piece": piece, "is_control": is_control}


def readable(raw: bytes) -> str:
    """Bytes as a person reads them.

    return: text in quotes, with \\n and the like escaped; bytes that are no whole character in hex: '中'<e5 8d>
    """
    # surrogateescape turns each byte that isn't UTF-8 into a character of its own, U+DC80 to U+DCFF.
    parts = re.findall(r"[\udc80-\udcff]+|[^\udc80-\udcff]+", raw.decode("utf-8", errors="surrogateescape"))
    return (
        "".join(
            f"<{' '.join(f'{ord(byte) - 0xDC00:02x}' for byte in part)}>"
            if part[0] >= "\udc80" and part[0] <= "\udcff"
            else repr(part)
            for part in parts
        )
        or "''"
    )
