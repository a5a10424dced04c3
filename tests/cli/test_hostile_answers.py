"""Tests that every episode that is written can be read, whatever numbers an endpoint's answers have."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from starlette.responses import Response

from rolegraph.engine.records.episodes import read_episodes
from tests.cli.conftest import Command, rolegraph
from tests.models.edges import chat_answer, serving

__all__ = ["rolegraph"]
SPEC = """rolegraph: 2
name: rw
data: {validation: {file: raw.jsonl, hidden: [answer]}}
roles:
  solver:
    prompt: "{{ task.question }}"
    parser: text
    reward: {exact_match: {field: answer}}
"""


def scored(*logprobs: object, ids: object = (5,), **whole: Any) -> Mapping[str, Any]:
    """Return the parts of an answer with these values as log-probabilities and token ids."""
    content = [it if it is None else {"token": "t", "logprob": it} for it in logprobs]
    return {
        "choice": {"logprobs": {"content": content}, "token_ids": ids},
        "prompt_token_ids": [1, 2],
        **whole,
    }


def usage(prompt: object, completion: object) -> Mapping[str, Any]:
    return {"usage": {"prompt_tokens": prompt, "completion_tokens": completion}}


HOSTILE: Mapping[str, tuple[Mapping[str, Any], list[str]]] = {
    "bigint": (usage(10**4000, 10**300), ["prompt_tokens", "completion_tokens"]),
    "usage of floats": (usage(5.5, -1), ["prompt_tokens", "completion_tokens"]),
    "nan": (scored(float("nan")), ["log-probability nan"]),
    "-inf": (scored(float("-inf")), ["log-probability -inf"]),
    "positive": (scored(99999), ["log-probability 99999"]),
    "null": (scored(-0.5, None, ids=[5, 6]), ["log-probability None"]),
    "no ids": (scored(-0.5, float("-inf"), ids=None), ["log-probability -inf"]),
    "too few": (scored(-0.5, ids=[5, 6]), ["1 log-probabilities"]),
    "text": (scored("-0.5", ids=["5"]), ["token id '5'", "log-probability '-0.5'"]),
    "ids": (scored(-0.5, ids=[10**26], prompt_token_ids=[-1, 2]), ["token id -1", "token id 1000"]),
}  # fmt: skip
GOOD: Mapping[str, Mapping[str, Any]] = {
    "rounded": scored(-1e-7, 1e-7, ids=[5, 6]),
    "whole floats": usage(5.0, "7"),
    "other forms": {"choice": {"logprobs": {"tokens": ["a"], "token_logprobs": [-0.1]}}},
    "control": {"message": {"content": "\x1b]0;pwn\x07\x1b[2J4\u202e\x00"}},
    "calls": {"message": {"tool_calls": [{"id": "x" * 100_000, "function": {"name": "n" * 100_000}}]}},
}


def answer(body: Mapping[str, Any]) -> Response:
    name = body["messages"][-1]["content"]
    return chat_answer("4", **(HOSTILE[name][0] if name in HOSTILE else GOOD[name]))


def test_every_episode_that_is_written_is_read_resumed_compared_viewed_and_replayed(
    rolegraph: Command, tmp_path: Path
) -> None:
    rows = [{"question": name, "answer": "4"} for name in (*HOSTILE, *GOOD)]
    (tmp_path / "raw.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "rw.yaml").write_text(SPEC)
    with serving(answer) as endpoint:
        done = rolegraph(
            "run", "rw.yaml", "--model", "openai:tiny", "--base-url", endpoint.base_url, "--out", "r"
        )
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("no record can hold") == 1
    assert f"unusable_numbers {len(HOSTILE)}" in " ".join(done.stdout.split())

    steps = {
        it.task["question"]: it["solver"][0].steps[0] for it in read_episodes(tmp_path / "r/episodes.jsonl")
    }
    for name, (_, named) in HOSTILE.items():
        described = steps[name].metadata.get("unusable_numbers", ())
        assert [it.startswith(words) for it, words in zip(described, named, strict=True)] == [True] * len(
            named
        ), name
        assert (steps[name].model_response, len(steps[name].logprobs), steps[name].usage) == (
            "4",
            name == "ids",
            {},
        ), name
    assert [*steps["rounded"].logprobs] == [-1e-7, 1e-7]
    assert steps["whole floats"].usage == {"prompt_tokens": 5, "completion_tokens": 7}
    assert not any("unusable_numbers" in steps[name].metadata for name in GOOD)

    figures = json.loads((tmp_path / "r/run.json").read_text())["figures"]
    assert figures["unusable_numbers/solver"] == len(HOSTILE)
    for words in (
        ["run", "--resume", "--out", "r"],
        ["compare", "r", "r"],
        ["view", "r", "--static", "v.html", "--hidden"],
        ["run", "rw.yaml", "--model", "replay:r", "--out", "again"],
    ):
        done = rolegraph(*words)
        assert done.returncode == 0, done.stderr
    again = [it["solver"][0].steps[0] for it in read_episodes(tmp_path / "again/episodes.jsonl")]
    assert sum("unusable_numbers" in step.metadata for step in again) == len(HOSTILE)


def test_answers_that_are_cut_off_are_counted_with_the_setting_that_raises_the_limit(
    rolegraph: Command, tmp_path: Path
) -> None:
    (tmp_path / "raw.jsonl").write_text(
        '{"question": "a", "answer": "4"}\n{"question": "b", "answer": "4"}\n'
    )
    (tmp_path / "rw.yaml").write_text(SPEC)

    def cut(body: Mapping[str, Any]) -> Response:
        return chat_answer("4", finish="length" if body["messages"][-1]["content"] == "a" else "stop")

    with serving(cut) as endpoint:
        words = ("rw.yaml", "--model", "openai:tiny", "--base-url", endpoint.base_url, "--out", "r")
        done = rolegraph("run", *words, "--json")
        document = json.loads(done.stdout)
        assert document["roles"]["solver"]["truncated"] == 1
        shown = rolegraph("run", "--resume", "--out", "r").stdout
    assert "truncated 1" in " ".join(shown.split())
    assert "solver truncated: cut off at the limit of tokens; raise sampling.max_tokens" in shown
    assert json.loads((tmp_path / "r/run.json").read_text())["figures"]["truncated/solver"] == 1
