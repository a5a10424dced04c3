"""Responses of servers, read into records: forms that are kept, and those that are refused by name."""

from __future__ import annotations

import gc
import json
import re

import pytest

from rolegraph.engine.models.openai_answers import UnreadableAnswer, read_answer


def scored(count: int) -> bytes:
    """Return an answer of `count` tokens with ids and log-probabilities, as vLLM writes one."""
    one = {"token": "a", "bytes": [97], "logprob": -0.5}
    scores = [{**one, "top_logprobs": [one]} for _ in range(count)]
    choice = {
        "index": 0,
        "message": {"role": "assistant", "content": "a" * count},
        "finish_reason": "stop",
        "token_ids": [7] * count,
        "logprobs": {"content": scores},
    }
    return json.dumps({"object": "chat.completion", "choices": [choice]}).encode()


def tracked(root: object) -> int:
    """Count the objects below `root`, classes left out, that the garbage collector walks."""
    found: dict[int, object] = {}
    rest = [root]
    while rest:
        thing = rest.pop()
        if id(thing) not in found and not isinstance(thing, type):
            found[id(thing)] = thing
            rest += gc.get_referents(thing)
    return sum(map(gc.is_tracked, found.values()))


def test_an_answer_gives_the_collector_nothing_to_walk() -> None:
    answer = read_answer(scored(1000))
    assert tracked(answer) < 20
    assert answer.choices
    assert len(answer.choices[0].scores) == len(answer.choices[0].ids) == 1000


@pytest.mark.parametrize("logprob", ["NaN", "-Infinity", "1e400", '"x"', "null", "[]"])
def test_a_log_probability_of_any_form_keeps_the_others(logprob: str) -> None:
    body = scored(3).replace(b'"logprob": -0.5', f'"logprob": {logprob}'.encode(), 1)
    answer = read_answer(body)
    assert answer.choices
    assert [score.logprob for score in answer.choices[0].scores][1:] == [-0.5, -0.5]


@pytest.mark.parametrize(
    "logprobs", ['"x"', "[1]", '{"content": 4}', '{"content": [null, 3]}', '{"tokens": []}']
)
def test_log_probabilities_of_another_form_are_missing(logprobs: str) -> None:
    body = f'{{"choices": [{{"message": {{"content": "a"}}, "logprobs": {logprobs}}}]}}'
    answer = read_answer(body.encode())
    assert answer.choices and answer.choices[0].message
    assert answer.choices[0].message.content.text == "a"
    assert {score.logprob for score in answer.choices[0].scores} <= {None}


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (scored(3)[:-40], "not valid JSON"),
        (scored(3).replace(b'"bytes"', b'"\xff"', 1), "not UTF-8"),
        (scored(3).replace(b'"message": {', b'"message": 4, "x": {', 1), "choices.0.message: "),
        (b'{"choices": {}}', "choices: "),
        (b'{"choices": [null]}', "choices.0: "),
        (b'{"choices": [{}]}', "choices.0 has no message"),
        (b"[" * 5000, "not valid JSON"),
        (b'{"answer": "a"}', "has no choices"),
        (b"null", "no JSON object"),
    ],
)
def test_a_response_that_cannot_be_read_says_why(body: bytes, says: str) -> None:
    with pytest.raises(UnreadableAnswer, match=re.escape(says)):
        read_answer(body)


def test_an_error_beside_choices_is_an_error() -> None:
    answer = read_answer(b'{"object": "error", "message": "busy", "choices": [{"index": 0}]}')
    assert isinstance(answer.error, dict) and answer.error["message"] == "busy"
