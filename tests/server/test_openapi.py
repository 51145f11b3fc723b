"""The OpenAPI document, beside the specification's own schema, the application's routes and the tables of fields."""

import jsonschema
import pytest
from fastapi.routing import APIRoute
from openapi_spec_validator import OpenAPIV31SpecValidator

from kaishu.server.app import ROUTERS
from kaishu.server.openapi import OPERATIONS, Operation, document
from tests.server.conftest import LiveServer
from tests.server.openapi_document import DOCUMENT, body_schema, check_answer, is_valid

with_body = pytest.mark.parametrize("operation", [one for one in OPERATIONS if one.body], ids=lambda one: one.path)


def test_the_document_is_valid_under_the_specification() -> None:
    OpenAPIV31SpecValidator(DOCUMENT).validate()


@pytest.mark.parametrize("name", DOCUMENT["components"]["schemas"])
def test_every_form_is_a_json_schema(name: str) -> None:
    jsonschema.Draft202012Validator.check_schema(DOCUMENT["components"]["schemas"][name])


def test_every_route_is_described_and_nothing_else() -> None:
    routes = [route for router in ROUTERS for route in router.routes if isinstance(route, APIRoute)]
    found = {
        (method.lower(), route.path.replace(":path}", "}"))
        for route in routes
        for method in route.methods
        if route.include_in_schema or route.path == "/openapi.json"
    }
    assert found == {(operation.method, operation.path) for operation in OPERATIONS}


@with_body
def test_every_field_of_a_route_is_described(operation: Operation) -> None:
    schema = body_schema(operation.path)
    assert operation.body is not None
    assert set(schema["properties"]) == set(operation.body.fields)
    for name, field in operation.body.fields.items():
        if field.use == "read":
            piece = schema["properties"][name]
            assert "description" in piece, f"{name} has no words"
            assert piece.get("type") or piece.get("anyOf") or piece.get("enum"), f"{name} may be anything"


@with_body
def test_the_example_of_each_route_is_answered(operation: Operation, tiny: LiveServer) -> None:
    example = DOCUMENT["paths"][operation.path]["post"]["requestBody"]["content"]["application/json"]["example"]
    assert is_valid(example, operation.path)
    answer = tiny.client.post(operation.path, json=example)
    if operation.path == "/v1/rerank":  # the model here can't; that is the last that is looked at
        assert answer.json()["error"]["message"].startswith("This model is no reranker")
    else:
        assert answer.status_code == 200, answer.text
        check_answer(answer, operation.path)


def test_the_server_gives_the_document_with_the_names_of_its_model(tiny: LiveServer) -> None:
    answer = tiny.client.get("/openapi.json")
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "application/json"
    assert answer.json() == document(tiny.life.ready_service().names)
