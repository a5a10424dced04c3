"""Tests of one node's turn: its requests, attempts, seeds, and kinds of failure."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from rolegraph.engine.errors import ModelError, UsageError
from rolegraph.engine.models import Completion, LimitedModel, Request
from rolegraph.engine.records import CallDone, CallId, Event, Failure, FailureName, Message, NodeId, call_seed
from rolegraph.engine.run.turn import EpisodeJob, EpisodeSession, NodeResult, model_turn
from rolegraph.engine.vocabulary import UNKNOWN, Score, View, Views
from rolegraph.engine.vocabulary.isolation import Isolation
from tests.edge import RIGHT, WRONG, Answer, ScriptedModel, run_one, solver_judge

MESSAGES: list[Message] = [{"role": "user", "content": "Make 7 from 3 and 4"}]
SOLVERS = {"solver": Views([View(1, RIGHT), View(2, WRONG)])}
EPISODE_SEED = 1234
RETRIES = "roles.solver.on_failure.retry=2"


class Silent(ScriptedModel):
    """Model that never answers."""

    async def complete(self, request: Request) -> Completion:
        self.requests.append(request)
        await asyncio.Event().wait()
        raise AssertionError("unreachable")


def turn(
    model: ScriptedModel | Answer,
    *overrides: str,
    role: str = "solver",
    messages: list[Message] | Failure = MESSAGES,
    episode_seed: int | None = EPISODE_SEED,
    observe: Callable[[Event], None] | None = None,
) -> NodeResult:
    """Run the turn of the last instance of a role."""
    plan = solver_judge(*overrides)
    node = next(node for node in reversed(plan.nodes) if node.id.role == role)
    edge = model if isinstance(model, ScriptedModel) else ScriptedModel(model)

    async def run() -> NodeResult:
        session = EpisodeSession(EpisodeJob({"id": "t1"}, 3), Isolation(), observe)
        session.seed = episode_seed
        return await model_turn(
            role=plan.roles[node.role],
            node=node,
            model=LimitedModel(edge, 8),
            session=session,
            messages=messages,
            upstream={} if role == "solver" else SOLVERS,
        )

    return asyncio.run(run())


def unreadable_twice(request: Request) -> str:
    return RIGHT if request.id.attempt == 2 else "no tags"


def test_an_answer_that_can_be_read_is_a_result_without_a_failure() -> None:
    model = ScriptedModel(lambda _: f"3 + 4 = 7, so {RIGHT}")
    result = turn(model)
    assert result.view == View(
        2, RIGHT, f"3 + 4 = 7, so {RIGHT}", lineage=(2,), role="solver", tokens=UNKNOWN, calls=1
    )
    (call,) = result.calls
    assert ([*call.chat[:-1]], call.attempt, result.failure) == (MESSAGES, 0, None)
    assert result.score is None, "it is scored when its reward is computed"
    (request,) = model.requests
    assert request.messages == MESSAGES
    assert request.sampling == solver_judge().spec.sampling
    assert request.id == CallId("t1", 3, NodeId("solver", 2))


def test_a_retry_is_another_attempt_of_the_same_call() -> None:
    model = ScriptedModel(unreadable_twice)
    result = turn(model, RETRIES)
    assert [r.id for r in model.requests] == [
        CallId("t1", 3, NodeId("solver", 2), call=1, attempt=attempt) for attempt in range(3)
    ]
    assert (result.view.action, result.failure, result.calls[-1].attempt) == (RIGHT, None, 2)


def test_retries_end_and_the_last_answer_is_kept() -> None:
    model = ScriptedModel(lambda request: f"no tags, attempt {request.id.attempt}")
    result = turn(model, RETRIES)
    (last,) = result.calls
    assert (len(model.requests), last.attempt) == (3, 2)
    assert result.view.response == "no tags, attempt 2"
    assert last.completion == Completion("no tags, attempt 2")


def test_no_two_attempts_share_a_seed() -> None:
    model = ScriptedModel(unreadable_twice)
    turn(model, RETRIES)
    salt = solver_judge().nodes[1].salt
    seeds = [request.seed for request in model.requests]
    assert seeds == [call_seed(EPISODE_SEED, salt, 1, attempt) for attempt in range(3)]
    assert len(set(seeds)) == 3


def test_without_an_episode_s_seed_there_is_none() -> None:
    model = ScriptedModel(unreadable_twice)
    turn(model, RETRIES, episode_seed=None)
    assert [request.seed for request in model.requests] == [None] * 3


def test_a_role_s_seed_of_its_own_goes_before_the_run_s() -> None:
    def seeds(run_seed: int) -> dict[str, list[int | None]]:
        model = ScriptedModel(unreadable_twice)
        run_one(solver_judge(RETRIES, "roles.solver.sampling={seed: 5}"), model, seed=run_seed)
        return {
            role: [request.seed for request in model.requests if request.id.node.role == role]
            for role in ("solver", "judge")
        }

    one, other = seeds(1), seeds(2)
    assert sorted(map(str, one["solver"])) == sorted(map(str, other["solver"]))
    assert len(set(one["solver"])) == 6, "two instances with three attempts each"
    assert one["judge"] != other["judge"]


def test_a_call_that_takes_too_long_is_a_timeout_and_is_asked_again() -> None:
    model = Silent(lambda _: "")
    events: list[Event] = []
    result = turn(model, RETRIES, "roles.solver.timeout=0.001", observe=events.append)
    assert result.failure == Failure(FailureName.TIMEOUT, "no answer within 0.001 s")
    assert not result.calls
    calls = [event for event in events if isinstance(event, CallDone)]
    assert [(call.id.attempt, call.answered) for call in calls] == [(0, False), (1, False), (2, False)]


def raising(error: Exception) -> Answer:
    def answer(_: Request) -> str:
        raise error

    return answer


def test_each_failure_has_its_name() -> None:
    cases: list[tuple[str, Answer, FailureName, str]] = [
        ("solver", raising(ModelError("400: no")), FailureName.MODEL_ERROR, "400: no"),
        ("solver", raising(KeyError("x")), FailureName.MODEL_ERROR, "KeyError: 'x'"),
        ("solver", raising(TimeoutError()), FailureName.TIMEOUT, "no answer in time"),
        ("solver", lambda _: "no tags", FailureName.MALFORMED_OUTPUT, "<answer>"),
        ("judge", lambda _: "no tags", FailureName.MALFORMED_OUTPUT, "<answer>"),
        ("judge", lambda _: "<answer>9</answer>", FailureName.UNPARSEABLE_CHOICE, "9"),
    ]
    for role, answer, name, said in cases:
        failure = turn(answer, role=role).failure
        assert failure is not None
        assert failure.name is name
        assert said in failure.message


def test_others_see_the_parser_s_default_for_one_that_failed() -> None:
    result = turn(lambda _: "no tags")
    assert result.view == View(
        2,
        "No solution found",
        "no tags",
        lineage=(2,),
        failure="malformed_output",
        role="solver",
        tokens=UNKNOWN,
        calls=1,
    )
    assert result.score == Score(0.0, False)


def test_what_was_never_asked_failed_without_a_call() -> None:
    model = ScriptedModel(lambda _: RIGHT)
    unwritten = Failure(FailureName.PROMPT_ERROR, "judge.j2: line 2: no such field")
    result = turn(model, RETRIES, messages=unwritten)
    assert model.requests == []
    assert (result.failure, result.calls) == (unwritten, ())
    assert (result.view.action, result.score) == ("No solution found", Score(0.0, False))


def test_a_mistake_of_the_person_s_is_no_failure_of_a_node() -> None:
    with pytest.raises(UsageError, match="no such recording"):
        turn(raising(UsageError("no such recording")))
