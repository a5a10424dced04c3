"""Tests of an episode's time line: the DAG is the engine's own, and turns have their recorded times."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from networkx.utils import graphs_equal

from rolegraph.engine.compile import Plan, compile_file
from rolegraph.engine.compile.structure import graph_of
from rolegraph.engine.records import Episode, NodeId
from rolegraph.engine.shipped import SPECS
from rolegraph.pages.view.runs import open_run
from rolegraph.pages.view.timeline import MOST_LANES, Bar, Dag, Timeline, read_dag, timeline
from rolegraph.pages.view.turns import turns
from tests.clock import run_virtually
from tests.edge import RIGHT, ScriptedModel, by_role, limited, solver_judge, turn_dag
from tests.edge import episode as played
from tests.examples import examples
from tests.pages.view.runs import episodes, workflow, write_run
from tests.workflows import Workflow, compiled, workflows

NAMES = sorted(path.stem for path in SPECS.glob("*.yaml"))
OPTIONAL = {"textarena": "textarena", "react": "bm25s"}


@pytest.mark.parametrize("name", NAMES)
def test_the_dag_that_is_drawn_is_the_one_that_runs(name: str) -> None:
    if name in OPTIONAL:
        pytest.importorskip(OPTIONAL[name])
    plan = compile_file(name)
    assert graphs_equal(drawn(plan), turn_dag(plan))


@examples(200)
@given(workflows())
def test_the_dag_of_any_spec_is_that_of_its_plan(workflow: Workflow) -> None:
    plan = compiled(workflow)
    assert graphs_equal(drawn(plan), turn_dag(plan))


@pytest.mark.parametrize(
    "reads",
    [
        "roles.solver.when=self.history | length < 2",
        "roles.solver.system='{{ self.history | length }}'",
        "roles.solver.system='{% set me = self %}{{ me.history | length }}'",
        "roles.solver.memory=chat",
    ],
)
def test_a_turn_that_reads_its_own_instance_waits_for_the_turn_before(reads: str) -> None:
    plan = solver_judge("loops={l: {roles: [solver], times: 3}}", reads)
    dag = drawn(plan)
    assert graphs_equal(dag, turn_dag(plan))
    assert dag.has_edge(NodeId("solver", 1, 2), NodeId("solver", 1, 3))


def drawn(plan: Plan) -> Dag:
    """Return the DAG that the viewer reads from the recorded templates of a run."""
    parts = [
        (role, {"prompt": role.prompt, "system": role.system, "tool": role.run.value if role.run else None})
        for role in plan.roles
    ]
    templates = {
        f"the {part} of {role.name}": template.source
        for role, its in parts
        for part, template in its.items()
        if template is not None
    }
    dag = read_dag(plan.spec, templates)
    assert dag is not None
    return dag


def without(episode: Episode, *names: str) -> Episode:
    """Return an episode without some metadata, like those of an earlier version."""
    return episode._replace(
        trajectories=[
            t._replace(
                steps=[
                    s._replace(metadata={k: v for k, v in s.metadata.items() if k not in names})
                    for s in t.steps
                ]
            )
            for t in episode.trajectories
        ]
    )


def bars_of(line: Timeline) -> dict[NodeId, Bar]:
    return {bar.node: bar for lane in line.lanes for bar in lane.bars}


@pytest.mark.parametrize("slots", [2, 1], ids=["side by side", "one slot"])
def test_a_turn_lies_where_it_began_and_ended(slots: int) -> None:
    plan = solver_judge()
    texts = by_role({"solver": RIGHT, "judge": "<answer>1</answer>"})
    model = ScriptedModel(texts, lambda request: {1: 2.0, 2: 3.0}[request.id.node.index])
    made, _ = run_virtually(played(plan, limited(plan, model, concurrency=slots)))
    line = timeline(read_dag(plan.spec, {}), turns(made))
    bars = bars_of(line)
    # Virtual time also passes while a process of the run works, hence no equality of the ends.
    first, second, judge = (
        bars[node] for node in (NodeId("solver", 1), NodeId("solver", 2), NodeId("judge"))
    )
    assert [bar.end - bar.start >= least for bar, least in ((first, 2), (second, 3), (judge, 2))] == [
        True
    ] * 3
    assert (second.start < first.end) == (slots == 2)
    assert judge.start >= max(first.end, second.end)
    assert (line.measured, line.length) == (True, judge.end)
    assert [node.role for node in line.order] == ["solver", "solver", "judge"]
    (on_path,) = (join for join in line.joins if join.on_path)
    assert (on_path.lane, on_path.start) == (1, second.end), "the judge waited for the second solver"


def test_where_beginnings_are_not_on_record_each_turn_begins_where_the_last_it_waits_for_ends() -> None:
    flow = workflow("solver_verifier_loop")
    dag = read_dag(flow.plan.spec, {})
    assert dag is not None
    for episode in episodes(flow.plan, 1):
        taken = turns(without(episode, "started"))
        line = timeline(dag, taken)
        bars = bars_of(line)
        assert line.timed and not line.measured
        for node, bar in bars.items():
            assert bar.start == max((bars[other].end for other in dag.pred[node]), default=0.0)
            seconds = taken[node].seconds if node in taken else 0.0
            assert bar.end - bar.start == pytest.approx(seconds)
        assert line.length == max(bar.end for bar in bars.values())
        assert {node for node, bar in bars.items() if bar.state == "skipped"} == set(bars) - set(taken)
        assert set(line.order) == set(taken)


def test_what_was_skipped_and_what_failed_is_told_apart(tmp_path: Path) -> None:
    run = open_run(write_run(tmp_path / "run", "solver_verifier_loop"))
    dag = read_dag(run.spec, {})
    (part,) = run.parts()
    states = [
        bar.state
        for row in run.rows(part)
        for lane in timeline(dag, turns(run.read(row))).lanes
        for bar in lane.bars
    ]
    assert {"done", "failed", "skipped"} <= set(states)


def test_without_times_every_turn_is_as_long_as_another() -> None:
    made = episodes(workflow("solver_judge").plan, 1, 1)[0]
    taken = turns(without(made, "started", "seconds"))
    line = timeline(read_dag(workflow("solver_judge").plan.spec, {}), taken)
    ends = {bar.node: (bar.start, bar.end) for lane in line.lanes for bar in lane.bars}
    assert not line.timed
    assert ends == {NodeId("solver", 1): (0, 1), NodeId("solver", 2): (0, 1), NodeId("judge"): (1, 2)}


def test_a_run_whose_spec_cannot_be_read_is_drawn_by_its_rounds() -> None:
    made = episodes(workflow("solver_verifier_loop").plan, 1, 1)[0]
    taken = turns(made)
    starts = {node: bar.start for node, bar in bars_of(timeline(read_dag(None, {}), taken)).items()}
    assert set(starts) == set(taken)
    taken = turns(without(made, "started"))
    bars = bars_of(timeline(read_dag(None, {}), taken))
    assert all(bars[node].start == 0 for node in taken if node.round == 1)


def test_of_very_many_instances_some_are_drawn_and_the_rest_counted() -> None:
    nodes = [NodeId("one", index) for index in range(1, 501)]
    line = timeline(graph_of(dict.fromkeys(nodes, ())), {})
    assert (len(line.lanes), line.left_out) == (MOST_LANES, 500 - MOST_LANES)
