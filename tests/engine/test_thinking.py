"""Where an output stands with its thinking: what begins and ends a thought, and when its end is due."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from kaishu.engine.thinking import ThinkingProgress, ThinkingTokens
from kaishu.text.tokenizer import Tokenizer

TOKENS = ThinkingTokens(start=100, end=101, closing=(10, 101, 11), gap=(11,))


def test_the_tokens_are_those_with_which_the_model_ends_a_thought_itself(
    qwen3: Tokenizer, byte_tokenizer: Tokenizer
) -> None:
    for tokenizer in (qwen3, byte_tokenizer):
        tokens = ThinkingTokens.of(tokenizer)
        assert tokens is not None and tokenizer.decode([tokens.start]) == "<think>"
        assert tokenizer.decode(tokens.closing) == "\n</think>\n\n" and tokenizer.decode(tokens.gap) == "\n\n"
        assert tokens.end in tokens.closing and tokens.end == tokenizer.control_tokens["</think>"]
    nothing: Any = SimpleNamespace(control_tokens={"<|im_end|>": 5})
    assert ThinkingTokens.of(nothing) is None


def test_a_thought_is_counted_without_its_tags() -> None:
    progress = ThinkingProgress("none", TOKENS, None)
    assert (progress.place, progress.start_token) == ("before", 100)
    progress.push(9, is_blank=True)
    assert progress.place == "before"
    for token_id, place in ((100, "inside"), (1, "inside"), (100, "inside"), (101, "over"), (100, "over"), (1, "over")):
        progress.push(token_id)
        assert progress.place == place
    assert progress.num_tokens == 2 and progress.start_token is None


def test_what_begins_with_text_has_no_thought() -> None:
    progress = ThinkingProgress("none", TOKENS, 0)
    progress.push(5)
    progress.push(100)
    assert (progress.place, progress.num_tokens, progress.due()) == ("over", 0, ())


@pytest.mark.parametrize(("begins", "place"), [("open", "inside"), ("closed", "over"), ("none", "before")])
def test_it_begins_where_the_prompt_ends(begins: Any, place: str) -> None:
    assert ThinkingProgress(begins, TOKENS, None).place == place
    assert ThinkingProgress(begins, None, None).place == "over"


@pytest.mark.parametrize("budget", [0, 1, 3])
def test_the_end_is_due_when_the_budget_is_used_up(budget: int) -> None:
    progress = ThinkingProgress("open", TOKENS, budget)
    for _ in range(budget):
        assert progress.due() == ()
        progress.push(1)
    assert progress.due() == TOKENS.closing
    for token_id in TOKENS.closing:
        progress.push(token_id)
    assert progress.due() == () and progress.place == "over"


def test_a_thought_that_ends_in_time_is_left_alone() -> None:
    progress = ThinkingProgress("open", TOKENS, 3)
    for token_id in (1, 2, 101, 4, 5, 6):
        progress.push(token_id)
        assert progress.due() == ()


def test_a_thought_can_be_told_to_stop_before_it_began_and_while_it_runs() -> None:
    running, coming, over = (ThinkingProgress(begins, TOKENS, None) for begins in ("open", "none", "closed"))
    for progress in (running, coming, over):
        progress.stop()
    assert running.due() == TOKENS.closing and coming.due() == () == over.due()
    coming.push(100)
    assert coming.due() == TOKENS.closing


def test_without_tokens_for_thinking_nothing_is_ever_due() -> None:
    progress = ThinkingProgress("open", None, 0)
    progress.stop()
    progress.push(101)
    assert (progress.due(), progress.gap, progress.start_token, progress.num_tokens) == ((), (), None, 0)
