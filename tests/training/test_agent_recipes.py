"""Tests that train the recipes of an agent with several kinds of turn, and of one that changes a database."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from rolegraph.engine.records import Episode
from tests.models.edges import served
from tests.training.edge import STEPS, Training
from tests.training.test_recipes import calling, of, recipe, trained


def test_a_cto_remembers_its_design_and_its_reviews(training: Training, tmp_path: Path) -> None:
    pytest.importorskip("pydantic_monty")
    recipe(training, tmp_path, "ChatDev")
    training.allow = ("python",)

    def answers(prompt: str, seed: int) -> str:
        said = {
            "Design the program": f"Plan {seed}.",
            "Write the program": f"```python\ndef f(x): return {'x + 1' if seed % 3 else 1}\n```",
            "Is it your design": "It is done." if seed % 2 else f"Not {seed}.",
            "Write the manual": "It adds.",
        }
        return said[max(said, key=prompt.rfind)]

    training.workflow.answers = answers
    episodes = trained(training, steps=STEPS)
    assert len({len(episode["review"][0].steps) for episode in episodes}) > 1, "some are done at once"
    for episode in episodes:
        (design,), (review,), (manual,) = (episode[name] for name in ("design", "review", "manual"))
        turns = [*design.steps, *review.steps, *manual.steps]
        for before, step in pairwise(turns):
            sent = step.chat_completions[:-2]
            assert [*sent] == [*before.chat_completions], "each turn continues the conversation"
            so_far = (*before.prompt_ids, *before.response_ids)
            assert tuple(step.prompt_ids[: len(so_far)]) == so_far, "token for token"
        assert [m["role"] for m in manual.steps[0].chat_completions].count("system") == 1
        (coder,) = episode["coder"]
        assert design.reward == review.reward == coder.reward == float(episode.is_correct)
    everything = [e for number in range(1, STEPS + 1) for e in training.episodes("train", number)]
    learnt = [t for e in everything for t in e.trajectories if any(step.advantage for step in t.steps)]
    assert {t.name for t in learnt} >= {"design", "review", "coder"}
    sent = [datum for body in training.service.asked_for("forward_backward") for datum in body["data"]]
    assert len(sent) == len(learnt), "the turns of one role are one datum, whoever spoke between them"


def test_an_agent_is_paid_for_the_state_of_a_database(training: Training, tmp_path: Path) -> None:
    """Let the agent cancel the wanted order, another, or one that is sent; each episode has its database."""
    pytest.importorskip("mcp", reason="needs the extra `mcp`")
    from tests.integrations.mcp.server import running
    from tests.shop import shop

    calling(training, tmp_path, "tau-bench")
    prompts: list[str] = []

    def answers(prompt: str, seed: int) -> str:
        prompts.append(prompt)
        if "You are a customer" in prompt:
            return "STOP" if "I am done" in prompt else "Please cancel order 7."
        if "<tool_response>" not in prompt:
            call = {"name": "cancel_order", "arguments": {"order": (7, 8, 9)[seed % 3]}}
            return f"<tool_call>{json.dumps(call)}</tool_call>"
        return "I am done."

    training.workflow.answers = answers
    with running(shop()) as url:
        training.allow = (url,)
        own = (f"roles.agent.tools=[{{mcp: '{url}'}}]", "roles.customer.policy=main")
        episodes = trained(training, *own)
    found = [orders(episode) for episode in episodes]
    assert {*found} == {"7", "8", ""}, "an order that is sent stays as it is"
    for episode, cancelled in zip(episodes, found, strict=True):
        (agent,), (state,) = episode["agent"], of(episode, "state")
        assert agent.reward == state.reward == float(cancelled == "7")
        assert state.action.keys() == {"7", "8", "9"}
    asked = [prompt for prompt in prompts if "You serve" in prompt]
    assert all("cancel_order" in prompt and "get_state" not in prompt for prompt in asked)
    assert not any("You want to cancel" in prompt for prompt in asked), "the wish is the customer's"


def test_a_service_keeps_its_episodes_apart_by_their_ids(training: Training, tmp_path: Path) -> None:
    """Let the agents of all rollouts at once guess the number of their task, in at most eight turns."""
    recipe(training, tmp_path, "An environment behind a service")
    numbers: dict[str, int] = {}

    async def reset(request: Request) -> JSONResponse:
        body = await request.json()
        assert body["episode"] not in numbers
        numbers[body["episode"]] = 1 + len(body["task"]) % 5
        return JSONResponse({"observation": "Guess from 1 to 5.", "reward": 0, "done": False})

    async def step(request: Request) -> JSONResponse:
        body = await request.json()
        found = int(body["action"]) == numbers[body["episode"]]
        seen = {"observation": "Right." if found else "No. Again.", "reward": float(found), "done": found}
        return JSONResponse(seen)

    training.workflow.answers = lambda prompt, seed: f"<answer>{1 + seed % 5}</answer>"
    routes = [Route(f"/{each.__name__}", each, methods=["POST"]) for each in (reset, step)]
    with served(Starlette(routes=routes)) as url:
        training.allow = (url,)
        written = Path(training.spec).read_text()
        Path(training.spec).write_text(written.replace("http://127.0.0.1:9000", url))
        episodes = trained(training)
    for episode in episodes:
        (agent,), number = episode["agent"], 1 + len(episode.task_id) % 5
        guesses = [int(str(step.action)) for step in agent.steps]
        assert number not in guesses[:-1] and episode.is_correct == (guesses[-1] == number)
        assert [step.reward for step in agent.steps] == [float(guess == number) for guess in guesses]
    assert len({len(episode["agent"][0].steps) for episode in episodes}) > 1


def orders(episode: Episode) -> str:
    """Return the orders that the agent cancelled."""
    (state,) = of(episode, "state")
    return " ".join(order for order, status in state.action.items() if status == "cancelled")
