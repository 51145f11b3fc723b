"""What the sampler must do, written plainly from the definition: sort everything, softmax in float64. Slow, and the
oracle of the tests here."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray


def distribution(
    logits: NDArray[np.floating],
    temperature: float,
    top_k: int = 0,
    top_p: float = 1.0,
    min_p: float = 0.0,
    slack: float = 0.0,
) -> dict[int, float]:
    """Token id → probability, of the tokens that may be drawn.

    logits: [V], -inf where no token may come
    slack:  added to the share where top-p ends; see `either_side`
    """
    exact = logits.astype(np.float64)
    order = np.lexsort((np.arange(len(exact)), -exact))
    order = order[exact[order] > -np.inf]
    order = order[:top_k] if top_k > 0 else order
    with np.errstate(over="ignore"):
        weights = np.exp((exact[order] - exact[order[0]]) / temperature)
    probabilities = weights / weights.sum()
    if top_p < 1.0:
        before = np.cumsum(probabilities) - probabilities
        inside = before < top_p + slack
        inside[0] = True
        order, probabilities, weights = order[inside], probabilities[inside], weights[inside]
    likely = weights >= min_p
    order, probabilities = order[likely], probabilities[likely]
    return dict(zip(order.tolist(), (probabilities / probabilities.sum()).tolist(), strict=True))


def either_side(logits: NDArray[np.floating], *rules: float) -> tuple[set[int], set[int]]:
    """The tokens that surely may be drawn, and with them those that are on top-p's edge to the last bits.

    A token belongs if those before it have less than p, and a sum that equals p but for rounding may be on either side.
    """
    return set(distribution(logits, *rules, slack=-1e-12)), set(distribution(logits, *rules, slack=1e-12))


def changed(
    logits: NDArray[np.floating],
    *,
    prompt: Sequence[int] = (),
    output: Sequence[int] = (),
    repetition: float = 1.0,
    presence: float = 0.0,
    frequency: float = 0.0,
    bias: Mapping[int, float] | None = None,
) -> NDArray[np.float64]:
    """The logits after bias, repetition penalty, and the penalties for presence and frequency."""
    exact = logits.astype(np.float64)
    for token_id, value in (bias or {}).items():
        exact[token_id] += value
    for token_id in {*prompt, *output}:
        exact[token_id] = exact[token_id] / repetition if exact[token_id] > 0 else exact[token_id] * repetition
    for token_id, count in Counter(output).items():
        exact[token_id] -= frequency * count + presence
    return exact


def mask_of(token_ids: Iterable[int], words: int, dtype: type = np.uint32) -> NDArray[np.integer]:
    """A grammar's mask, bit by bit."""
    bits = [0] * words
    for token_id in token_ids:
        bits[token_id // 32] |= 1 << (token_id % 32)
    return np.array(bits, np.uint32).view(dtype)


def chi_square_is_small(draw: Callable[[], int], expected: Mapping[int, float], draws: int) -> bool:
    """Whether draws follow a distribution: a chi-square at p = 0.001, rare tokens together in one class."""
    counts = Counter(draw() for _ in range(draws))
    assert counts.keys() <= expected.keys(), "a token came that may not"
    common = [i for i, probability in expected.items() if probability * draws >= 10]
    observed = [counts[i] for i in common]
    wanted = [expected[i] * draws for i in common]
    if sum(wanted) < draws - 1e-6:
        observed.append(draws - sum(observed))
        wanted.append(draws - sum(wanted))
        if wanted[-1] < 5:
            observed[:2], wanted[:2] = [observed[0] + observed.pop()], [wanted[0] + wanted.pop()]
    statistic = sum((o - w) ** 2 / w for o, w in zip(observed, wanted, strict=True))
    freedom = len(wanted) - 1
    if freedom <= 0:
        return True
    # Wilson and Hilferty (1931): the cube root of chi-square / freedom is nearly normal.
    z = ((statistic / freedom) ** (1 / 3) - (1 - 2 / (9 * freedom))) / (2 / (9 * freedom)) ** 0.5
    return z < 3.09
