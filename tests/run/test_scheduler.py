"""Tests that a node starts as soon as its inputs are ready, and that one failure leaves others alone."""

from __future__ import annotations

import asyncio
import gc
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import pytest

from rolegraph.engine.compile import compile_file
from rolegraph.engine.errors import ModelError
from rolegraph.engine.models import Completion, LimitedModel, Request
from rolegraph.engine.records import CallDone, Episode, EpisodeDone, Event, FailureName, TerminationReason
from tests.clock import run_virtually
from tests.edge import (
    COUNTDOWN,
    RIGHT,
    WRONG,
    ScriptedModel,
    by_role,
    episode,
    limited,
    run_one,
    solver_judge,
    write_spec,
)

UNEVEN = """
rolegraph: 2
name: uneven
roles:
  a: {prompt: "{{ task.question }}"}
  b: {prompt: "{{ task.question }}"}
  a2: {needs: [a], prompt: "{{ a.action }}"}
  b2: {needs: [b], prompt: "{{ b.action }}"}
  end: {needs: [a2, b2], prompt: "{{ a2.action }} {{ b2.action }}"}
"""


class Waiting:
    """Model that answers with the role's name; a role in `after` waits for the request of another role."""

    def __init__(self, after: dict[str, str]) -> None:
        self.after = after
        self.asked: defaultdict[str, asyncio.Event] = defaultdict(asyncio.Event)

    async def complete(self, request: Request) -> Completion:
        role = request.id.node.role
        self.asked[role].set()
        if role in self.after:
            await self.asked[self.after[role]].wait()
        return Completion(role)

    async def aclose(self) -> None: ...


@pytest.mark.parametrize("after", [{"a": "b2"}, {"b": "a2"}], ids=str)
def test_a_node_waits_for_its_own_inputs_and_not_for_their_whole_level(
    tmp_path: Path, after: dict[str, str]
) -> None:
    plan = compile_file(write_spec(tmp_path, UNEVEN))
    done = asyncio.run(episode(plan, [LimitedModel(Waiting(after), 8)] * len(plan.endpoints)))
    assert [t.action for t in done.trajectories] == ["a", "b", "a2", "b2", "end"]


def test_instances_of_a_role_run_side_by_side() -> None:
    model = ScriptedModel(by_role({"solver": RIGHT, "judge": "<answer>1</answer>"}), lambda _: 0.02)
    run_one(solver_judge("roles.solver.count=8"), model)
    assert model.most_under_way == 8


def test_the_limit_on_concurrent_calls_holds_across_episodes() -> None:
    model = ScriptedModel(by_role({"solver": RIGHT, "judge": "<answer>1</answer>"}), lambda _: 0.005)

    async def four_episodes() -> None:
        plan = solver_judge("roles.solver.count=8")
        models = limited(plan, model, concurrency=3)
        await asyncio.gather(*(episode(plan, models, rollout=rollout) for rollout in range(4)))

    asyncio.run(four_episodes())
    assert model.most_under_way == 3


def refuse_third_solver(request: Request) -> str:
    if request.id.node.role == "solver" and request.id.node.index == 3:
        raise ModelError("the server said 400: no")
    return RIGHT if request.id.node.role == "solver" else "<answer>1</answer>"


def test_siblings_survive_a_failed_sibling_and_the_failure_is_named() -> None:
    model = ScriptedModel(refuse_third_solver)
    done = run_one(solver_judge("roles.solver.count=8"), model)

    solvers = [t for t in done.trajectories if t.name == "solver"]
    assert [len(t.steps) for t in solvers] == [1, 1, 0, 1, 1, 1, 1, 1]
    assert solvers[2].failure is not None
    assert solvers[2].failure.name is FailureName.MODEL_ERROR
    assert done.trajectories[-1].name == "judge"
    assert done.is_correct
    assert done.metadata["failures"] == [
        {"role": "solver", "index": 3, "name": "model_error", "message": "the server said 400: no"}
    ]
    judge_prompt = next(r for r in model.requests if r.id.node.role == "judge").messages[0]["content"]
    assert "\n3: \n" in judge_prompt, "of a turn without an answer nothing is known"


@pytest.mark.parametrize("failure", [RuntimeError("a bug in the client"), ModelError("refused")])
def test_any_exception_of_a_client_ends_its_instance_only(failure: Exception) -> None:
    def answer(request: Request) -> str:
        if request.id.node.role == "judge":
            raise failure
        return RIGHT

    done = run_one(solver_judge(), ScriptedModel(answer))
    assert [t.reward for t in done.trajectories] == [1.0, 1.0, 0.0]
    assert done.trajectories[-1].failure is not None
    assert str(failure) in done.trajectories[-1].failure.message


def test_a_call_past_its_timeout_is_named_and_the_rest_goes_on() -> None:
    model = ScriptedModel(
        by_role({"solver": RIGHT, "judge": "<answer>2</answer>"}),
        lambda request: 5.0 if (request.id.node.role, request.id.node.index) == ("solver", 1) else 0.0,
    )
    done = run_one(solver_judge("roles.solver.timeout=0.05"), model)
    first, second, judge = done.trajectories
    assert first.failure is not None
    assert first.failure.name is FailureName.TIMEOUT
    assert (second.reward, judge.reward) == (1.0, 1.0)


def test_what_cannot_be_parsed_is_named_and_never_silently_a_zero() -> None:
    answers = by_role({"solver": ["no tags", RIGHT], "judge": "<answer>9</answer>"})
    done = run_one(solver_judge(), ScriptedModel(answers))
    assert [f["name"] for f in done.metadata["failures"]] == ["malformed_output", "unparseable_choice"]
    solver = done.trajectories[0]
    assert (solver.action, solver.reward, solver.masked) == ("No solution found", 0.0, False)


def test_mask_keeps_a_failed_trajectory_out_of_the_gradient() -> None:
    plan = solver_judge("roles.solver.on_failure.then=mask")
    answers = by_role({"solver": ["no tags", RIGHT], "judge": "<answer>2</answer>"})
    assert [t.masked for t in run_one(plan, ScriptedModel(answers)).trajectories] == [True, False, False]


def one_fails(failing: int, then: Callable[[], object] = lambda: None) -> ScriptedModel:
    """Return a model with which one of two solvers fails at once and the other never finishes."""

    def answer(request: Request) -> str:
        then()
        return "no tags"

    return ScriptedModel(answer, lambda request: 0.001 if request.id.node.index == failing else 3600.0)


@pytest.mark.parametrize("failing", [1, 2])
def test_fail_ends_the_episode_at_once_and_keeps_what_is_done(failing: int) -> None:
    plan = solver_judge("roles.solver.on_failure.then=fail")
    model = one_fails(failing)

    async def run() -> tuple[Episode, int]:
        done = await episode(plan, limited(plan, model))
        task = asyncio.current_task()
        assert task is not None
        return done, task.cancelling()

    done, cancelling = asyncio.run(run())
    assert done.termination_reason is TerminationReason.ERROR
    assert [(t.name, t.index) for t in done.trajectories] == [("solver", failing)]
    assert not done.is_correct
    assert model.under_way == 0
    assert cancelling == 0, "whoever ran it is not cancelled with it"


@pytest.mark.parametrize("failing", [1, 2])
def test_an_episode_that_ends_and_is_cancelled_at_once_is_cancelled(failing: int) -> None:
    async def run() -> None:
        plan = solver_judge("roles.solver.on_failure.then=fail")
        model = one_fails(failing, lambda: running.cancel())
        running = asyncio.create_task(episode(plan, limited(plan, model)))
        with pytest.raises(asyncio.CancelledError):
            await running
        assert len(asyncio.all_tasks()) == 1

    asyncio.run(run())


def test_who_is_cancelled_before_it_began_leaves_no_warning_behind(
    tmp_path: Path, recwarn: pytest.WarningsRecorder
) -> None:
    def answer(_: Request) -> str:
        running.cancel()
        return "what those of a2 wait for"

    async def run() -> None:
        nonlocal running
        running = asyncio.create_task(episode(plan, limited(plan, ScriptedModel(answer))))
        with pytest.raises(asyncio.CancelledError):
            await running

    running: asyncio.Task[Episode]
    several = ["roles.a2.count=3", "roles.end.needs=[b2]", "roles.end.prompt=end"]
    plan = compile_file(write_spec(tmp_path, UNEVEN), several)
    asyncio.run(run())
    gc.collect()
    assert not [str(w.message) for w in recwarn if issubclass(w.category, RuntimeWarning)]  # never awaited


def test_retry_asks_again_with_another_seed_until_the_answer_can_be_read() -> None:
    model = ScriptedModel(
        lambda r: "no tags" if (r.id.node.role, r.id.attempt) == ("judge", 0) else "<answer>1</answer>"
    )
    done = run_one(solver_judge("roles.judge.on_failure.retry=2"), model, seed=7)
    asked = [r for r in model.requests if r.id.node.role == "judge"]
    assert [r.id.attempt for r in asked] == [0, 1]
    assert asked[0].seed != asked[1].seed
    assert done.trajectories[-1].failure is None
    assert done.trajectories[-1].steps[0].metadata["attempts"] == 2


def test_a_passing_failure_of_the_model_is_tried_again_with_backoff() -> None:
    fails = iter([True, True])

    def answer(request: Request) -> str:
        if request.id.node.role == "judge" and next(fails, False):
            raise ModelError("overloaded", transient=True)
        return RIGHT if request.id.node.role == "solver" else "<answer>1</answer>"

    done = run_one(solver_judge(), ScriptedModel(answer))
    assert "failures" not in done.metadata
    assert done.is_correct


def test_cancelling_an_episode_leaves_no_task_behind() -> None:
    model = ScriptedModel(by_role({"solver": RIGHT, "judge": "x"}), lambda _: 30.0)

    async def cancelled() -> int:
        plan = solver_judge("roles.solver.count=8")
        running = asyncio.create_task(episode(plan, limited(plan, model)))
        await asyncio.sleep(0.01)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        return len(asyncio.all_tasks()) - 1

    assert asyncio.run(cancelled()) == 0
    assert model.under_way == 0


def test_the_validator_is_rewarded_for_agreeing_with_what_the_judge_earned() -> None:
    plan = compile_file("solver_judge_validator")
    for pick, verdict, expected in [(1, "correct", 1.0), (2, "correct", 0.0), (2, "incorrect", 1.0)]:
        answers = {"solver": [RIGHT, WRONG], "judge": f"<answer>{pick}</answer>"}
        done = run_one(
            plan, ScriptedModel(by_role({**answers, "validator": f"<verdict>{verdict}</verdict>"}))
        )
        assert [t.name for t in done.trajectories] == ["solver", "solver", "judge", "validator"]
        assert done.trajectories[-1].reward == expected
        assert done.metrics["validator_acc"] == expected


def test_prompts_are_rendered_from_what_the_needed_roles_answered() -> None:
    model = ScriptedModel(by_role({"solver": [RIGHT, WRONG], "judge": "<answer>1</answer>"}))
    run_one(solver_judge(), model)
    prompt = next(r for r in model.requests if r.id.node.role == "judge").messages[0]["content"]
    assert COUNTDOWN["question"] in prompt
    assert prompt.index(RIGHT) < prompt.index(WRONG)


def test_a_prompt_that_fails_on_one_row_is_that_instance_s_failure(tmp_path: Path) -> None:
    spec = """
rolegraph: 2
name: rows
roles:
  reader: {prompt: "{{ task.passage.title }}"}
"""
    plan = compile_file(write_spec(tmp_path, spec))
    done = run_one(plan, ScriptedModel(lambda _: "fine"), {"id": "1", "passage": {}})
    assert done.trajectories[0].failure is not None
    assert done.trajectories[0].failure.name is FailureName.PROMPT_ERROR


def test_the_same_seed_asks_with_the_same_seeds_and_no_two_calls_share_one() -> None:
    def seeds(seed: int) -> list[int | None]:
        model = ScriptedModel(by_role({"solver": RIGHT, "judge": "<answer>1</answer>"}))
        run_one(solver_judge("roles.solver.count=8"), model, seed=seed)
        return sorted(r.seed or 0 for r in model.requests)

    assert seeds(1) == seeds(1) != seeds(2)
    assert len(set(seeds(1))) == 9


def test_token_ids_logprobs_and_thought_reach_the_step() -> None:
    class WithTokens(ScriptedModel):
        async def complete(self, request: Request) -> Completion:
            text = await super().complete(request)
            return Completion(text.text, "let me see", (1, 2), (3, 4, 5), (-0.1, -0.2, -0.3), "length", 7)

    model = WithTokens(by_role({"solver": RIGHT, "judge": "<answer>1</answer>"}))
    step = run_one(solver_judge(), model).trajectories[0].steps[0]
    assert (*step.prompt_ids, *step.response_ids, *step.logprobs) == (1, 2, 3, 4, 5, -0.1, -0.2, -0.3)
    assert (step.thought, step.weight_version, step.metadata["finish_reason"]) == ("let me see", 7, "length")
    assert step.chat_completions[-1] == {"role": "assistant", "content": RIGHT, "reasoning": "let me see"}


def test_every_episode_carries_the_hash_of_what_made_it() -> None:
    def stamped(*overrides: str) -> str:
        made: Episode = run_one(solver_judge(*overrides), ScriptedModel(lambda _: ""))
        return made.metadata["hash"]

    assert stamped() == stamped() != stamped("roles.solver.count=3")


def test_a_client_s_own_timeout_is_named_where_the_role_has_no_limit() -> None:
    def answer(request: Request) -> str:
        if request.id.node.role == "judge":
            raise TimeoutError
        return RIGHT

    judge = run_one(solver_judge(), ScriptedModel(answer)).trajectories[-1]
    assert judge.failure is not None
    assert (judge.failure.name, judge.failure.message) == (FailureName.TIMEOUT, "no answer in time")


def test_an_episode_that_is_cancelled_hands_over_what_it_has() -> None:
    model = ScriptedModel(by_role({"solver": RIGHT, "judge": "<answer>1</answer>"}), late_judge)
    events: list[Event] = []
    plan = solver_judge()

    async def cancelled() -> None:
        task = asyncio.create_task(episode(plan, limited(plan, model), observe=events.append))
        while not (model.requests and model.requests[-1].id.node.role == "judge"):  # noqa: ASYNC110
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancelled())
    last = events[-1]
    assert isinstance(last, EpisodeDone)
    assert not last.finished
    assert [(t.name, t.reward) for t in last.episode.trajectories] == [("solver", 1.0), ("solver", 1.0)]
    assert not last.episode.is_correct


def test_an_observer_hears_of_every_call_and_of_the_episode() -> None:
    events: list[Event] = []
    plan = solver_judge("roles.solver.count=3")
    model = ScriptedModel(refuse_third_solver)
    done = asyncio.run(episode(plan, limited(plan, model), observe=events.append))
    calls = [(str(e.id.node), e.answered) for e in events if isinstance(e, CallDone)]
    assert calls == [("solver 1", True), ("solver 2", True), ("solver 3", False), ("judge 1", True)]
    assert events[-1] == EpisodeDone(done, finished=True)


def test_what_a_call_took_is_in_its_step() -> None:
    model = ScriptedModel(by_role({"solver": RIGHT, "judge": "<answer>1</answer>"}), lambda _: 0.02)
    plan = solver_judge()
    done, _ = run_virtually(episode(plan, limited(plan, model, concurrency=1)))
    noted = [t.steps[0].metadata for t in done.trajectories]
    seconds = pytest.approx([0.02] * 3)
    assert [own["seconds"] for own in noted] == seconds, "the wait for a free slot is not counted"
    assert [own["started"] for own in noted] == pytest.approx([0, 0.02, 0.04])


def late_judge(request: Request) -> float:
    return 5.0 if request.id.node.role == "judge" else 0.0


@pytest.mark.parametrize("name", ["solver_judge", "solver_verifier_loop", "tic_tac_toe", "best_of_n"])
def test_what_an_episode_leaves_is_freed_without_the_garbage_collector(name: str) -> None:
    plan = compile_file(name)
    models = limited(plan, ScriptedModel(lambda _: "<answer>1</answer>"))

    async def unreachable() -> list[str]:
        gc.collect()
        gc.disable()
        try:
            for rollout in range(3):
                await episode(plan, models, rollout=rollout)
            gc.set_debug(gc.DEBUG_SAVEALL)
            gc.collect()
            kinds = [type(found) for found in gc.garbage]  # garbage of other threads included
            return [kind.__qualname__ for kind in kinds if kind.__module__.startswith("rolegraph.")]
        finally:
            gc.set_debug(0)
            gc.garbage.clear()
            gc.enable()

    assert asyncio.run(unreachable()) == []
