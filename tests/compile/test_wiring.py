"""Tests of the DAG of turns: its paths are what the language defines, and what a run waits for."""

from __future__ import annotations

import networkx as nx
from hypothesis import given
from hypothesis import strategies as st

from rolegraph.engine.compile import Plan
from rolegraph.engine.run.frontier import Frontier
from tests.edge import turn_dag
from tests.examples import examples
from tests.meaning import expected
from tests.workflows import Workflow, compiled, workflows


@examples(200)
@given(st.booleans().flatmap(lambda chats: workflows(chats=chats)))
def test_the_ancestors_of_a_turn_are_what_the_language_lets_it_wait_for(workflow: Workflow) -> None:
    dag = turn_dag(compiled(workflow))
    assert {turn: nx.ancestors(dag, turn) for turn in dag} == expected(workflow).awaited


@examples(200)
@given(workflows())
def test_a_run_starts_nothing_that_follows_a_turn_before_the_turn_has_ended(workflow: Workflow) -> None:
    plan = compiled(workflow)
    dag = turn_dag(plan)
    for place, node in enumerate(plan.nodes):
        waiting = {other.id for other in plan.nodes} - {plan.nodes[n].id for n in started(plan, place)}
        assert waiting == nx.descendants(dag, node.id)


def started(plan: Plan, unending: int) -> set[int]:
    """Return the nodes of turns that a run starts where one of them does not end."""
    frontier, found = Frontier(plan.wiring), set[int]()
    ready = [*plan.wiring.initial_blocks]
    for block in ready:  # grows while it is read
        for node in plan.waits[block].nodes:
            found.add(node)
            ready += frontier.done(node) if node != unending else ()
    return found & {*range(len(plan.nodes))}


@examples(100)
@given(workflows())
def test_counters_are_the_degrees_of_the_dag(workflow: Workflow) -> None:
    plan = compiled(workflow)
    dag, wiring = plan.dag, plan.wiring
    assert nx.is_directed_acyclic_graph(dag)
    assert sum(wiring.join_sizes) == sum(map(len, wiring.joins_of_node))
    assert sum(wiring.joins_awaited) == sum(map(len, wiring.blocks_of_join))
    starts = [node.number for node, degree in dag.in_degree if not degree]
    assert [*wiring.initial_blocks] == sorted(starts)
