"""Property: whatever JSON an endpoint answers with, the episode that is written is read back the same."""

from __future__ import annotations

import asyncio
import json
import math
from typing import Any

import httpx
import openai
from hypothesis import given
from hypothesis import strategies as st

from rolegraph.engine.models.openai import OpenAIModel
from rolegraph.engine.records import Episode
from rolegraph.engine.records.jsonl import json_line, parse_json
from rolegraph.engine.run import EpisodeJob, Isolation, run_episode
from tests.edge import COUNTDOWN, limited, solver_judge
from tests.examples import examples

NUMBERS = st.one_of(
    st.none(),
    st.booleans(),
    st.text(max_size=3),
    st.integers(-3, 200_000),
    st.sampled_from([2**31, 2**53, 2**53 + 1, 2**64, 10**400, -(10**30)]),
    st.floats(),
    st.sampled_from([math.nan, math.inf, -math.inf, 1e300, -1e300, -0.0, 1e-7, 5.0]),
    st.lists(st.integers(-1, 3), max_size=2),
)
LISTS = st.one_of(
    st.none(), st.text(max_size=2), st.lists(NUMBERS, max_size=4), st.lists(st.integers(0, 9), max_size=4)
)
ENTRIES = st.one_of(
    NUMBERS,
    st.fixed_dictionaries({"logprob": st.one_of(NUMBERS, st.floats(-9, 0))}, optional={"id": NUMBERS}),
)
CALLS = st.fixed_dictionaries(
    {
        "id": st.one_of(st.none(), st.text(max_size=9), st.integers()),
        "function": st.fixed_dictionaries(
            {
                "name": st.text(),
                "arguments": st.one_of(st.text(), st.dictionaries(st.text(max_size=3), NUMBERS, max_size=2)),
            }
        ),
    }
)
ANSWERS = st.fixed_dictionaries(
    {
        "choices": st.tuples(
            st.fixed_dictionaries(
                {
                    "message": st.fixed_dictionaries(
                        {"content": st.text()}, optional={"tool_calls": st.lists(CALLS, max_size=2)}
                    )
                },
                optional={
                    "finish_reason": st.one_of(NUMBERS, st.sampled_from(["stop", "length"])),
                    "logprobs": st.one_of(
                        NUMBERS,
                        st.fixed_dictionaries({"content": st.one_of(NUMBERS, st.lists(ENTRIES, max_size=4))}),
                    ),
                    "token_ids": LISTS,
                    "prompt_token_ids": LISTS,
                    "provider_specific_fields": st.one_of(
                        NUMBERS, st.fixed_dictionaries({"token_ids": LISTS})
                    ),
                },
            )
        )
    },
    optional={
        "usage": st.one_of(
            NUMBERS, st.dictionaries(st.sampled_from(["prompt_tokens", "completion_tokens"]), NUMBERS)
        ),
        "prompt_token_ids": LISTS,
    },
)
PLAN = solver_judge()


async def episode_of(answer: Any) -> Episode:
    """Run an episode whose model calls an endpoint that gives `answer` to every call."""

    def respond(_: httpx.Request) -> httpx.Response:
        return httpx.Response(200, content=json.dumps(answer).encode())

    http = httpx.AsyncClient(transport=httpx.MockTransport(respond))
    async with openai.AsyncOpenAI(api_key="k", base_url="http://127.0.0.1/v1", http_client=http) as client:
        models = limited(PLAN, OpenAIModel(client, "tiny"))
        return await run_episode(PLAN, EpisodeJob(COUNTDOWN), models, isolation=Isolation())


@examples(150)
@given(ANSWERS)
def test_an_episode_of_any_answer_is_read_back_as_it_was_written(answer: Any) -> None:
    line = json_line(asyncio.run(episode_of(answer)).to_dict())
    again = Episode.from_dict(parse_json(line))
    assert parse_json(json_line(again.to_dict())) == parse_json(line)
    steps = [step for trajectory in again.trajectories for step in trajectory.steps]
    assert steps, "the answer counts, whatever its numbers"
    assert all(math.isfinite(logprob) and logprob < 0.1 for step in steps for logprob in step.logprobs)
