"""Tests of the DAG over roles and of its faults."""

from __future__ import annotations

import networkx as nx
from hypothesis import given
from hypothesis import strategies as st

from rolegraph.engine.compile.graph import check_graph
from rolegraph.engine.spec import Spec
from rolegraph.engine.spec.diagnostics import Finding


def spec(needs: dict[str, list[str]], counts: dict[str, int] | None = None) -> Spec:
    roles = {
        name: {"prompt": "x", "needs": list(needed), "count": (counts or {}).get(name, 1)}
        for name, needed in needs.items()
    }
    return Spec.model_validate({"rolegraph": 2, "name": "graph", "roles": roles})


def findings(needs: dict[str, list[str]], counts: dict[str, int] | None = None) -> list[Finding]:
    written = spec(needs, counts)
    return check_graph(written)


def test_a_cycle_is_shown_as_the_path_that_closes_it() -> None:
    (finding,) = findings({"a": ["c"], "b": ["a"], "c": ["b"], "alone": []})
    assert finding.message == "the roles wait for each other: a -> b -> c -> a"


def test_two_cycles_are_two_findings() -> None:
    assert len(findings({"a": ["b"], "b": ["a"], "c": ["d"], "d": ["c"]})) == 2


def test_a_graph_too_large_to_hold_is_refused() -> None:
    (finding,) = findings({"a": [], "b": ["a"]}, {"a": 4096, "b": 4096})
    assert "16,777,216 incoming edges" in finding.message


ROLES = ["a", "b", "c", "d", "e"]


@given(
    st.dictionaries(
        st.sampled_from(ROLES), st.lists(st.sampled_from(ROLES), max_size=3, unique=True), min_size=1
    )
)
def test_a_spec_without_findings_gives_a_dag_and_one_with_a_cycle_never_passes(
    needs: dict[str, list[str]],
) -> None:
    found = findings(needs)
    known = {name: [need for need in needed if need in needs] for name, needed in needs.items()}
    edges = [(need, name) for name, needed in known.items() for need in needed]
    acyclic = nx.is_directed_acyclic_graph(nx.DiGraph(edges))
    complete = known == needs
    assert (not found) == (acyclic and complete)
