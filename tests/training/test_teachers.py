"""Teachers with a prompt of their own, gates, and choices among teachers, on finished episodes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rolegraph.engine.compile import Plan, check_file, compile_file
from rolegraph.engine.compile.inputs import role_inputs
from rolegraph.engine.compile.lineage import instances_of
from rolegraph.engine.compile.unroll import UnrolledGraph
from rolegraph.engine.errors import ContextFull, ModelError
from rolegraph.engine.models import LimitedModel, Request
from rolegraph.engine.prompts import SELF
from rolegraph.engine.records import Episode, NodeId, Step, Trajectory
from rolegraph.engine.training.advantages.finished import FinishedEpisode
from rolegraph.engine.training.advantages.signals import SignalResult
from rolegraph.engine.vocabulary import UNKNOWN
from tests.clock import run_virtually
from tests.edge import COUNTDOWN, limited, write_spec
from tests.edge import episode as run_episode
from tests.examples import examples
from tests.meaning import expected
from tests.meaning import taught as taught_by
from tests.run.test_random_specs import Caller, tool_calls
from tests.training.test_signals import CHAT, ScriptedScorer, batch, encode, signals_of, values
from tests.workflows import Workflow, compiled, workflows

HINT = (
    "{{ task.question }} It is {{ task.solution }}. {{ judge.action }} of {{ self.index }}, {{ self.prompt }}"
)


class RecordingScorer(ScriptedScorer):
    """Teacher that keeps the prompts that it scored after, as text."""

    def __init__(self, value: float = -0.5, error: Exception | None = None) -> None:
        super().__init__(value, error)
        self.prompts: list[str] = []

    async def logprobs(self, prompt_ids: Sequence[int], response_ids: Sequence[int]) -> list[float]:
        self.prompts.append("".join(map(chr, prompt_ids)))
        return await super().logprobs(prompt_ids, response_ids)


def taught(teacher: dict[str, Any], **signal: Any) -> Plan:
    """Compile solver_judge, whose solvers have a teacher beside GRPO."""
    written = {"reverse_kl": {"teacher": teacher, "coefficient": 2.0, **signal}}
    return compile_file("solver_judge", [f"roles.solver.signal={json.dumps(written)}"])


def step(action: str, system: str = "") -> Step:
    asked = [{"role": "system", "content": system}] if system else []
    chat = (*asked, {"role": "user", "content": "the question"}, {"role": "assistant", "content": action})
    return Step([1, 2], [3, 4], [-1.0, -0.25], chat, model_response=action, action=action)


def episode(*solvers: tuple[str, float], system: str = "", task: dict[str, Any] | None = None) -> Episode:
    """Return an episode of solver_judge with these answers and rewards."""
    row = {**COUNTDOWN, **(task or {}), "id": "t1"}
    made = [
        Trajectory("solver", n, (step(text, system)._replace(reward=r),), r, r >= 1, f"t1:0/solver/{n}")
        for n, (text, r) in enumerate(solvers, 1)
    ]
    judged = step("1")._replace(reward=1.0)
    return Episode("t1", 0, row, [*made, Trajectory("judge", 1, (judged,), 1.0, True, "t1:0/judge/1")])


def signalled(plan: Plan, given: Sequence[Episode], **teachers: Any) -> SignalResult:
    keys = [*plan.teachers, *plan.teaching_policies]
    scorer = teachers.get("scorer") or RecordingScorer()
    models = {key: LimitedModel(scorer, 4) for key in keys}
    return asyncio.run(signals_of(plan, given, models, CHAT))


TWO = episode(("a", 1.0), ("b", 0.0))


def test_the_teacher_scores_the_tokens_after_its_own_prompt() -> None:
    plan = taught({"policy": "main", "prompt": HINT, "sees": ["solution"]})
    scorer = RecordingScorer()
    found = signalled(plan, [TWO], scorer=scorer)
    shown = [f"Make 7 from 3 and 4 It is 3 + 4. 1 of {n}, the question" for n in (1, 2)]
    assert [json.loads(text)[0]["content"] for text in sorted(scorer.prompts)] == shown
    assert found.added["t1:0/solver/1"] == [(2 * 0.5, 2 * -0.25)]


@pytest.mark.parametrize("prompt", ["{{ self.prompt }}", "the question"])
def test_the_students_own_prompt_keeps_its_tokens(prompt: str) -> None:
    plan = taught({"policy": "main", "prompt": prompt})
    scorer = RecordingScorer()
    signalled(plan, [TWO], scorer=scorer)
    assert {*scorer.prompts} == {"\x01\x02"}


def test_the_system_message_is_the_roles_unless_the_teacher_has_one() -> None:
    briefed = episode(("a", 1.0), ("b", 0.0), system="be brief")
    for system, shown in ((None, "be brief"), ("you know {{ task.target }}", "you know 7")):
        own = {} if system is None else {"system": system}
        scorer = RecordingScorer()
        signalled(taught({"policy": "main", "prompt": "?", **own}), [briefed], scorer=scorer)
        (first, last) = json.loads(scorer.prompts[0])
        assert (first["content"], last["content"]) == (shown, "?")


def test_an_earlier_turn_of_the_conversation_keeps_its_tokens(tmp_path: Path) -> None:
    text = """
rolegraph: 2
name: talking
data: {train: countdown}
roles:
  solver:
    prompt: "round {{ self.round }}"
    memory: chat
    reward: countdown
    estimator: grpo
    signal: {reverse_kl: {teacher: {policy: main, prompt: "taught {{ self.history | length }}"}}}
loops: {talk: {roles: [solver], times: 2}}
train: {rollouts: 2}
"""
    plan = compile_file(write_spec(tmp_path, text))
    first = step("a")._replace(metadata={"round": 1})
    chat = (
        *first.chat_completions,
        {"role": "user", "content": "go on"},
        {"role": "assistant", "content": "b"},
    )
    second = Step([1, 2, 3, 4, 5], [6], [-1.0], chat, action="b", metadata={"round": 2})
    made = [
        Episode(
            "t1",
            n,
            {**COUNTDOWN, "id": "t1"},
            [Trajectory("solver", 1, (first, second), 1.0, True, f"t1:{n}/solver/1")],
        )
        for n in (0, 1)
    ]
    scorer = RecordingScorer()
    signalled(plan, made[:1], scorer=scorer)
    assert json.loads(scorer.prompts[0])[0]["content"] == "taught 0"
    assert scorer.prompts[1].startswith("\x01\x02\x03\x04{") and "taught 1" in scorer.prompts[1]


def test_a_gate_is_a_factor_and_a_gate_of_0_asks_nobody() -> None:
    teacher = {"policy": "main", "prompt": "?"}
    scorer = RecordingScorer()
    found = signalled(taught(teacher, gate="0 if right else reward + 0.5"), [TWO], scorer=scorer)
    assert found.added["t1:0/solver/1"] == [0.0]
    assert found.added["t1:0/solver/2"] == [(0.5, -0.25)]
    assert len(scorer.prompts) == 1
    assert found.metrics["signal/solver/gate"] == 0.25
    gates = [found.details[f"t1:0/solver/{n}"][0]["gate"] for n in (1, 2)]
    assert gates == [0.0, 0.5]


def test_a_gate_of_0_gives_the_estimators_advantages_alone() -> None:
    words = "roles.solver.signal={reverse_kl: {teacher: base, gate: 0, center: true}}"
    gated, _, figures = batch(compile_file("solver_judge", [words]))
    alone, _, expected = batch(compile_file("solver_judge"))
    assert values(gated) == values(alone) and figures == expected


@pytest.mark.parametrize(
    ("gate", "events"),
    [("1 / (reward - reward)", 2), ("judge.action", 2), ("action[7] + 1", 2), ("judge.action == '1'", 0)],
)
def test_a_gate_that_cannot_be_computed_is_0_and_counted(gate: str, events: int) -> None:
    found = signalled(taught({"policy": "main", "prompt": "?"}, gate=gate), [TWO])
    assert found.metrics.get("signal/solver/gates_failed", 0) == events
    assert found.metrics["signal/solver/gate"] == (0 if events else 1)
    assert not any("3 + 4" in note.text for note in found.warnings)


@pytest.mark.parametrize(
    ("prompt", "scorer"),
    [("{{ 1 / (self.reward - self.reward) }}", None), ("?", RecordingScorer(error=ContextFull("too long")))],
)
def test_a_prompt_that_cannot_be_sent_is_counted_and_teaches_nothing(
    prompt: str, scorer: RecordingScorer | None
) -> None:
    found = signalled(taught({"policy": "main", "prompt": prompt}), [TWO], scorer=scorer)
    assert found.metrics == {"signal/solver/unscored": 2}
    assert found.added == {"t1:0/solver/1": [0.0], "t1:0/solver/2": [0.0]}
    assert len(found.warnings) == 2


def test_a_field_of_the_task_picks_the_teacher() -> None:
    choice = {
        "by": "task.target",
        "of": {7: {"model": "tinker:seven"}, 8: {"policy": "main", "prompt": "?"}},
    }
    plan = taught(choice)
    rows = [episode(("a", 1.0), ("b", 0.0), task={"target": target}) for target in (7, 8, 9)]
    for row, (key, count) in zip(rows, (("7", 0), ("8", 0), ("", 2)), strict=True):
        found = signalled(plan, [row])
        assert found.metrics.get("signal/solver/masked", 0) == count
        assert (f"signal/solver/reverse_kl/{key}" in found.metrics) == bool(key)


def test_other_roles_are_read_on_the_own_branch_and_siblings_together(tmp_path: Path) -> None:
    text = """
rolegraph: 2
name: branches
data: {train: countdown}
roles:
  solver:
    count: 2
    prompt: "{{ task.question }}"
    reward: countdown
    estimator: grpo
    signal:
      reverse_kl:
        teacher:
          policy: main
          prompt: "{{ judge.action }} {% for s in solver %}{{ s.action }}{{ s.reward }}{% endfor %}"
  judge: {needs: {solver: each}, prompt: "{{ solver.action }}"}
"""
    plan = compile_file(write_spec(tmp_path, text))
    rated = [Trajectory("judge", n, (step(f"J{n}"),), None, False, f"t1:0/judge/{n}") for n in (1, 2)]
    made = Episode("t1", 0, {**COUNTDOWN, "id": "t1"}, [*TWO.trajectories[:2], *rated])
    scorer = RecordingScorer()
    signalled(plan, [made], scorer=scorer)
    texts = sorted(json.loads(text)[0]["content"] for text in scorer.prompts)
    assert texts == ["J1 a1.0b0.0", "J2 a1.0b0.0"]


TEACHER = "roles.solver.signal.reverse_kl.teacher="
PLAIN = "roles.solver.signal={reverse_kl: {teacher: base}}"


@pytest.mark.parametrize(
    ("teacher", "messages"),
    [
        ("{policy: mian}", ["no policy 'mian'"]),
        ("{policy: main, model: 'tinker:x'}", ["teacher: these keys do not go together"]),
        ("{prompt: x}", ["teacher: these keys do not go together"]),
        ("{policy: main, sees: [solution]}", ["teacher: these keys do not go together"]),
        (
            "{policy: main, prompt: x, sees: [solutoin, target]}",
            ["'solutoin'", "task.target is not hidden"],
        ),
        (
            "{policy: main, prompt: '{{ task.solution }} {{ jugde.action }} {{ self.observation }}'}",
            ["task.solution would leak the label", "'jugde' does not exist here", "after the episode"],
        ),
        ("{model: {name: x, provider: openai}, prompt: x}", ["which openai does not"]),
        ("{by: task.solution, of: {a: base}}", ["task.solution would leak the label"]),
        (
            "{by: task.target, of: {a: {policy: mian}, b: {base: mani}}}",
            ["no policy 'mian'", "no policy 'mani'"],
        ),
        ("{by: task.target}", ["teacher.of"]),
    ],
)
def test_faults_of_a_teacher_are_found_together(teacher: str, messages: list[str]) -> None:
    checked = check_file("solver_judge", [PLAIN, TEACHER + teacher])
    found = [diagnostic.message for diagnostic in checked.diagnostics if diagnostic.severity == "error"]
    assert len(found) == len(messages), found
    for message, diagnostic in zip(messages, found, strict=True):
        assert message in diagnostic


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["gate=rigth"], "'rigth' does not exist here"),
        (["gate=task.answr == 1"], "'answr'"),
        (["gate=1 +"], "not a valid expression"),
        (["teacher={policy: main}"], "is solver itself, so its signal is 0"),
    ],
)
def test_faults_of_a_gate(words: list[str], message: str) -> None:
    overrides = [f"roles.solver.signal.reverse_kl.{word}" for word in words]
    checked = check_file("solver_judge", [PLAIN, *overrides])
    assert any(message in str(diagnostic) for diagnostic in checked.diagnostics)


def test_a_gate_reads_no_verdict_that_nobody_gives() -> None:
    words = ["roles.solver.signal={reverse_kl: {teacher: base, gate: 0 if right else reward}}"]
    formed = check_file("solver_judge", [*words, "roles.solver.reward=tokens"])
    assert any("the gate reads the `right` of solver" in str(d) for d in formed.diagnostics) or formed.plan
    alone = [*words, "roles.solver.estimator=null", "roles.solver.reward=null"]
    faults = [str(d) for d in check_file("solver_judge", alone).diagnostics]
    assert sum("the gate reads the" in fault for fault in faults) == 2


def test_tools_and_a_teachers_prompt_exclude_each_other() -> None:
    tools = ["roles.solver.tools=[calculator]", "roles.solver.max_calls=2"]
    checked = check_file("solver_judge", [PLAIN, TEACHER + "{policy: main, prompt: x}", *tools])
    assert any("solver has tools" in str(diagnostic) for diagnostic in checked.diagnostics)


def test_the_hash_is_of_the_teachers_prompt_too(tmp_path: Path) -> None:
    hashes = {taught({"policy": "main", "prompt": text}).hash for text in ("a", "b")}
    assert len(hashes) == 2 and encode("a")


@given(
    st.lists(st.tuples(st.floats(-9, 0), st.floats(-9, 0)), min_size=1, max_size=6),
    st.floats(0.1, 3),
    st.one_of(st.integers(-2, 2), st.booleans(), st.floats(-2, 2)),
    st.one_of(st.none(), st.floats(0.1, 5)),
)
def test_advantages_are_those_of_the_definition(
    pairs: list[tuple[float, float]], coefficient: float, gate: float, clip: float | None
) -> None:
    here, there = map(list, zip(*pairs, strict=True))
    options = {"coefficient": coefficient, "clip": clip, "gate": gate, "teacher": {"policy": "main"}}
    words = [f"roles.solver.signal={json.dumps({'reverse_kl': options})}"]
    plan = compile_file("solver_judge", words)
    sampled = step("a")._replace(response_ids=range(len(here)), logprobs=here)
    own = Trajectory("solver", 1, (sampled,), 1.0, True, "t1:0/solver/1")
    scorer = RecordingScorer()
    scorer.logprobs = lambda prompt_ids, response_ids: _soon(there)
    found = signalled(plan, [Episode("t1", 0, {**COUNTDOWN, "id": "t1"}, [own])], scorer=scorer)
    meant = taught_by(here, there, coefficient, float(gate), clip)
    (advantages,) = found.added["t1:0/solver/1"]
    assert np.atleast_1d(advantages) == pytest.approx(meant if gate else [0.0])


async def _soon(values: list[float]) -> list[float]:
    return values


@examples(200)
@given(workflows())
def test_what_a_teacher_reads_is_what_the_language_says(workflow: Workflow) -> None:
    plan, meant = compiled(workflow), expected(workflow)

    def answer(request: Request) -> str:
        action = workflow.action(request.id.node)
        if action is None:
            raise ModelError("now and then")
        return (
            action if request.id.call > workflow.uses(request.id.node) else tool_calls(workflow, request.id)
        )

    model = Caller(answer, lambda request: workflow.latency(request.id.node))
    done, _ = run_virtually(run_episode(plan, limited(plan, model)))
    instances, spec = instances_of(plan.spec), plan.spec
    others = {
        name: [other for other in spec.roles if other not in role.needs] for name, role in spec.roles.items()
    }
    graph = UnrolledGraph(spec, instances, role_inputs(spec, {}, {}), {}, others)
    finished = FinishedEpisode(replace(plan, signal_inputs=graph.signal_inputs), done)
    for trajectory in done.trajectories:
        for round in {step.round for step in trajectory.steps}:
            me = NodeId(trajectory.name, trajectory.index, round)
            variables = finished.of_turn(trajectory, round, frozenset())
            for name, turns in meant.afterwards[me].items():
                found = [(view.index, view.action) for view in variables[name]]
                known = [(it.id.index, it.action if it.has_result else UNKNOWN) for it in turns]
                assert found == known, (me, name)
            prompt = finished.roles[me.role].prompt
            if prompt is not None and not prompt.mentions & {"self.observation", "self.arguments"}:
                assert prompt.render(variables) == variables[SELF]["prompt"]
