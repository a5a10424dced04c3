"""An episode on its time line: the DAG is the engine's own, and a turn begins when what it waits for ends."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.compile import compile_file, graph
from engine.records import NodeId
from engine.shipped import SPECS
from engine.view.runs import open_run
from engine.view.timeline import MOST_LANES, Dag, drawing, read_dag, timeline
from engine.view.turns import turns
from tests.view.runs import episodes, workflow, write_run

NAMES = sorted(path.stem for path in SPECS.glob("*.yaml"))
OPTIONAL = {"textarena": "textarena", "react": "bm25s"}


@pytest.mark.parametrize("name", NAMES)
def test_the_dag_that_is_drawn_is_the_one_that_runs(name: str) -> None:
    if name in OPTIONAL:
        pytest.importorskip(OPTIONAL[name])
    plan = compile_file(name)
    templates = {f"the prompt of {role.name}": role.prompt.source for role in plan.roles if role.prompt}
    dag = read_dag(plan.spec, templates)
    assert dag is not None
    drawn = {(before, node) for node, those in dag.before.items() for before in those}
    assert (set(dag.before), drawn) == (set(graph(plan).nodes), set(graph(plan).edges))


def test_each_turn_begins_where_the_last_that_it_waits_for_ends() -> None:
    flow = workflow("solver_verifier_loop")
    dag = read_dag(flow.plan.spec, {})
    assert dag is not None
    for episode in episodes(flow.plan, 1):
        taken = turns(episode)
        line = timeline(dag, taken)
        bars = {bar.node: bar for lane in line.lanes for bar in lane.bars}
        assert line.timed
        for node, bar in bars.items():
            assert bar.start == max((bars[other].end for other in dag.before[node]), default=0.0)
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
    timeless = [t._replace(steps=[s._replace(metadata={}) for s in t.steps]) for t in made.trajectories]
    taken = turns(made._replace(trajectories=timeless))
    line = timeline(read_dag(workflow("solver_judge").plan.spec, {}), taken)
    ends = {bar.node: (bar.start, bar.end) for lane in line.lanes for bar in lane.bars}
    assert not line.timed
    assert ends == {NodeId("solver", 1): (0, 1), NodeId("solver", 2): (0, 1), NodeId("judge"): (1, 2)}


def test_a_run_whose_spec_cannot_be_read_is_drawn_by_its_rounds() -> None:
    made = episodes(workflow("solver_verifier_loop").plan, 1, 1)[0]
    taken = turns(made)
    line = timeline(read_dag(None, {}), taken)
    starts = {bar.node: bar.start for lane in line.lanes for bar in lane.bars}
    assert set(starts) == set(taken)
    assert all(starts[node] == 0 for node in taken if node.round == 1)


def test_of_very_many_instances_some_are_drawn_and_the_rest_counted() -> None:
    nodes = [NodeId("one", index) for index in range(1, 501)]
    line = timeline(Dag(dict.fromkeys(nodes, ())), {})
    assert (len(line.lanes), line.left_out) == (MOST_LANES, 500 - MOST_LANES)
    assert len(drawing(line).rects) == MOST_LANES
