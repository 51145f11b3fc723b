"""One step: each request gets its own rows, logits or hidden states, in the order in which it wants them."""

from __future__ import annotations

from kaishu.engine.request import Request
from kaishu.engine.scheduler import Work
from kaishu.engine.step import compute
from tests.scripted import ScriptedExecutor, state_of


def work(number: int, token_ids: list[int], pages: list[int], start: int, end: int, wants: range) -> Work:
    request = Request(number, token_ids, len(token_ids), pages=pages, proposed=[7, 8])
    return Work(request, start, end, wants)


def test_rows_are_cut_apart_as_they_were_wanted() -> None:
    executor = ScriptedExecutor(lambda context: sum(context) % 10, vocab_size=10, page_tokens=4)
    works = [
        work(0, [1, 2, 3], [0], 0, 3, range(2, 3)),
        work(1, [4, 5], [1], 0, 2, range(0)),
        work(2, [6, 1], [2], 0, 2, range(1, 2)),
        work(3, [2, 2], [3], 0, 4, range(1, 4)),  # with what is proposed
    ]
    computed = compute(executor, works, lambda request: request.number == 2)
    assert [one.request.number for one, _ in computed] == [0, 1, 3, 2]
    rows = {one.request.number: rows for one, rows in computed}
    assert rows[0] is not None and rows[0].argmax(1).tolist() == [6] and rows[1] is None
    assert rows[3] is not None and rows[3].argmax(1).tolist() == [4, (4 + 7) % 10, (4 + 7 + 8) % 10]
    assert rows[2] is not None and rows[2].tolist() == [state_of([6, 1]).tolist()]
    assert len(executor.steps) == 2


def test_without_work_nothing_is_computed() -> None:
    executor = ScriptedExecutor(lambda context: 0, vocab_size=10)
    assert compute(executor, [], lambda request: False) == [] and executor.steps == []
