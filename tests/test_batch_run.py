"""Runs of batch files: each line answered once, as it would be alone, and its failure its own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kaishu
from kaishu.batch_file import BatchOutput, read_batch
from kaishu.batch_run import Totals, run_batch
from kaishu.engine.core import EngineSettings
from kaishu.errors import QueueFullError
from kaishu.llm import LLM
from kaishu.loading import load_model

CHAT, COMPLETIONS, EMBEDDINGS = "/v1/chat/completions", "/v1/completions", "/v1/embeddings"
TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {"type": "object", "properties": {"city": {"enum": ["Paris", "北京"]}}, "required": ["city"]},
    },
}


@pytest.fixture(scope="module")
def llm() -> kaishu.LLM:
    return kaishu.LLM("tiny", threads=1)


def user(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


def request(custom_id: str, url: str, **body: Any) -> dict[str, Any]:
    return {"custom_id": custom_id, "method": "POST", "url": url, "body": {"model": "tiny", **body}}


@pytest.fixture
def run(llm, tmp_path):
    """`run(lines…)`: the totals, and by custom_id (or line number) each answer that is in the output now."""

    def run(*lines: Any, llm: LLM = llm, model: str | None = "tiny", **options: Any) -> tuple[Totals, dict[Any, Any]]:
        requests, answers = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
        requests.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines))
        with BatchOutput(answers) as output:
            totals = run_batch(llm, read_batch(requests), output, model=model, **options)
        return totals, answers_in(answers)

    return run


def answers_in(path: Path) -> dict[Any, Any]:
    found: dict[Any, Any] = {}
    for text in path.read_text().splitlines():
        answer = json.loads(text)
        key = answer["custom_id"] if answer["custom_id"] is not None else answer["error"]["line"]
        assert key not in found, "a line is answered once"
        found[key] = answer
    return found


def body_of(answer: Any) -> Any:
    assert answer["response"]["status_code"] == 200 and answer["error"] is None, answer
    return answer["response"]["body"]


def test_chats_are_answered_as_alone(run, llm):
    options = [
        {"temperature": 1, "seed": place, "max_tokens": 30, "n": 1 + place % 3, "logprobs": True, "top_logprobs": 2}
        for place in range(12)
    ]
    lines = [request(f"q{place}", CHAT, messages=user(f"{place}+30=?"), **said) for place, said in enumerate(options)]
    totals, answers = run(*lines)
    assert (totals.answered, totals.failed, totals.skipped) == (12, 0, 0) and set(answers) == {
        f"q{place}" for place in range(12)
    }
    for place, said in enumerate(options):
        alone = llm.chat(user(f"{place}+30=?"), temperature=1, seed=place, max_tokens=30, n=said["n"], logprobs=2)
        body = body_of(answers[f"q{place}"])
        choices = (alone, *alone.alternatives)
        assert len(body["choices"]) == len(choices)
        for choice, expected in zip(body["choices"], choices, strict=True):
            message = choice["message"]
            assert (message["content"], message.get("reasoning_content", "")) == (expected.content, expected.reasoning)
            assert choice["finish_reason"] == expected.finish_reason
            said_logprobs = [entry["logprob"] for entry in choice["logprobs"]["content"]]
            assert said_logprobs == [position.chosen.logprob for position in expected.logprobs]
        assert body["usage"]["completion_tokens"] == alone.usage.completion_tokens and body["model"] == "tiny"
    assert totals.completion_tokens == sum(body_of(a)["usage"]["completion_tokens"] for a in answers.values())


def test_completions_of_texts_ids_and_many_prompts_are_answered_as_alone(run, llm):
    ids = llm.tokenizer.encode("Once")
    _, answers = run(
        request("one", COMPLETIONS, prompt="Once", max_tokens=5),
        request("ids", COMPLETIONS, prompt=ids, max_tokens=5),
        request("many", COMPLETIONS, prompt=["Once", "从前"] * 200, max_tokens=3, n=2, temperature=1, seed=4),
        request("default", COMPLETIONS, prompt="Once", ignore_eos=True),
    )
    alone = llm.generate("Once", max_tokens=5).text
    assert body_of(answers["one"])["choices"][0]["text"] == body_of(answers["ids"])["choices"][0]["text"] == alone
    texts = [choice["text"] for choice in body_of(answers["many"])["choices"]]
    pair = [llm.generate(text, max_tokens=3, n=2, temperature=1, seed=4) for text in ("Once", "从前")]
    expected = [one.text for answer in pair for one in (answer, *answer.alternatives)]
    assert texts == expected * 200
    assert [choice["index"] for choice in body_of(answers["many"])["choices"]] == list(range(800))
    assert body_of(answers["default"])["usage"]["completion_tokens"] == 16


def test_an_echo_scores_the_prompt(run, llm):
    _, answers = run(request("e", COMPLETIONS, prompt="Once upon a time", max_tokens=1, echo=True, logprobs=1))
    (choice,) = body_of(answers["e"])["choices"]
    ids = llm.tokenizer.encode("Once upon a time")
    alone = llm.generate("Once upon a time", max_tokens=1)
    assert choice["text"] == "Once upon a time" + alone.text == "".join(choice["logprobs"]["tokens"])
    logits = llm.logits(ids).astype(np.float64)[:, : llm.tokenizer.vocab_size]
    log_sums = np.log(np.exp(logits - logits.max(-1, keepdims=True)).sum(-1)) + logits.max(-1)
    expected = [logits[place, token] - log_sums[place] for place, token in enumerate(ids[1:])]
    assert choice["logprobs"]["token_logprobs"][0] is None
    np.testing.assert_allclose(choice["logprobs"]["token_logprobs"][1 : len(ids)], expected, atol=1e-4)


def test_embeddings_are_those_of_llm_embed(run, llm):
    texts = [f"text {place}" for place in range(40)]
    _, answers = run(
        request("all", EMBEDDINGS, input=texts, dimensions=7),
        *(request(text, EMBEDDINGS, input=text, dimensions=7) for text in texts),
    )
    expected = llm.embed(texts, dimensions=7)
    found = np.array([entry["embedding"] for entry in body_of(answers["all"])["data"]], np.float32)
    np.testing.assert_array_equal(found, expected)
    single = [body_of(answers[text])["data"][0]["embedding"] for text in texts]
    np.testing.assert_array_equal(np.array(single, np.float32), expected)


def test_forms_and_calls_are_kept_to(run):
    schema = {"type": "object", "properties": {"sum": {"enum": [42, 43]}}, "required": ["sum"]}
    schema["additionalProperties"] = False
    asked = {"messages": user("12+30=?"), "reasoning_effort": "none", "temperature": 1, "seed": 1}
    described = {"type": "json_schema", "json_schema": {"name": "s", "schema": schema, "strict": True}}
    call = {"type": "function", "function": {"name": "weather"}}
    _, answers = run(
        request("json", CHAT, **asked, response_format=described),
        request("call", CHAT, **asked, tools=[TOOL], tool_choice="required", parallel_tool_calls=False),
        request("named", CHAT, **asked, tools=[TOOL], tool_choice=call),
        request("choice", COMPLETIONS, prompt="x", response_format={"type": "choice", "choice": ["yes", "no"]}),
    )
    assert json.loads(body_of(answers["json"])["choices"][0]["message"]["content"])["sum"] in (42, 43)
    for name in ("call", "named"):
        (choice,) = body_of(answers[name])["choices"]
        (made,) = choice["message"]["tool_calls"]
        assert made["function"]["name"] == "weather" and choice["finish_reason"] == "tool_calls"
        assert json.loads(made["function"]["arguments"])["city"] in ("Paris", "北京")
    assert body_of(answers["choice"])["choices"][0]["text"] in ("yes", "no")


@pytest.mark.parametrize(
    "url, body, param",
    [
        (CHAT, {"messages": []}, "messages"),
        (CHAT, {"messages": "Hi"}, "messages"),
        (CHAT, {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages[0].content[0]"),
        (CHAT, {"messages": user("x " * 3000)}, "messages"),
        (CHAT, {"messages": user("x"), "tools": [{"type": "custom"}]}, "tools[0].type"),
        (CHAT, {"messages": user("x"), "tools": "abc"}, "tools"),
        (CHAT, {"messages": user("x"), "tool_choice": "required"}, "tool_choice"),
        (CHAT, {"messages": user("x"), "tools": [TOOL], "tool_choice": "maybe"}, "tool_choice"),
        (CHAT, {"messages": user("x"), "chat_template_kwargs": {"zzz": 1}}, "chat_template_kwargs.zzz"),
        (CHAT, {"messages": user("x"), "chat_template_kwargs": "x"}, "chat_template_kwargs"),
        (CHAT, {"messages": user("x"), "chat_template_kwargs": {"messages": []}}, "chat_template_kwargs.messages"),
        (CHAT, {"messages": user("x"), "continue_final_message": True}, "messages"),
        (CHAT, {"messages": user("x"), "logit_bias": {"99999999": 1}}, "logit_bias"),
        (CHAT, {"messages": user("x"), "n": 5_000_000}, "n"),
        (CHAT, {"messages": user("x"), "min_tokens": 100_000}, "min_tokens"),
        (CHAT, {"messages": user("x"), "response_format": {"type": "regex", "regex": "("}}, "response_format.regex"),
        (COMPLETIONS, {"prompt": ""}, "prompt"),
        (COMPLETIONS, {"prompt": ["a", ""]}, "prompt"),
        (COMPLETIONS, {"prompt": [-1]}, "prompt"),
        (COMPLETIONS, {"prompt": [999_999]}, "prompt"),
        (EMBEDDINGS, {"input": ["a", ""]}, "input[1]"),
        (EMBEDDINGS, {"input": "x " * 3000}, "input"),
        (EMBEDDINGS, {"input": "x", "stream": True}, "stream"),
        ("/v1/images", {}, "url"),
    ],
)
def test_what_cannot_be_honoured_is_that_lines_error_and_the_others_are_answered(run, url, body, param):
    totals, answers = run(
        request("before", COMPLETIONS, prompt="Once", max_tokens=2),
        request("bad", url, **body),
        request("after", COMPLETIONS, prompt="Once", max_tokens=2),
    )
    assert (totals.answered, totals.failed) == (2, 1)
    response = answers["bad"]["response"]
    assert response["status_code"] == 400 and response["body"]["error"]["param"] == param
    assert body_of(answers["before"])["choices"] == body_of(answers["after"])["choices"]


def test_broken_lines_and_custom_ids_that_were_there_get_errors_by_their_number(run):
    good = request("a", COMPLETIONS, prompt="Once", max_tokens=1)
    totals, answers = run(good, "{", good, "", request("b", COMPLETIONS, prompt="Once", max_tokens=1))
    assert set(answers) == {"a", 2, 3, "b"} and (totals.answered, totals.failed) == (2, 2)
    assert answers[2]["error"]["code"] == "invalid_line" and answers[2]["response"] is None
    totals, again = run(good, "{", good, "", request("b", COMPLETIONS, prompt="Once", max_tokens=1))
    assert again == answers and (totals.skipped, totals.answered, totals.failed) == (4, 0, 0)


def test_another_model_is_not_found_unless_any_will_do(run):
    line = request("a", COMPLETIONS, prompt="Once", max_tokens=1)
    totals, answers = run(line, model="other")
    assert answers["a"]["response"]["status_code"] == 404 and totals.failed == 1
    assert answers["a"]["response"]["body"]["error"]["code"] == "model_not_found"
    _, answers = run(line, request("b", COMPLETIONS, prompt="Once", max_tokens=1, model="x"), model=None)
    assert body_of(answers["b"])["model"] == "x"


def test_a_run_that_is_stopped_leaves_nothing_behind_and_the_next_goes_on(run, llm):
    lines = [request(f"q{place}", COMPLETIONS, prompt=f"{place} Once", max_tokens=1 + place) for place in range(40)]
    told: list[int] = []
    totals, answers = run(*lines, should_stop=lambda: sum(told) >= 5, on_answers=told.append)
    assert totals.is_stopped and 5 <= len(answers) < 40 and sum(told) == len(answers) == totals.answered
    statistics = llm.statistics()
    assert statistics.running == statistics.waiting == statistics.held_pages == 0
    totals, all_answers = run(*lines)
    assert not totals.is_stopped and totals.skipped == len(answers) and len(all_answers) == 40
    for place in range(40):
        alone = llm.generate(f"{place} Once", max_tokens=1 + place).text
        assert body_of(all_answers[f"q{place}"])["choices"][0]["text"] == alone


def test_one_prompts_failure_ends_its_line_alone(run, llm, monkeypatch):
    """NaN in one row of many."""
    poisoned = llm.tokenizer.encode("poison")
    step = llm.executor.step

    def broken_step(batch: Any) -> Any:
        rows = np.array(step(batch))
        for sequence in range(batch.num_sequences):
            span = batch.rows(sequence)
            if batch.token_ids[span].tolist()[: len(poisoned)] == poisoned:
                rows[[place for place, row in enumerate(batch.logit_rows) if span.start <= row < span.stop]] = np.nan
        return rows

    monkeypatch.setattr(llm.executor, "step", broken_step)
    totals, answers = run(
        request("good", COMPLETIONS, prompt=["Once", "Twice"], max_tokens=20),
        request("bad", COMPLETIONS, prompt=["Once", "poison", "Twice"], max_tokens=20),
    )
    assert answers["bad"]["response"]["status_code"] == 500 and totals.failed == 1
    assert answers["bad"]["response"]["body"]["error"]["code"] == "numerical_error"
    assert len(body_of(answers["good"])["choices"]) == 2
    assert llm.statistics().held_pages == 0


def test_a_bug_of_ours_is_that_lines_error_without_its_inside(run, llm, monkeypatch):
    chat = llm.prompting.chat

    def failing_chat(request: Any, params: Any) -> Any:
        if params.seed == 13:
            raise ZeroDivisionError("secret")
        return chat(request, params)

    monkeypatch.setattr(llm.prompting, "chat", failing_chat)
    _, answers = run(
        request("bad", CHAT, messages=user("x"), seed=13), request("good", CHAT, messages=user("x"), max_tokens=1)
    )
    assert answers["bad"]["response"]["status_code"] == 500
    assert "secret" not in json.dumps(answers["bad"]) and body_of(answers["good"])


def test_a_full_queue_is_waited_for(run):
    small = LLM.of(load_model("tiny", threads=1), EngineSettings(max_waiting=2))
    with pytest.raises(QueueFullError):
        for _ in range(9):
            small.engine.core.add(small.prompting.completion("x", kaishu.SamplingParams(max_tokens=1)))
    small = LLM.of(load_model("tiny", threads=1), EngineSettings(max_waiting=2))
    totals, _ = run(*(request(f"q{n}", COMPLETIONS, prompt="Once", max_tokens=3, n=5) for n in range(20)), llm=small)
    assert totals.answered == 20
