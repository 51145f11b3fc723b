"""Bodies that mean no good are refused at once; the server keeps nothing of them, and goes on."""

import time
from collections.abc import Iterator
from functools import cache

import httpx
import pytest

from tests.server.hostile_bodies import FAMILIES, Hostile
from tests.server.separate_server import SeparateServer, separate_server

MAX_GROWTH_MIB = 64
PATIENCE_S = 20  # a second on a machine that has nothing else to do


@cache
def bodies_of(name: str) -> tuple[Hostile, ...]:
    return tuple(FAMILIES[name]())


@pytest.fixture(scope="module")
def warm() -> Iterator[tuple[SeparateServer, float]]:
    """A server that has seen the largest bodies of each family and all that are long, and its memory then, in MiB."""
    with separate_server() as server:
        for name in FAMILIES:
            largest_last = sorted(bodies_of(name), key=lambda one: len(one.content))
            for hostile in largest_last if name == "huge_lists" else largest_last[-2:]:
                send(server, hostile)
        server.check_use()
        yield server, server.mebibytes


def send(server: SeparateServer, hostile: Hostile) -> httpx.Response:
    headers = dict(hostile.headers)
    return server.client.post(hostile.path, content=hostile.content, headers=headers, timeout=PATIENCE_S)


def test_there_are_hundreds_of_them() -> None:
    assert sum(one.refused for name in FAMILIES for one in bodies_of(name)) >= 300


@pytest.mark.parametrize("name", FAMILIES)
def test_hostile_bodies_are_refused_at_once_and_a_usual_request_follows(
    name: str, warm: tuple[SeparateServer, float]
) -> None:
    server, before_mib = warm
    slowest, slowest_said = 0.0, ""
    for hostile in bodies_of(name):
        begin = time.perf_counter()
        answer = send(server, hostile)
        if time.perf_counter() - begin > slowest:
            slowest, slowest_said = time.perf_counter() - begin, hostile.said
        is_refused = 400 <= answer.status_code < 500
        assert is_refused or (answer.status_code == 200 and not hostile.refused), (hostile.said, answer.text[:300])
        if is_refused:
            assert answer.json()["error"]["message"], "it says why"
            assert len(answer.content) < 4096, "what was sent doesn't come back"
    server.check_use()
    assert server.gauge("kaishu_kv_pages_held") == 0
    grown_mib = server.mebibytes - before_mib
    print(
        f"\n{name}: {len(bodies_of(name))} bodies, {grown_mib:+.0f} MiB, slowest {slowest:.2f} s: {slowest_said[:80]}"
    )
    assert grown_mib < MAX_GROWTH_MIB
