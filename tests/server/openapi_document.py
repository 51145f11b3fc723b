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


def check_refused(client: httpx.Client, path: str, right: dict[str, Any], name: str, values: list[Any]) -> None:
    """Bodies that differ from a right one in a field which the document forbids are refused, in the document's form."""
    assert is_valid(right, path)
    for value in values:
        body = {**right, name: value}
        assert not is_valid(body, path), body
        answer = client.post(path, json=body)
        assert answer.status_code in (400, 404), body
        check_answer(answer, path)


def check_answered(client: httpx.Client, path: str, right: dict[str, Any], name: str, values: list[Any]) -> None:
    """Bodies that differ from a right one in a field which the document allows are answered."""
    for value in values:
        body = {**right, name: value}
        assert is_valid(body, path), body
        answer = client.post(path, json=body)
        assert answer.status_code == 200, (body, answer.text)
        check_answer(answer, path)
