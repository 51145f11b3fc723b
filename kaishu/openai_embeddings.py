"""Embeddings in the form of OpenAI's API: bodies of /v1/embeddings, what the model has to read for them, and answers.

Owns these three. Knows nothing of HTTP or files, nor how the engine computes rows: it takes jobs and gives a row for
each. Used by batch_run.py and the server.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from kaishu.embedding import checked_dimensions, embedding_ids, end_ids, unit_vectors
from kaishu.engine.jobs import Read
from kaishu.errors import InvalidParameterError, InvalidRequestError
from kaishu.loading import LoadedModel
from kaishu.many_texts import check_one, checked_texts, fitted
from kaishu.openai_fields import EMBEDDING_FIELDS, boolean, model_name, priority, read_fields
from kaishu.openai_requests import Call, read_inputs
from kaishu.prompting import Prompting

NAMES: Mapping[str, str] = {"texts": "input"}  # see Call.names


@dataclass(frozen=True)
class EmbeddingCall(Call):
    """A body of /v1/embeddings.

    inputs:     texts, or lists of token ids that aren't checked yet
    dimensions: as LLM.embed has it, not checked yet; and so are instruct and truncate
    """

    inputs: tuple[str | list[int], ...] = ()
    dimensions: Any = None
    encoding: Literal["float", "base64"] = "float"
    instruct: str | None = None
    truncate: bool = False
    priority: int = 0


def read_embedding(body: object, *, allow_unknown: bool = False) -> EmbeddingCall:
    """Read a body of /v1/embeddings.

    body:          parsed JSON
    allow_unknown: see read_fields
    raises:        InvalidRequestError and its kinds, naming the field
    """
    fields, unknown = read_fields(body, EMBEDDING_FIELDS, allow_unknown=allow_unknown)
    inputs = read_inputs("input", fields.get("input"))
    is_list = inputs is fields["input"]
    encoding, instruct = fields.get("encoding_format", "float"), fields.get("instruct")
    if encoding not in ("float", "base64"):
        raise InvalidParameterError("encoding_format", encoding, "float, base64")
    if instruct is not None:
        if not isinstance(instruct, str):
            raise InvalidParameterError("instruct", instruct, "a sentence that says what is looked for")
        check_one("instruct", instruct)
        if not isinstance(inputs[0], str):
            raise InvalidRequestError("instruct goes with texts, but input is token ids.", field="instruct")
    return EmbeddingCall(
        model_name(fields),
        False,
        False,
        unknown,
        NAMES if is_list else {**NAMES, "texts[0]": "input"},
        inputs=tuple(inputs),
        dimensions=fields.get("dimensions"),
        encoding=encoding,
        instruct=instruct,
        truncate=boolean(fields, "truncate", False),
        priority=priority(fields),
    )


def embedding_jobs(call: EmbeddingCall, loaded: LoadedModel, prompting: Prompting) -> list[Read]:
    """What the engine has to read, one job for each input. After token ids comes the end token, unless it is there.

    raises: InvalidRequestError and its kinds, for with spelt(call.names)
    """
    checked_dimensions(call.dimensions, loaded.config.hidden_size)
    if isinstance(call.inputs[0], str):
        read = embedding_ids(
            loaded.tokenizer,
            checked_texts("texts", call.inputs),
            instruct=call.instruct,
            context_tokens=loaded.context_tokens,
            truncate=call.truncate,
        )
    else:
        read = [_ended(f"texts[{index}]", ids, call, loaded, prompting) for index, ids in enumerate(call.inputs)]
    return [Read(ids, "last_hidden", priority=call.priority) for ids in read]


def _ended(name: str, given: object, call: EmbeddingCall, loaded: LoadedModel, prompting: Prompting) -> list[int]:
    ids, end = prompting.checked_ids(name, given), end_ids(loaded.tokenizer)
    if ids[-len(end) :] == end:
        ids = ids[: -len(end)]
    if not ids:
        raise InvalidRequestError(f"{name} is empty; allowed: at least one token.", field=name, hint="Leave it out.")
    return fitted(([], ids, end), loaded.context_tokens, field=name, truncate=call.truncate)


def embedding_response(call: EmbeddingCall, rows: NDArray[np.float32], jobs: Sequence[Read]) -> dict[str, Any]:
    """A list object with one embedding for each input.

    rows:   [n, D] float32, the hidden states
    jobs:   those of embedding_jobs
    raises: NumericalError naming the text whose state is no number
    """
    vectors = unit_vectors(rows, checked_dimensions(call.dimensions, rows.shape[1]))
    num_tokens = sum(len(job.token_ids) for job in jobs)
    return {
        "object": "list",
        "data": [
            {"object": "embedding", "index": index, "embedding": encoded(vector, call.encoding)}
            for index, vector in enumerate(vectors)
        ],
        "model": call.model,
        "usage": {"prompt_tokens": num_tokens, "total_tokens": num_tokens},
    }


def encoded(vector: NDArray[np.float32], encoding: Literal["float", "base64"]) -> list[float] | str:
    """A vector as numbers, in as few digits as say which float32 it is, or as base64 of little-endian float32."""
    if encoding == "base64":
        return base64.b64encode(vector.astype("<f4").tobytes()).decode()
    return [float(str(value)) for value in vector]
