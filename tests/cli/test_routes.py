"""Tests that a router's routes, its default and an expert that is never asked are told."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from starlette.responses import Response

from rolegraph.engine.compile import compile_file
from rolegraph.engine.training.analysis.routing import (
    last_routes,
    route_metrics,
    route_remarks,
    routes_of,
    summed_routes,
)
from tests.cli.conftest import Command
from tests.edge import COUNTDOWN, RIGHT, ScriptedModel, run_one
from tests.models.edges import Endpoint, chat_answer, serving


@pytest.fixture
def unsure() -> Iterator[Endpoint]:
    """Serve a model that gives no readable route, and right answers to all else."""

    def answer(body: dict[str, object]) -> Response:
        return chat_answer("well" if "<route>" in json.dumps(body) else RIGHT)

    with serving(answer) as served:
        yield served


def test_a_run_tells_routes_defaults_and_who_was_never_asked(
    rolegraph: Command, unsure: Endpoint, tmp_path: Path
) -> None:
    words = ("run", "router", "--model", "openai:tiny", "--base-url", unsure.base_url, "--limit", "4")
    shown = rolegraph(*words, "--out", str(tmp_path / "run"))
    said = " ".join(shown.stdout.split() + shown.stderr.split())
    assert "'hard' 100%" in said
    assert "router: the default 'hard' stood in for 4 of 4 answers, which earned 0.000 in the mean" in said
    never = "quick: never asked: `when: router.action == \"easy\"` never held (router: 'hard' 100%)"
    assert never in said
    document = json.loads(rolegraph(*words, "--out", str(tmp_path / "again"), "--json").stdout)
    router = document["roles"]["router"]
    assert (router["routes"], router["defaults"], router["defaults_reward"]) == ({"hard": 1.0}, 4.0, 0.0)


@pytest.mark.parametrize("route", ["<route>hard</route>", "well"])
def test_an_unreadable_route_is_not_paid_by_the_expert_s_success(route: str) -> None:
    plan = compile_file("router")
    model = ScriptedModel(lambda request: route if request.id.node.role == "router" else RIGHT)
    episode = run_one(plan, model, COUNTDOWN)
    (router,) = episode["router"]
    assert router.reward == (1.0 if "<" in route else 0.0)
    metrics = route_metrics(plan, [episode])
    assert routes_of("router", metrics) == "'hard' 100%"
    assert metrics.get("defaults/router", 0.0) == ("<" not in route)


def test_a_training_sums_its_defaults_and_shows_the_last_routes() -> None:
    lines = [
        {"step": 0.0},
        {"step": 1.0, "defaults/router": 6.0, "defaults/reward/router": 0.5, "route/router/hard": 1.0},
        {"step": 2.0, "defaults/router": 2.0, "defaults/reward/router": 0.0, "route/router/easy": 1.0},
    ]
    metrics = summed_routes(lines)
    assert metrics == {"defaults/router": 8, "defaults/reward/router": 0.375, "route/router/easy": 1}
    assert not [*route_remarks({}, {}, metrics)]
    assert last_routes(lines).where == "the training batch of step 2"
    lines[1] |= {"validation/route/router/hard": 0.75, "validation/route/router/easy": 0.25}
    assert summed_routes(lines)["route/router/hard"] == 0.75, "more tasks, and no refill"
    assert last_routes(lines).where == "the validation of step 1"
    assert last_routes(lines[:1]).where == ""


def test_a_default_that_is_paid_for_whom_it_asks_is_warned_of(rolegraph: Command, tmp_path: Path) -> None:
    assert "warning" not in rolegraph("validate", "router").stderr
    shown = rolegraph("validate", "router", "roles.router.on_failure={then: reward}")
    assert "counts as 'hard', by which careful is asked, and is paid" in shown.stderr
