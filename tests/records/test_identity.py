"""Tests of call identities and their seeds: unique within a run, and independent of other calls."""

from __future__ import annotations

from itertools import product

from hypothesis import given
from hypothesis import strategies as st

from rolegraph.engine.records import CallId, NodeId, call_seed, derive_seed, salt_of


def test_seeds_differ_by_purpose() -> None:
    purposes = [("train", 1), ("train", 2), ("validation",)]
    seeds = {derive_seed(seed, *purpose) for seed in (1, 2) for purpose in purposes}
    assert len(seeds) == 6


@given(st.text(max_size=5), st.text(max_size=5))
def test_purposes_that_read_alike_when_joined_differ(first: str, second: str) -> None:
    if second and "\x1f" not in first + second:
        assert derive_seed(0, first, second) != derive_seed(0, first + second)


def test_no_two_calls_of_an_episode_share_a_seed() -> None:
    nodes = [NodeId(role, index) for role in ("solver", "judge") for index in range(1, 300)]
    seeds = {
        call_seed(7, salt_of(node), call, attempt)
        for node, call, attempt in product(nodes, range(1, 4), range(4))
    }
    assert len(seeds) == len(nodes) * 12
    assert all(0 <= seed < 2**31 for seed in seeds)


def test_a_call_is_written_as_a_person_says_it() -> None:
    assert str(CallId("t1", 2, NodeId("judge", 3))) == "task 't1', rollout 2, judge 3"
    assert str(CallId("t1", 2, NodeId("judge", 3, 4), 5)) == "task 't1', rollout 2, judge 3, round 4, call 5"
