"""What every route asks: whether the server is ready, for which model, and whether a chat isn't too long."""

from __future__ import annotations

import time
from types import SimpleNamespace

import pytest

from kaishu.errors import CheckpointError, InvalidParameterError, ModelNotFoundError
from kaishu.server.metrics import Metrics
from kaishu.server.refusals import RefusedError
from kaishu.server.service import Life, Service, life_of, service_of
from kaishu.server.settings import ServerSettings

SETTINGS = ServerSettings(max_messages=3)


def service() -> Service:
    return Service(SimpleNamespace(), SETTINGS, Metrics(), ("big/model", "small"))


def life(state: str, **fields: object) -> Life:
    made = Life(SETTINGS, Metrics(), lambda *_: service())
    assert made.state == "loading"
    made.state = state
    for name, value in fields.items():
        setattr(made, name, value)
    return made


def test_a_service_knows_when_it_began():
    assert abs(service().created - time.time()) < 100


def test_any_of_the_names_is_the_model_and_no_other():
    service().check_model("big/model")
    service().check_model("small")
    for name in ("", "Small", "big", "small ", "x" * 1000):
        with pytest.raises(ModelNotFoundError, match="allowed: big/model, small") as caught:
            service().check_model(name)
        assert len(caught.value.message) < 200


def test_a_chat_has_so_many_messages_at_most():
    service().check_messages([{}] * 3)
    service().check_messages("what is no list is others' to refuse")
    with pytest.raises(InvalidParameterError, match=r"messages is .*a list of 4.*at most 3 messages"):
        service().check_messages([{}] * 4)


def test_a_server_that_is_ready_gives_its_service():
    made = service()
    assert life("ready", service=made).ready_service() is made


@pytest.mark.parametrize(
    "state, fields, code, words",
    [
        ("loading", {}, "loading", "being loaded"),
        ("draining", {"service": object()}, "draining", "about to stop"),
        ("failed", {"problem": CheckpointError("a tensor is missing")}, "failed", "a tensor is missing"),
        ("failed", {"problem": ZeroDivisionError("secret")}, "failed", "See the server's log"),
    ],
)
def test_a_server_that_is_not_ready_says_why_and_when_to_come_again(state, fields, code, words):
    with pytest.raises(RefusedError, match=words) as caught:
        life(state, **fields).ready_service()
    assert (caught.value.status, caught.value.code) == (503, code)
    assert int(caught.value.headers["Retry-After"]) >= 1 and "secret" not in str(caught.value)


def test_routes_find_it_where_the_application_keeps_it():
    made = life("ready", service=service())
    request = SimpleNamespace(app=SimpleNamespace(state=SimpleNamespace(life=made)))
    assert life_of(request) is made and service_of(request) is made.service
