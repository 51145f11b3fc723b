"""What tests of the OpenAPI document share: the document, its schemas, and whether an answer is as it says.

Owns nothing but these; test_openapi.py and its neighbours use them.
"""

from typing import Any

import httpx
import jsonschema

from kaishu.server.openapi import document

DOCUMENT = document(("tiny",))


def body_schema(path: str) -> dict[str, Any]:
    """Of the bodies of a route; what it refers to is there, too."""
    schema = DOCUMENT["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]
    return {**schema, "components": DOCUMENT["components"]}


def is_valid(body: object, path: str) -> bool:
    """Whether the document allows a body."""
    return jsonschema.Draft202012Validator(body_schema(path)).is_valid(body)


def check_answer(answer: httpx.Response, path: str, method: str = "post") -> None:
    """Status, type and form are among those that the document has for the route."""
    said = DOCUMENT["paths"][path][method]["responses"][str(answer.status_code)]
    schema = said["content"][answer.headers["content-type"]]["schema"]
    jsonschema.validate(answer.json(), {**schema, "components": DOCUMENT["components"]})
