"""Tests of `rolegraph optimize`: prompts that evolve, on an endpoint that answers and reflects by rule."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import signal
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.responses import JSONResponse, Response

import rolegraph as rg
from rolegraph.engine.models.keys import OPENAI
from rolegraph.engine.records.writer_lock import LOCK_FILE
from rolegraph.integrations.gepa import OptimizationJob, optimize
from rolegraph.integrations.gepa.page import OptimizationRecord
from rolegraph.integrations.gepa.reflecting import Search
from tests.cli.conftest import ENVIRONMENT, Command, rolegraph
from tests.edge import write_spec
from tests.forks import ForkedCommand
from tests.models.edges import Endpoint, chat_answer, serving

pytest.importorskip("gepa", reason="needs the extra `optimize`")

__all__ = ["rolegraph"]

SECRET = "the-hidden-note"
SPEC = """
rolegraph: 2
name: sums
data: {train: train.jsonl, validation: validation.jsonl, hidden: [answer, note]}
model: openai:tiny
roles:
  solver:
    prompt: "{{ task.question }} Answer in <answer></answer>."
    parser: {tag: answer}
    reward: {exact_match: {field: answer}}
    estimator: grpo
  checker:
    needs: [solver]
    sees: [note]
    system: "You check. {{ task.note }}"
    prompt: "Is {{ solver.action }} right?"
episode: {correct: solver.right}
train: {steps: 1}
"""
BETTER = "{{ task.question }} THINK FIRST. Answer in <answer></answer>."
LEAK = "{{ task.question }} It is {{ task.answer }}, in <answer></answer>."
BUDGET = ("--budget", "160", "--tasks", "6")


class Rule:
    """Endpoint's rule: answers are right with THINK, and a reflection leaks first, then says THINK."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        """Prompts of roles."""
        self.reflected: list[list[str]] = []
        """Messages of each reflection."""
        self.before: Callable[[], None] = lambda: None
        """Function that is called before each answer."""

    def __call__(self, body: dict[str, Any]) -> Response:
        messages = [message["content"] for message in body["messages"]]
        if "Jinja2 template of" in messages[0]:
            self.reflected.append(messages)
            self.before()
            better = BETTER if "role `solver`" in messages[0] else "Is {{ solver.action }} a sum?"
            return chat_answer(f"Here it is:\n```jinja\n{LEAK if len(messages) == 1 else better}\n```")
        self.asked.append("\n".join(messages))
        self.before()
        if (numbers := re.search(r"(\d+) \+ (\d+)", messages[-1])) is None:
            return chat_answer("yes")
        total = int(numbers[1]) + int(numbers[2])
        return chat_answer(f"<answer>{total if 'THINK' in messages[-1] or total % 3 == 0 else 'x'}</answer>")


@pytest.fixture
def rule() -> Rule:
    return Rule()


@pytest.fixture
def endpoint(rule: Rule, monkeypatch: pytest.MonkeyPatch) -> Iterator[Endpoint]:
    monkeypatch.setenv(OPENAI.key_variable, "none")
    with serving(rule) as served:
        yield served


@pytest.fixture
def spec(tmp_path: Path) -> Path:
    for name, first in (("train", 0), ("validation", 100)):
        rows = [
            {"question": f"What is {first + n} + {n}?", "answer": str(first + 2 * n), "note": SECRET}
            for n in range(8)
        ]
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return write_spec(tmp_path, SPEC)


def test_the_better_prompt_is_found_within_the_budget(
    rolegraph: Command, rule: Rule, endpoint: Endpoint, spec: Path, tmp_path: Path
) -> None:
    words = ("optimize", "spec.yaml", "--base-url", endpoint.base_url, *BUDGET, "--out", "out")
    done = rolegraph(*words, "--json")
    assert done.returncode == 0, done.stderr
    assert "budget: 160 episodes, at most 320 model calls" in done.stderr
    found = json.loads(done.stdout)
    best = found["candidates"][found["best"]]
    assert best["templates"]["solver.prompt"] == BETTER and set(best["scores"].values()) == {1.0}
    assert set(found["candidates"][0]["scores"].values()) == {0.0, 1.0}
    assert found["front"] == [found["best"]], "the spec's own prompt is dominated"
    assert found["episodes"] <= 160 and len(rule.asked) == 2 * found["episodes"]
    runs = {run.folder.path.name for run in rg.view(tmp_path / "out" / "candidates").runs}
    assert {Path(candidate["folder"]).name for candidate in found["candidates"]} < runs
    page = (tmp_path / "out" / "optimization.html").read_text()
    assert "Pareto front" in page and "+{{ task.question }} THINK FIRST." in page

    optimized = tmp_path / "out" / "optimized.yaml"
    assert "extends: spec.yaml" in optimized.read_text()
    assert rolegraph("validate", str(optimized)).returncode == 0
    moved = shutil.move(tmp_path / "out", tmp_path / "elsewhere")
    flow = rg.load(Path(moved) / "optimized.yaml", model="local")
    assert flow.is_trainable and flow.plan.roles[0].prompt and flow.plan.roles[0].prompt.source == BETTER
    assert len(flow.tasks("train")) == 8


def test_a_finished_optimization_asks_nothing_again_and_a_larger_budget_goes_on(
    rolegraph: Command, rule: Rule, endpoint: Endpoint, spec: Path, tmp_path: Path
) -> None:
    words = ("optimize", "spec.yaml", "--base-url", endpoint.base_url, "--tasks", "6", "--json")
    first = json.loads(rolegraph(*words, "--budget", "100").stdout)
    calls = len(rule.asked), len(rule.reflected)
    assert json.loads(rolegraph(*words, "--budget", "100").stdout) == first
    assert calls == (len(rule.asked), len(rule.reflected))
    more = json.loads(rolegraph(*words, "--budget", "160").stdout)
    assert more["candidates"][: len(first["candidates"])] == first["candidates"]
    assert len(rule.asked) == 2 * more["episodes"] and len(rule.reflected) == more["reflections"]


@pytest.mark.parametrize(
    ("moment", "number"),
    [
        (3, signal.SIGKILL),
        (20, signal.SIGKILL),
        (20, signal.SIGTERM),
        ("reflection", signal.SIGKILL),
    ],
)
def test_an_optimization_that_is_killed_goes_on_and_repeats_no_episode(
    rolegraph: Command,
    rule: Rule,
    endpoint: Endpoint,
    spec: Path,
    tmp_path: Path,
    moment: int | str,
    number: signal.Signals,
) -> None:
    words = ("optimize", "spec.yaml", "--base-url", endpoint.base_url, *BUDGET, "--concurrency", "1")
    assert rolegraph(*words, "--out", "whole").returncode == 0
    whole = Counter(rule.asked)
    reflections = len(rule.reflected)
    rule.asked.clear()
    rule.reflected.clear()
    environment = {**ENVIRONMENT, OPENAI.key_variable: "none"}
    running = ForkedCommand((*words, "--out", "killed"), cwd=tmp_path, env=environment)

    def kill() -> None:
        if len(rule.asked) == moment or (moment == "reflection" and len(rule.reflected) == 2):
            os.kill(running.pid, number)
            rule.before = lambda: None

    rule.before = kill
    assert running.wait() == (128 + number if number == signal.SIGTERM else -number)
    assert number == signal.SIGKILL or not [*(tmp_path / "killed").rglob(LOCK_FILE)]
    assert rolegraph(*words, "--out", "killed").returncode == 0
    results = [json.loads((tmp_path / out / "result.json").read_text()) for out in ("whole", "killed")]
    assert results[0] == results[1]
    repeated = Counter(rule.asked) - whole
    # The episode that was killed in its first or second call is the only one that is made again.
    assert sum(repeated.values()) <= (0 if moment == "reflection" else 2), repeated
    assert len(rule.reflected) == reflections + (moment == "reflection")


def test_a_search_that_is_cancelled_ends_once_its_work_has_ended(endpoint: Endpoint, spec: Path) -> None:
    job = OptimizationJob.create(
        rg.load(str(spec), base_url=endpoint.base_url), tasks=4, out=spec.parent / "o"
    )
    ended: list[bool] = []

    async def work() -> None:
        try:
            searching.cancel()
            await asyncio.sleep(60)
        finally:
            for _ in range(100):  # closes folders and connections
                await asyncio.sleep(0)
            ended.append(True)

    class Working(Search):
        def run(self) -> OptimizationRecord:
            return self._wait(work())

    async def cancelled() -> None:
        nonlocal searching
        unused: Any = None
        searching = asyncio.ensure_future(Working(job.plan, unused, unused, print, 1).result())
        await asyncio.wait([searching])
        assert searching.cancelled() and ended

    searching: asyncio.Future[OptimizationRecord]
    asyncio.run(cancelled())


def test_a_template_that_leaks_is_never_run_and_the_reflecting_model_sees_nothing_hidden(
    rolegraph: Command, rule: Rule, endpoint: Endpoint, spec: Path, tmp_path: Path
) -> None:
    words = ("optimize", "spec.yaml", "--base-url", endpoint.base_url, *BUDGET, "--json")
    found = json.loads(rolegraph(*words, "--out", "out").stdout)
    rolegraph(*words, "--role", "checker", "--out", "checker")
    assert not [prompt for prompt in rule.asked if "It is" in prompt]
    assert any("task.answer would leak the label" in reason for _, reason in found["refused"])
    assert "task.answer would leak the label" in rule.reflected[1][-1]
    assert any(SECRET in prompt for prompt in rule.asked), "the checker is shown the note"
    parts = {messages[0].partition("role `")[2].partition("`")[0] for messages in rule.reflected}
    assert parts == {"solver", "checker"}
    assert not [messages for messages in rule.reflected if SECRET in str(messages)]
    assert "<answer>x</answer>" in rule.reflected[0][0], "a solver's answers are shown"


def test_only_the_named_roles_change(rolegraph: Command, rule: Rule, endpoint: Endpoint, spec: Path) -> None:
    words = ("optimize", "spec.yaml", "--base-url", endpoint.base_url, *BUDGET, "--role", "checker", "--json")
    found = json.loads(rolegraph(*words).stdout)
    assert all(set(it["templates"]) == {"checker.system", "checker.prompt"} for it in found["candidates"])


def test_a_reflecting_model_that_fails_ends_the_command_and_the_same_one_goes_on(
    rolegraph: Command, rule: Rule, endpoint: Endpoint, spec: Path
) -> None:
    def refuse(body: dict[str, Any]) -> Response:
        return JSONResponse({"error": {"message": "no money left"}}, status_code=400)

    words = ("optimize", "spec.yaml", "--base-url", endpoint.base_url, *BUDGET, "--json")
    with serving(refuse) as poor:
        failed = rolegraph(*words, "--reflect-with", "openai:tiny", "--reflect-url", poor.base_url)
    assert failed.returncode == 1 and "the reflecting model gave no answer" in failed.stderr
    assert "no money left" in failed.stderr
    found = json.loads(rolegraph(*words).stdout)
    assert len(rule.asked) == 2 * found["episodes"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ("--budget", "10"),
            "a budget of 10 episodes is too small: the spec's own prompts and one",
        ),
        (("--role", "judge"), "'judge' is no role with a prompt; expected one of solver, checker"),
        (("--reflect-with", "gpt-5"), "--reflect-with gpt-5 is no model; expected one of local:NAME"),
        (("--reflect-with", "local"), "the shipped model local cannot reflect"),
        (
            ("--score", "acc"),
            "'acc' is no figure of sums; expected one of correct, mean reward, reward/solver",
        ),
        (("--out", "."), ". is not empty and does not hold an optimization"),
    ],
)
def test_an_optimization_that_cannot_be_made_is_refused_before_anything_is_asked(
    rolegraph: Command, rule: Rule, endpoint: Endpoint, spec: Path, words: tuple[str, ...], message: str
) -> None:
    done = rolegraph("optimize", "spec.yaml", "--base-url", endpoint.base_url, *words)
    assert done.returncode == 2
    assert message in done.stderr
    assert not rule.asked and not rule.reflected


def test_the_shipped_base_model_says_that_it_cannot_reflect(rolegraph: Command, tmp_path: Path) -> None:
    done = rolegraph("optimize", "solver_judge")
    assert done.returncode == 2
    assert "cannot reflect: it knows only the answers that it was taught" in done.stderr
    assert "--reflect-with openai:NAME" in done.stderr
    assert not (tmp_path / "runs").exists()


def test_roles_that_the_shipped_model_answers_for_are_warned_of(tmp_path: Path) -> None:
    flow = rg.load("solver_judge")
    job = OptimizationJob.create(flow, reflect_with="openai:tiny", out=tmp_path / "out")
    assert "local was trained on the shipped prompts alone" in job.plan.foreign_prompts


def test_other_settings_are_refused_in_the_same_folder(
    rolegraph: Command, endpoint: Endpoint, spec: Path
) -> None:
    words = ("optimize", "spec.yaml", "--base-url", endpoint.base_url, *BUDGET, "--out", "out")
    assert rolegraph(*words).returncode == 0
    done = rolegraph(*words, "--seed", "1")
    assert done.returncode == 2 and "out was started with seed 0, not 1" in done.stderr
    spec.write_text(spec.read_text().replace("Answer in", "Say it in"))
    done = rolegraph(*words)
    assert done.returncode == 2 and "out was started with another spec" in done.stderr


def test_a_missing_library_is_named_with_its_extra(
    rolegraph: Command, endpoint: Endpoint, spec: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "gepa", None)
    done = rolegraph("optimize", "spec.yaml", "--base-url", endpoint.base_url)
    assert done.returncode == 2 and "pip install 'rolegraph[optimize]'" in done.stderr


def test_a_mean_reward_is_the_score_where_no_role_can_be_right(
    endpoint: Endpoint, spec: Path, tmp_path: Path
) -> None:
    length = "{sum: {long: (action | length) / 10}}"
    text = SPEC.replace("{exact_match: {field: answer}}", length).replace(
        "episode: {correct: solver.right}", ""
    )
    flow = rg.load(write_spec(tmp_path, text, "long.yaml"), base_url=endpoint.base_url)
    record = optimize(flow, budget=100, tasks=4, out=tmp_path / "out").record
    assert record.score == "mean reward"

    assert record.candidates[0].score == pytest.approx(record.candidates[0].figures["reward/solver"])


def test_a_forecast_bounds_the_calls_of_an_optimization(rolegraph: Command, spec: Path) -> None:
    done = rolegraph("forecast", "spec.yaml", "--budget", "160")
    assert "optimize --budget 160: at most 320 model calls of the roles" in done.stdout


def test_the_front_has_the_candidates_that_no_other_dominates() -> None:
    scores = [(0.5, 0.5, 0.5), (1.0, 0.0, 0.0), (0.5, 0.5, 0.6), (0.0, 0.4, 0.6), (1.0, 0.0, 0.0)]
    none: dict[str, Any] = {"templates": {}, "parents": (), "figures": {}, "best_on": (), "folder": ""}
    candidates = [{**none, "scores": dict(zip("abc", of, strict=True))} for of in scores]
    about = {"name": "x", "score": "correct", "budget": 9, "episodes": 9, "reflections": 1, "refused": ()}
    assert OptimizationRecord.model_validate({**about, "candidates": candidates}).front == [1, 2, 4]
