"""Requests: their order, and when they decode."""

from __future__ import annotations

from kaishu.engine.request import Request


def test_lower_priorities_go_first_and_of_equals_whoever_came_first() -> None:
    requests = [Request(number, [1], 1, priority=priority) for number, priority in ((3, 0), (1, 5), (2, 0), (4, -1))]
    assert [request.number for request in sorted(requests, key=lambda one: one.place)] == [4, 2, 3, 1]


def test_a_request_decodes_when_only_its_newest_token_is_left() -> None:
    request = Request(0, [1, 2, 3], 3, computed_tokens=2)
    assert request.uncomputed_tokens == 1 and not request.is_decoding  # a prompt's last token is part of its prefill
    request.token_ids.append(4)
    assert request.uncomputed_tokens == 2 and not request.is_decoding
    request.computed_tokens = 3
    assert request.is_decoding


def test_requests_are_told_apart_by_what_they_are_not_by_what_they_hold() -> None:
    first, second = Request(0, [1], 1), Request(0, [1], 1)
    assert first != second and len({first, second}) == 2
