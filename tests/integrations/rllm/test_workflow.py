"""Compiled specs under rLLM's own engine: equal episodes, pooled instances, finished work kept."""

from __future__ import annotations

import asyncio
import pickle
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("rllm", reason="needs rLLM: uv pip install --group rllm .")

from rllm.types import Episode
from rllm.workflows.workflow import TerminationEvent, TerminationReason

from rolegraph.engine.compile.compiler import compile_file
from rolegraph.engine.errors import UsageError
from rolegraph.integrations.rllm import compile_workflow
from tests.edge import RIGHT, WRONG, write_spec
from tests.integrations.rllm.edge import RecordedEngine, agreeable, is_judge, run_all, tasks
from tests.run.test_replay_parity import CASES

pytestmark = pytest.mark.rllm

SOLVER_JUDGE = compile_workflow("solver_judge")
MARK = "<task {}>"


def one(workflow: type, engine: RecordedEngine, **options: Any) -> Episode:
    return run_all(workflow, engine, tasks(1), parallel=1, **options)[0]


def test_64_tasks_of_4_rollouts_through_rllm_s_engine() -> None:
    engine = RecordedEngine(agreeable)
    episodes = run_all(SOLVER_JUDGE, engine, tasks(64), rollouts=4)
    assert [e.id for e in episodes] == [f"t{n}:{k}" for n in range(64) for k in range(4)]
    assert len(engine.calls) == 64 * 4 * 3
    for episode in episodes:
        assert [(t.name, t.reward) for t in episode.trajectories] == [
            ("solver", 1.0),
            ("solver", 1.0),
            ("judge", 1.0),
        ]
        assert (episode.is_correct, episode.metrics) == (True, {"solver_acc": 1.0, "judge_acc": 1.0})
        assert episode.termination_reason is TerminationReason.ENV_DONE
        for step in (s for t in episode.trajectories for s in t.steps):
            assert step.reward == 1.0
            assert step.response_ids == [step.prompt_ids[-1], 7]
            assert (step.logprobs, step.weight_version, step.advantage) == ([-0.5, -0.25], 3, None)
            assert step.model_output is not None, "rLLM's verl backend reads it"


def test_the_120_recorded_cases_give_the_episodes_of_rllm_s_own_workflow() -> None:
    solvers: dict[int, Iterator[str]] = {n: iter(c["solver_responses"]) for n, c in enumerate(CASES)}

    def recorded(prompt: str) -> str:
        number = int(prompt.partition("<task ")[2].partition(">")[0])
        if is_judge(prompt):
            return CASES[number]["judge_response"]
        return next(solvers[number]).partition(" no wait ")[0]  # rLLM reads the first answer, a spec the last

    rows = [
        {**case["task"], "id": str(n), "question": case["task"]["question"] + MARK.format(n)}
        for n, case in enumerate(CASES)
    ]
    episodes = run_all(SOLVER_JUDGE, RecordedEngine(recorded), rows)
    assert len(episodes) == 120
    for episode, case in zip(episodes, CASES, strict=True):
        judge = case["expected"]["trajectories"][-1]
        # rLLM's judge may choose a candidate without an answer.
        if judge["action"] == "No solution found":
            judge["action"] = ""
        found = {
            "is_correct": episode.is_correct,
            "metrics": episode.metrics,
            "trajectories": [
                {"name": t.name, "action": t.steps[-1].action, "reward": t.reward}
                for t in episode.trajectories
            ],
        }
        assert found == case["expected"]


def test_256_pooled_instances_carry_nothing_from_one_task_to_the_next() -> None:
    cut_off = range(0, 768, 2)
    texts = {f"({number})" for number in cut_off}

    def latency(prompt: str) -> float:
        return 60.0 if is_judge(prompt) and prompt.partition("\n")[0].rpartition(" ")[2] in texts else 0.0

    workflows: list[Any] = []

    class Watched(SOLVER_JUDGE):
        def __init__(self, **options: Any) -> None:
            super().__init__(**options)
            workflows.append(self)

    # Every second episode is cancelled with two solvers committed, and its instance reused.
    options = {"timeout": 5.0}  # a busy machine may take a second for the others
    engine = RecordedEngine(agreeable, latency)
    episodes = run_all(Watched, engine, tasks(768), workflow_args=options)
    assert len(workflows) == 256
    for number, episode in enumerate(episodes):
        done = number not in cut_off
        assert [t.uid for t in episode.trajectories] == [
            f"t{number}:0/solver/1",
            f"t{number}:0/solver/2",
            *([f"t{number}:0/judge/1"] if done else []),
        ]
        assert all(f"({number})" in t.steps[0].chat_completions[0]["content"] for t in episode.trajectories)
        assert (episode.is_correct, episode.task["id"]) == (done, f"t{number}")
        assert (episode.termination_reason is TerminationReason.TIMEOUT) is not done
    new = vars(SOLVER_JUDGE(engine, workflows[0].executor, **options))
    for workflow in workflows:
        workflow.reset(None, None)
        assert vars(workflow) == {**new, "task": None, "uid": None}


def test_a_timeout_of_the_episode_keeps_what_was_finished() -> None:
    engine = RecordedEngine(agreeable, lambda prompt: 5.0 if is_judge(prompt) else 0.0)
    episode = one(SOLVER_JUDGE, engine, workflow_args={"timeout": 0.2})
    assert episode.termination_reason is TerminationReason.TIMEOUT
    assert [(t.name, t.reward, t.metadata["index"]) for t in episode.trajectories] == [
        ("solver", 1.0, 1),
        ("solver", 1.0, 2),
    ]
    assert not episode.is_correct
    assert episode.metrics == {"solver_acc": 1.0, "judge_acc": 0.0}


def test_an_answer_whose_reward_waits_for_others_is_not_committed_without_it() -> None:
    workflow = compile_workflow("solver_judge_validator")
    engine = RecordedEngine(agreeable, lambda p: 0.0 if "Proposed" in p or "Show" in p else 5.0)
    episode = one(workflow, engine, workflow_args={"timeout": 0.2})
    assert [t.name for t in episode.trajectories] == ["solver", "solver", "judge"]


@pytest.mark.parametrize(
    ("reason", "name"),
    [
        (TerminationReason.MAX_PROMPT_LENGTH_EXCEEDED, "model_error"),
        (TerminationReason.TIMEOUT, "timeout"),
    ],
)
def test_an_event_of_the_engine_ends_its_instance_only(reason: TerminationReason, name: str) -> None:
    refused = iter([True])

    def answer(prompt: str) -> str:
        if next(refused, False):
            raise TerminationEvent(reason)
        return "<answer>2</answer>" if is_judge(prompt) else RIGHT

    episode = one(SOLVER_JUDGE, RecordedEngine(answer))
    assert [(len(t.steps), t.reward) for t in episode.trajectories] == [(0, 0.0), (1, 1.0), (1, 1.0)]
    assert [f["name"] for f in episode.metadata["failures"]] == [name]
    assert episode.trajectories[0].metadata["failure"]["name"] == name
    assert episode.termination_reason is TerminationReason.ENV_DONE


@pytest.mark.parametrize(
    ("failure", "expected"),
    [
        (TerminationEvent(TerminationReason.MAX_PROMPT_LENGTH_EXCEEDED), "max_prompt_length_exceeded"),
        (TimeoutError(), "timeout"),
        (None, "unknown"),
    ],
)
def test_a_failure_that_ends_the_episode_has_rllm_s_reason(failure: Exception | None, expected: str) -> None:
    def answer(prompt: str) -> str:
        if not is_judge(prompt):
            return RIGHT
        if failure is not None:
            raise failure
        return "no answer at all"

    workflow = compile_workflow("solver_judge", ["roles.judge.on_failure.then=fail"])
    episode = one(workflow, RecordedEngine(answer))
    assert episode.termination_reason.value == expected
    assert [t.name for t in episode.trajectories] == ["solver", "solver", "judge"]


def test_an_episode_without_one_answer_is_an_error_that_rllm_tries_again() -> None:
    refusals = iter([True, True])

    def answer(prompt: str) -> str:
        if next(refusals, False):
            raise ConnectionError("no route to the server")
        return agreeable(prompt)

    episode = one(
        compile_workflow("solver_only"),
        RecordedEngine(answer),
        retry_limit=2,
    )
    assert (episode.is_correct, episode.termination_reason) == (True, TerminationReason.ENV_DONE)
    with pytest.raises(Exception, match="failed permanently"):
        one(SOLVER_JUDGE, RecordedEngine(lambda _: 1 / 0))


def test_rllm_sees_no_step_that_must_not_be_trained_on() -> None:
    workflow = compile_workflow(
        "solver_judge",
        ["roles.solver.on_failure.then=mask", "roles.judge.estimator=null"],
    )
    answers = iter(["no tags", RIGHT, "<answer>2</answer>"])
    masked, solver, judge = one(workflow, RecordedEngine(lambda _: next(answers))).trajectories
    assert [len(t.steps) for t in (masked, solver, judge)] == [0, 1, 0]
    assert masked.metadata["masked"]
    assert [len(t.metadata["withheld_steps"]) for t in (masked, judge)] == [1, 1]
    assert (judge.reward, judge.metadata["is_correct"]) == (1.0, True)


def test_calls_carry_the_sampling_that_the_spec_says_and_no_other() -> None:
    engine = RecordedEngine(agreeable)
    one(SOLVER_JUDGE, engine)
    longest = {"max_tokens": 1024}
    assert [options for _, options in engine.calls] == [longest] * 3
    engine = RecordedEngine(agreeable)
    one(compile_workflow("solver_judge", ["roles.judge.sampling={temperature: 0.5, seed: 4}"]), engine)
    assert engine.calls[0][1] == longest
    assert engine.calls[2][1].keys() == {"temperature", "seed", "max_tokens"}
    assert engine.calls[2][1]["temperature"] == 0.5


def test_a_role_with_a_model_of_its_own_answers_from_it(tmp_path: Path) -> None:
    opened: list[str] = []

    async def open_model(ref: Any) -> Any:
        from rolegraph.engine.models.types import Completion, Request

        class Other:
            async def complete(self, request: Request) -> Completion:
                return Completion("<answer>2</answer>")

        opened.append(ref.name)
        return Other()

    overrides = ["roles.judge.estimator=null", "roles.judge.model=openai:big"]
    engine = RecordedEngine(lambda _: RIGHT)
    workflow = compile_workflow("solver_judge", overrides)
    episodes = run_all(workflow, engine, tasks(16), workflow_args={"open_model": open_model})
    assert all(e.is_correct for e in episodes)
    assert (opened, len(engine.calls)) == (["big"], 32)


def test_a_compiled_class_is_pickled_as_its_plan() -> None:
    assert pickle.loads(pickle.dumps(SOLVER_JUDGE)) is SOLVER_JUDGE
    cloudpickle = pytest.importorskip("cloudpickle")
    assert cloudpickle.loads(cloudpickle.dumps(SOLVER_JUDGE)) is SOLVER_JUDGE
    of_plan = compile_workflow(compile_file("solver_judge"))
    assert pickle.loads(pickle.dumps(of_plan)) is of_plan is SOLVER_JUDGE


@pytest.mark.parametrize("module", ["pickle", "cloudpickle"])
def test_another_process_runs_a_class_that_was_sent_to_it(module: str, tmp_path: Path) -> None:
    pytest.importorskip(module)
    spec = write_spec(tmp_path, "extends: solver_judge.yaml\nname: mine\n")
    workflow = compile_workflow(spec, ["roles.solver.count=3"])
    sent = tmp_path / "class.pkl"
    sent.write_bytes(getattr(__import__(module), "dumps")(workflow))  # noqa: B009
    program = (
        "import pickle, sys\nfrom pathlib import Path\n"
        "from tests.integrations.rllm.edge import RecordedEngine, agreeable, run_all, tasks\n"
        "workflow = pickle.loads(Path(sys.argv[1]).read_bytes())\n"
        "print([t.reward for t in run_all(workflow, RecordedEngine(agreeable), tasks(1))[0].trajectories])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(sent)], capture_output=True, text=True, check=True, cwd=Path.cwd()
    )
    assert done.stdout.splitlines()[-1] == "[1.0, 1.0, 1.0, 1.0]"


def test_what_rllm_would_pass_over_in_silence_is_refused() -> None:
    engine: Any = RecordedEngine(agreeable)
    with pytest.raises(UsageError, match="unknown n_solutions; expected timeout, open_model"):
        SOLVER_JUDGE(engine, None, n_solutions=3)
    workflow = SOLVER_JUDGE(engine, None)
    with pytest.raises(UsageError, match="has a colon"):
        asyncio.run(workflow.run({**tasks(1)[0], "id": "cd:1"}, "cd:1:0"))
    assert SOLVER_JUDGE(engine, None, timeout=0.5).timeout == 0.5


def test_demonstrations_are_refused_because_rllm_cannot_train_on_them(tmp_path: Path) -> None:
    text = (
        "extends: solver_judge.yaml\nroles:\n  judge:\n    estimator: null\n"
        "    signal: {imitation: {demonstration: '{{ task.target }}'}}\n"
    )
    with pytest.raises(UsageError, match="judge imitates turns that it did not sample"):
        compile_workflow(write_spec(tmp_path, text))


def test_wrong_answers_earn_nothing() -> None:
    episode = one(SOLVER_JUDGE, RecordedEngine(lambda p: "<answer>1</answer>" if is_judge(p) else WRONG))
    assert [t.reward for t in episode.trajectories] == [0.0, 0.0, 0.0]
    assert not episode.is_correct


def test_a_teacher_of_this_machine_needs_someone_to_open_it() -> None:
    engine: Any = RecordedEngine(agreeable)
    with pytest.raises(UsageError, match="`open_model` in the workflow_args"):
        compile_workflow("solver_judge_distill")(engine, None)
