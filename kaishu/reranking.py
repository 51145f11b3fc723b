"""Documents put in order for a query, in the way of Qwen3-Reranker (Zhang et al., 2025, arXiv:2506.05176).

Owns the question that such a model was trained to judge, and the score: of "yes" and "no" as its next token, how likely
"yes" is. The prompt's text is the model card's, to the character. What callers give stays text, whatever it looks like.
The engine makes steps of many texts. Called by llm.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from kaishu.errors import InvalidRequestError, NumericalError
from kaishu.many_texts import RowsOf, check_leaves_room, check_one, check_truth, checked_texts, fitted
from kaishu.results import RerankResult
from kaishu.text.long_texts import check_far_too_long, encode_beginning
from kaishu.text.template import RenderedPrompt
from kaishu.text.tokenizer import Tokenizer

DEFAULT_INSTRUCT = "Given a web search query, retrieve relevant passages that answer the query"
BEFORE = (
    "<|im_start|>system\n"
    "Judge whether the Document meets the requirements based on the Query and the Instruct provided. "
    'Note that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n'
)
AFTER = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
CONTROL_TOKENS = ("<|im_start|>", "<|im_end|>", "<think>", "</think>")


def rerank(
    rows_of: Callable[[Sequence[int]], RowsOf],
    tokenizer: Tokenizer,
    query: str,
    documents: object,
    instruct: str | None,
    *,
    context_tokens: int,
    truncate: bool,
) -> list[RerankResult]:
    """Judge documents; the arguments are those of LLM.rerank.

    rows_of:        given columns of the logits, what computes them, [n, columns]
    context_tokens: how many tokens the question about one document may have
    return:         the best first
    raises:         InvalidRequestError and its kinds; NumericalError
    """
    check_one("query", query)
    instruct = DEFAULT_INSTRUCT if instruct is None else instruct
    check_one("instruct", instruct)
    check_truth("truncate", truncate)
    answers = list(answer_ids(tokenizer))
    ids = reranking_ids(
        tokenizer,
        query,
        checked_texts("documents", documents),
        instruct=instruct,
        context_tokens=context_tokens,
        truncate=truncate,
    )
    return ranked(rows_of(answers)(ids))


def question(query: str, document: str, instruct: str) -> str:
    """What stands between BEFORE and AFTER."""
    return f"<Instruct>: {instruct}\n<Query>: {query}\n<Document>: {document}"


def answer_ids(tokenizer: Tokenizer) -> tuple[int, int]:
    """The tokens of the two answers.

    return: of "yes", of "no"
    raises: InvalidRequestError when one is no single token, or the tokens of the prompt's frame don't exist: then the
            model is no reranker of this kind
    """
    lacking = [token for token in CONTROL_TOKENS if token not in tokenizer.control_tokens]
    answers = [tokenizer.encode_prompt(RenderedPrompt(word)) for word in ("yes", "no")]
    cut = [word for word, ids in zip(("yes", "no"), answers, strict=True) if len(ids) != 1]
    if lacking or cut:
        found = f"has no token {lacking[0]}" if lacking else f'cuts "{cut[0]}" into several tokens'
        raise InvalidRequestError(
            f"This model is no reranker: its tokenizer {found}.",
            field="model",
            hint="Use one that was trained to judge documents, such as Qwen/Qwen3-Reranker-0.6B.",
        )
    return answers[0][0], answers[1][0]


def reranking_ids(
    tokenizer: Tokenizer,
    query: str,
    documents: Sequence[str],
    *,
    instruct: str,
    context_tokens: int,
    truncate: bool,
) -> list[list[int]]:
    """The ids that the model reads for each document.

    query, documents: checked
    truncate:         cut documents that are too long at their end, instead of refusing them
    raises:           ContextLengthError naming the document, or the query that leaves no room for one
    """

    def encode(text: str) -> list[int]:
        return tokenizer.encode_prompt(RenderedPrompt(text, frozenset(range(len(text)))))  # all of it is text

    before, after = (tokenizer.encode_prompt(RenderedPrompt(text)) for text in (BEFORE, AFTER))
    alone = question(query, "", instruct)
    check_far_too_long(tokenizer, alone, context_tokens, field="query")
    check_leaves_room(len(before) + len(encode(alone)) + len(after), context_tokens, field="query")
    prompts = []
    for index, document in enumerate(documents):
        asked = question(query, document, instruct)
        if not truncate:
            check_far_too_long(tokenizer, asked, context_tokens, field=f"documents[{index}]")
        ids = encode_beginning(encode, asked, context_tokens)
        prompts.append(fitted((before, ids, after), context_tokens, field=f"documents[{index}]", truncate=truncate))
    return prompts


def ranked(logits: NDArray[np.float32]) -> list[RerankResult]:
    """Scores from the answers' logits.

    logits: [n, 2] float32, of "yes" and "no" for each document
    return: the best first; equal ones in the order of the documents
    raises: NumericalError naming the document whose logits are no numbers
    """
    wrong = np.flatnonzero(~np.isfinite(logits).all(-1))
    if len(wrong):
        raise NumericalError(f"The model computed NaN or infinity for documents[{wrong[0]}]: there is no score of it.")
    yes, no = logits.astype(np.float64).T  # [n] each
    # The softmax over two logits depends on their difference alone; by way of tanh, it overflows nowhere.
    scores = 0.5 + 0.5 * np.tanh((yes - no) / 2)
    order = np.argsort(no - yes, kind="stable")  # not by scores, which differ less once they are near 1
    return [RerankResult(int(index), float(scores[index])) for index in order]
