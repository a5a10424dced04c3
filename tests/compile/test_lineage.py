"""Tests of instances, their lineage, and the instances that an edge joins."""

from __future__ import annotations

from typing import Any

from rolegraph.engine.compile.lineage import instances_of, joined
from rolegraph.engine.spec import Edge, Spec


def spec(roles: dict[str, dict[str, Any]], loops: dict[str, Any] | None = None) -> Spec:
    prompted = {name: {"prompt": "x", **role} for name, role in roles.items()}
    return Spec.model_validate({"rolegraph": 2, "name": "x", "roles": prompted, "loops": loops or {}})


MALT = spec(
    {
        "generator": {"count": 2},
        "verifier": {"needs": {"generator": "each"}, "count": 3},
        "refiner": {"needs": {"verifier": "each", "generator": "branch"}, "count": 2},
        "vote": {"needs": ["refiner"]},
    }
)


def test_a_tree_multiplies_and_each_leaf_knows_the_way_down_to_it() -> None:
    instances = instances_of(MALT)
    assert {name: len(found) for name, found in instances.items()} == {
        "generator": 2,
        "verifier": 6,
        "refiner": 12,
        "vote": 1,
    }
    leaf = instances["refiner"][8]
    assert leaf.path == (2, 2, 1)
    assert leaf.lineage == {"refiner": {9}, "verifier": {5}, "generator": {2}}
    assert instances["vote"][0].lineage["refiner"] == frozenset(range(1, 13))


def test_a_branch_is_what_shares_a_number_in_every_role_that_both_come_from() -> None:
    instances = instances_of(MALT)
    branch = Edge(join="branch")
    assert [*joined(branch, instances["refiner"][8], instances["generator"])] == [1]
    assert [*joined(branch, instances["generator"][0], instances["refiner"])] == [0, 1, 2, 3, 4, 5]


def test_critics_of_a_draft_are_on_the_branch_of_its_editor() -> None:
    instances = instances_of(
        spec(
            {
                "draft": {"count": 2},
                "critic": {"needs": {"draft": "each"}, "count": 2},
                "editor": {"needs": {"draft": "each", "critic": "branch"}},
            }
        )
    )
    edge = Edge(join="branch")
    assert [[*joined(edge, editor, instances["critic"])] for editor in instances["editor"]] == [
        [0, 1],
        [2, 3],
    ]


def test_chunks_are_taken_in_order() -> None:
    instances = instances_of(spec({"a": {"count": 6}, "b": {"needs": {"a": {"chunks": 3}}, "count": 2}}))
    edge = MALT.roles["verifier"].needs["generator"].model_copy(update={"join": "each"})
    assert [[*joined(edge, b, instances["a"])] for b in instances["b"]] == [[0, 1, 2]] * 2 + [[3, 4, 5]] * 2
    assert [b.path for b in instances["b"]] == [(1, 1), (1, 2), (2, 1), (2, 2)]


def test_a_pair_of_a_loop_shares_a_branch_in_both_directions() -> None:
    instances = instances_of(
        spec(
            {
                "solver": {"count": 3, "needs": {"verifier": {"join": "branch", "round": "previous"}}},
                "verifier": {"needs": {"solver": "each"}},
            },
            {"refine": {"roles": ["solver", "verifier"], "times": 2}},
        )
    )
    edge = Edge(join="branch", round="previous")
    assert [[*joined(edge, s, instances["verifier"])] for s in instances["solver"]] == [[0], [1], [2]]
