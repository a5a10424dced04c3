"""Tests of the bounds of an episode against the DAG of turns."""

from __future__ import annotations

from pathlib import Path

import networkx as nx
import pytest
from hypothesis import given

import rolegraph as rg
from rolegraph.engine.compile import EpisodeBounds, check_file, size_of
from rolegraph.engine.compile.plan import calls_of
from tests.counting import calls
from tests.edge import turn_dag, write_spec
from tests.examples import examples
from tests.workflows import CALLEE, Workflow, compiled, workflows


@pytest.mark.parametrize(
    ("spec", "overrides", "size"),
    [
        ("solver_only", (), EpisodeBounds(2, 1)),
        ("solver_judge", ("roles.solver.count=8",), EpisodeBounds(9, 2)),
        ("debate", ("loops.debate.times=4",), EpisodeBounds(12, 4)),
        ("solver_verifier_loop", (), EpisodeBounds(12, 6)),
    ],
)
def test_calls_are_instances_times_rounds_and_the_chain_is_the_critical_path(
    spec: str, overrides: tuple[str, ...], size: EpisodeBounds
) -> None:
    assert rg.check(spec, *overrides).size == size


REVIEWED = """
rolegraph: 2
name: reviewed
roles:
  reviewer: {needs: {coder: previous}, when: self.round > 1, prompt: x}
  coder: {needs: {reviewer: all}, count: 2, prompt: x, when: CONDITION}
loops: {tries: {roles: [reviewer, coder], times: 3}}
"""


@pytest.mark.parametrize(
    ("condition", "size"),
    [
        ("self.index <= 2", EpisodeBounds(8, 5)),
        ("self.index == 1 or self.round == 3", EpisodeBounds(6, 5)),
        ("self.round < 1", EpisodeBounds(2, 2)),
        ("chance(0.5)", EpisodeBounds(8, 5)),
    ],
)
def test_a_turn_that_its_condition_never_allows_is_not_counted(
    tmp_path: Path, condition: str, size: EpisodeBounds
) -> None:
    plan = check_file(write_spec(tmp_path, REVIEWED.replace("CONDITION", condition))).plan
    assert plan is not None and size_of(plan) == size


def test_the_bounds_are_said_in_words_and_a_spec_without_a_plan_has_none() -> None:
    assert str(EpisodeBounds(47, 9)) == "at most 47 model calls an episode, longest chain 9"
    assert str(EpisodeBounds(1, 1)) == "at most 1 model call an episode, longest chain 1"
    assert rg.check("solver_judge", "roles.judge.needs=[nobody]").size is None


@examples(200)
@given(workflows())
def test_the_chain_is_the_longest_path_of_the_dag(workflow: Workflow) -> None:
    plan = compiled(workflow)
    calls = {node.id: calls_of(plan.roles[node.role]) * plan.may_run(node) for node in plan.nodes}
    in_turn = dict(calls)  # a role that is called runs within its callers' turns
    for node in calls:
        if workflow.parallel(node.role):
            in_turn[node] = max(0, 2 * calls[node] - 1)
        elif node.role == CALLEE:
            in_turn[node] = 0
    dag = nx.DiGraph((a, b, {"calls": in_turn[b]}) for a, b in turn_dag(plan).edges)
    dag.add_edges_from(("start", node, {"calls": own}) for node, own in in_turn.items())
    assert size_of(plan) == (sum(calls.values()), nx.dag_longest_path_length(dag, weight="calls"))


def test_the_graph_of_twice_the_turns_takes_twice_the_work(tmp_path: Path) -> None:
    def work(rounds: int) -> int:
        roles = "a: {needs: {b: previous}, prompt: x}, b: {needs: [a], prompt: x}"
        loops = f"loops: {{l: {{roles: [a, b], times: {rounds}}}}}"
        plan = check_file(
            write_spec(tmp_path, f"rolegraph: 2\nname: x\nroles: {{{roles}}}\n{loops}\n"),
            ["roles.a.estimator=null", "roles.b.estimator=null"],
        ).valid()
        return calls(lambda: (plan.wiring, plan.graph, size_of(plan)))

    work(2)  # values that are made once
    assert work(2000) < 2.1 * work(1000)


def test_compiling_many_loops_takes_as_much_for_each(tmp_path: Path) -> None:
    def compiling(loops: int) -> int:
        role = "{prompt: hi}"
        roles = "\n".join(f"  r{n}: {role}" for n in range(loops))
        until = "r{0}.action == 'x'"
        ends = "\n".join(f"  l{n}: {{roles: r{n}, times: 6, until: {until.format(n)}}}" for n in range(loops))
        spec = write_spec(tmp_path, f"rolegraph: 2\nname: x\nroles:\n{roles}\nloops:\n{ends}\n")
        return calls(lambda: check_file(spec).valid())

    compiling(2)  # values that are made once
    few, more, many = map(compiling, (10, 20, 40))
    assert many - more < 2.1 * (more - few)
