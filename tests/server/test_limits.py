"""Limits against their definition: in any span of time a minute's requests at most, and the span's share of more."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from kaishu.server.limits import Limits
from kaishu.server.refusals import RefusedError

CLIENTS = st.sampled_from(["alice", "bob", "carol"])
PER_MINUTE, CONCURRENT = 4, 3


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def refused(limits: Limits, client: str) -> RefusedError:
    with pytest.raises(RefusedError) as caught:
        limits.enter(client)
    assert caught.value.status == 429
    return caught.value


class LimitsMachine(RuleBasedStateMachine):
    """The model is a list of what was let in, and the definition of a token bucket looked up in it."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = Clock()
        self.limits = Limits(PER_MINUTE, CONCURRENT, clock=self.clock)
        self.let_in: dict[str, list[float]] = {}
        self.running: dict[str, int] = {}

    def may_enter(self, client: str, at: float) -> bool:
        times = [*self.let_in.get(client, []), at]
        spans = ((len(times) - first, at - times[first]) for first in range(len(times)))
        return all(count <= PER_MINUTE + seconds * PER_MINUTE / 60 for count, seconds in spans)

    @rule(client=CLIENTS)
    def a_request_begins(self, client: str) -> None:
        if self.running.get(client, 0) >= CONCURRENT:
            assert refused(self.limits, client).code == "too_many_concurrent_requests"
        elif not self.may_enter(client, self.clock.now):
            refusal = refused(self.limits, client)
            assert refusal.code == "rate_limit_exceeded"
            after = int(refusal.headers["Retry-After"])
            assert after >= 1 and self.may_enter(client, self.clock.now + after)
            assert after == 1 or not self.may_enter(client, self.clock.now + after - 1)
        else:
            self.limits.enter(client)
            self.let_in.setdefault(client, []).append(self.clock.now)
            self.running[client] = self.running.get(client, 0) + 1

    @precondition(lambda self: any(self.running.values()))
    @rule(data=st.data())
    def a_request_ends(self, data: Any) -> None:
        client = data.draw(st.sampled_from([client for client, count in self.running.items() if count]))
        self.limits.leave(client)
        self.running[client] -= 1

    @rule(eighths=st.integers(1, 8 * 90))
    def time_passes(self, eighths: int) -> None:
        self.clock.now += eighths / 8  # exact in binary, as is a share of 15 s

    @invariant()
    def only_who_has_asked_is_known(self) -> None:
        assert self.limits.num_known == len(self.let_in)


LimitsMachine.TestCase.settings = settings(max_examples=150, stateful_step_count=40)
TestLimits = LimitsMachine.TestCase


def test_without_limits_everything_goes() -> None:
    limits = Limits(None, None)
    for _ in range(1000):
        limits.enter("alice")


def test_a_minutes_requests_may_come_at_once_and_then_one_for_each_share() -> None:
    clock = Clock()
    limits = Limits(60, None, clock=clock)
    for _ in range(60):
        limits.enter("alice")
    assert refused(limits, "alice").headers == {"Retry-After": "1"}
    clock.now += 1.0
    limits.enter("alice")
    refused(limits, "alice")
    limits.enter("bob")  # it is no matter of his


@pytest.mark.parametrize("per_minute", [1, 7, 11, 97, 1000])
def test_roundings_take_no_request_away(per_minute: int) -> None:
    clock = Clock()
    limits = Limits(per_minute, None, clock=clock)
    for minute in range(3):
        clock.now = 1e6 + minute * 60.0
        for _ in range(per_minute):
            limits.enter("alice")
        refused(limits, "alice")


def test_a_refused_request_is_counted_nowhere() -> None:
    clock = Clock()
    limits = Limits(2, 1, clock=clock)
    limits.enter("alice")
    for _ in range(10):
        refused(limits, "alice")
    limits.leave("alice")
    limits.enter("alice")
    limits.leave("alice")
    assert refused(limits, "alice").headers == {"Retry-After": "30"}
    for number in range(10):
        refused_client = f"late-{number}"
        limits.enter(refused_client)
        limits.leave(refused_client)
    assert limits.num_known == 11


def test_of_many_addresses_the_ones_that_asked_longest_ago_are_forgotten() -> None:
    clock = Clock()
    limits = Limits(1, 1, clock=clock, most_known=100)
    limits.enter("busy")
    for number in range(10_000):
        limits.enter(f"address-{number}")
        limits.leave(f"address-{number}")
    assert limits.num_known == 101, "a hundred, and the one that is being answered"
    refused(limits, "busy")
    refused(limits, "address-9999")
    refused(limits, "address-9900")
    limits.enter("address-9899")  # forgotten
