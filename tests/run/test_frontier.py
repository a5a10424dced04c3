"""Tests of the blocks that become ready as nodes end, without a clock, a model or a task."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from rolegraph.engine.run.frontier import Frontier
from tests.compile.test_unroll import dags, unrolled, wired

# a ─┐
#    ├─ c (x2) ── d        a and b are one node each, c two, d one
# b ─┘
DIAMOND = wired({"a": [], "b": [], "c": ["a", "b"], "d": ["c"]}, {"a": 1, "b": 1, "c": 2, "d": 1})


def test_what_waits_for_nothing_starts() -> None:
    assert DIAMOND.initial_blocks == (0, 1)


def test_a_block_is_ready_when_all_that_it_waits_for_is_done_in_any_order() -> None:
    for first, second in ((0, 1), (1, 0)):
        frontier = Frontier(DIAMOND)
        assert not frontier.done(first)
        assert frontier.done(second) == [2]


def test_a_join_waits_for_each_of_its_nodes() -> None:
    frontier = Frontier(DIAMOND)
    frontier.done(0)
    frontier.done(1)
    assert not frontier.done(3)
    assert frontier.done(2) == [3]
    assert not frontier.done(4)


def test_one_node_can_make_several_blocks_ready() -> None:
    wiring = wired({"a": [], "b": ["a"], "c": ["a"]}, {"a": 1, "b": 1, "c": 1})
    assert Frontier(wiring).done(0) == [1, 2]


def test_two_frontiers_share_a_wiring_and_nothing_else() -> None:
    one, other = Frontier(DIAMOND), Frontier(DIAMOND)
    one.done(0)
    one.done(1)
    assert not other.done(0)
    assert other.done(1) == [2]


@given(dags(), st.randoms(use_true_random=False))
def test_every_block_is_ready_once_and_never_before_what_it_sees(dag, random) -> None:
    tables, wiring = unrolled(*dag), wired(*dag)
    frontier = Frontier(wiring)
    running = [node for block in wiring.initial_blocks for node in tables.blocks[block].nodes]
    opened = list(wiring.initial_blocks)
    done: set[int] = set()
    while running:
        node = running.pop(random.randrange(len(running)))
        done.add(node)
        for block in frontier.done(node):
            assert all(seen in done for see in tables.blocks[block].inputs for seen in see.nodes)
            opened.append(block)
            running += tables.blocks[block].nodes
    assert sorted(opened) == list(range(len(tables.blocks)))
    assert done == set(range(len(tables.nodes)))
