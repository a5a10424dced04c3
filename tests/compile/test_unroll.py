"""Tests of the unrolled graph: nodes, and counters equivalent to the edges of the DAG."""

from __future__ import annotations

import networkx as nx
from hypothesis import given
from hypothesis import strategies as st

from rolegraph.engine.compile.lineage import instances_of
from rolegraph.engine.compile.unroll import UnrolledGraph
from rolegraph.engine.compile.wiring import Wiring, counters
from rolegraph.engine.records import NodeId
from rolegraph.engine.spec import Spec
from rolegraph.pages.view.timeline import role_inputs_from_text
from tests.edge import solver_judge, turn_dag


def unrolled(needs: dict[str, list[str]], counts: dict[str, int]) -> UnrolledGraph:
    roles = {name: {"prompt": "x", "needs": needed, "count": counts[name]} for name, needed in needs.items()}
    spec = Spec.model_validate({"rolegraph": 2, "name": "graph", "roles": roles})
    return UnrolledGraph(spec, instances_of(spec), role_inputs_from_text(spec, {}))


def wired(needs: dict[str, list[str]], counts: dict[str, int]) -> Wiring:
    return counters(unrolled(needs, counts).waits)


def test_every_instance_waits_for_every_instance_of_what_its_role_needs() -> None:
    episode = "episode={correct: all(judge.right), metrics: {judge_acc: mean(judge.right)}}"
    dag = turn_dag(solver_judge("roles.solver.count=3", "roles.judge.count=2", episode))
    solvers = [NodeId("solver", 1), NodeId("solver", 2), NodeId("solver", 3)]
    assert sorted(dag.predecessors(NodeId("judge", 2))) == solvers
    assert dag.number_of_edges() == 6
    assert nx.is_directed_acyclic_graph(dag)


def test_joins_are_counters_and_not_edges() -> None:
    wiring = wired({"a": [], "b": ["a"]}, {"a": 256, "b": 256})
    assert wiring.join_sizes == (256,)
    assert sum(map(len, wiring.joins_of_node)) == 256
    assert wiring.blocks_of_join == ((1,),)


def test_index_counts_from_one_and_no_two_nodes_share_a_salt() -> None:
    nodes = unrolled({"a": [], "b": ["a"]}, {"a": 3, "b": 2}).nodes
    assert [node.id for node in nodes] == [NodeId("a", n) for n in (1, 2, 3)] + [
        NodeId("b", n) for n in (1, 2)
    ]
    assert len({node.salt for node in nodes}) == 5


def test_a_reward_reads_the_last_turn_that_ran_or_its_own_round_where_turns_are_compared() -> None:
    roles = {"a": {"count": 2}, "b": {"needs": {"a": "each"}}, "c": {}}
    rewards = {"a": ("b",), "b": ("c",), "c": ("a",)}

    def read(credit: str) -> dict[NodeId, list[list[NodeId]]]:
        own = {"prompt": "x", "credit": credit}
        spec = Spec.model_validate(
            {
                "rolegraph": 2,
                "name": "graph",
                "roles": {name: {**own, **role} for name, role in roles.items()},
                "loops": {"l": {"roles": ["a", "b"], "times": 2}},
            }
        )
        made = UnrolledGraph(spec, instances_of(spec), role_inputs_from_text(spec, {}), rewards)
        return {
            made.nodes[node].id: [
                [made.nodes[n].id for n in see.nodes[start : start + see.turns_per_instance]]
                for see in sees
                for start in range(0, len(see.nodes), see.turns_per_instance)
            ]
            for node, sees in made.reward_inputs.items()
        }

    last, own = read("trajectory"), read("turn")
    assert last[NodeId("a", 2, 1)] == [[NodeId("b", 2, 1), NodeId("b", 2, 2)]]
    assert own[NodeId("a", 2, 1)] == [[NodeId("b", 2, 1)]]
    assert own[NodeId("b", 1, 2)] == last[NodeId("b", 1, 2)] == [[NodeId("c", 1, 1)]]
    both = [[NodeId("a", 1, 1), NodeId("a", 1, 2)], [NodeId("a", 2, 1), NodeId("a", 2, 2)]]
    assert own[NodeId("c", 1, 1)] == last[NodeId("c", 1, 1)] == both


ROLES = "abcdef"


Dag = tuple[dict[str, list[str]], dict[str, int]]
"""Dependencies of each role, and the number of its instances."""


@st.composite
def dags(draw: st.DrawFn) -> Dag:
    names = draw(st.permutations(ROLES))[: draw(st.integers(1, len(ROLES)))]
    needs = {
        name: draw(st.lists(st.sampled_from(names[:place]), unique=True)) if place else []
        for place, name in enumerate(names)
    }
    counts = {name: draw(st.integers(1, 4)) for name in names}
    order = draw(st.permutations(names))
    return {name: needs[name] for name in order}, counts


@given(dags())
def test_a_block_sees_the_nodes_of_what_its_role_needs(
    dag: tuple[dict[str, list[str]], dict[str, int]],
) -> None:
    needs, counts = dag
    tables = unrolled(needs, counts)
    names = list(needs)
    for block in tables.blocks:
        name = names[block.role]
        assert [tables.nodes[n].id for n in block.nodes] == [NodeId(name, i + 1) for i in range(counts[name])]
        seen = {see.name: [tables.nodes[n].id for n in see.nodes] for see in block.inputs}
        assert seen == {need: [NodeId(need, i + 1) for i in range(counts[need])] for need in needs[name]}
