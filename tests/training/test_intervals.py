"""Tests of confidence intervals over tasks, and of their differences: none collapses to a point."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rolegraph.engine.training.analysis.intervals import (
    Interval,
    crossed,
    difference,
    interval,
)


def tasks(values: Sequence[float], name: str = "t") -> dict[str, float]:
    return {f"{name}{number}": float(value) for number, value in enumerate(values)}


@pytest.mark.parametrize(
    ("right", "n", "low", "high"),
    # Wilson's interval without continuity correction, as in table I of Newcombe (1998).
    [(81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605), (0, 20, 0.0, 0.1611), (1, 29, 0.0061, 0.1718)],
)
def test_a_share_has_the_interval_of_wilson(right: int, n: int, low: float, high: float) -> None:
    ends = interval(tasks([1.0] * right + [0.0] * (n - right)))
    assert (ends.low, ends.high) == (pytest.approx(low, abs=6e-5), pytest.approx(high, abs=6e-5))
    assert ends.n == n


@pytest.mark.parametrize(
    ("one", "two", "low", "high"),
    # Method 10 for independent proportions, table II of Newcombe (1998).
    [
        ((56, 70), (48, 80), 0.0524, 0.3339),
        ((9, 10), (3, 10), 0.1705, 0.8090),
        ((10, 10), (0, 10), 0.6075, 1.0),
    ],
)
def test_a_difference_of_other_tasks_has_the_interval_of_newcombe(
    one: tuple[int, int], two: tuple[int, int], low: float, high: float
) -> None:
    sides = [
        tasks([1.0] * right + [0.0] * (n - right), name) for (right, n), name in ((one, "a"), (two, "b"))
    ]
    ends = difference(sides[0], sides[1], paired=False)
    assert (ends.low, ends.high) == (pytest.approx(low, abs=6e-5), pytest.approx(high, abs=6e-5))


ALIKE = [
    [1.0] * 20,
    [0.1 + 0.2, 0.3] * 10,
    [0.0] * 20,
    [0.5] * 20,
    [-1.0] * 20,
    [12.0] * 20,
    [1.0],
    [0.0, 0.0],
]


@pytest.mark.parametrize("values", ALIKE)
def test_values_that_are_all_the_same_have_an_interval_with_a_width(values: list[float]) -> None:
    ends = interval(tasks(values))
    assert ends.low <= ends.mean <= ends.high and ends.high - ends.low > 0.1
    same = difference(tasks(values), tasks(values))
    assert same.low < 0 < same.high and same.mean == 0


def test_a_difference_that_is_the_same_for_every_task_has_a_width() -> None:
    gap = difference(tasks([1.0] * 20), tasks([0.0] * 20))
    assert gap.mean == 1 == gap.high and 0.6 < gap.low < 0.9
    mixed = tasks([float(number % 2) for number in range(20)])
    gap = difference(mixed, mixed)
    assert gap.low < 0 < gap.high


@given(st.lists(st.sampled_from([0.0, 0.25, 0.5, 0.75, 1.0]), min_size=1, max_size=40))
def test_an_interval_of_shares_holds_the_mean_and_stays_within_0_and_1(values: list[float]) -> None:
    ends = interval(tasks(values))
    assert 0 <= ends.low <= ends.mean <= ends.high <= 1
    assert ends.mean == pytest.approx(fmean(values))
    assert ends.high - ends.low > 0


@given(st.lists(st.tuples(*[st.floats(-50, 50)] * 2), min_size=1, max_size=20))
def test_a_difference_holds_its_mean_whatever_the_values(pairs: list[tuple[float, float]]) -> None:
    gap = difference(tasks([now for now, _ in pairs]), tasks([before for _, before in pairs]))
    assert gap.low <= gap.mean <= gap.high and gap.high > gap.low


def test_rollouts_of_a_task_are_no_tasks_of_their_own() -> None:
    """Tasks that are solved always or never tell as much as one rollout of each."""
    one = interval(tasks([1.0] * 10 + [0.0] * 10))
    mixed = interval(tasks([0.25, 0.75] * 10))
    assert one.high - one.low > 1.5 * (mixed.high - mixed.low)


def test_pairs_narrow_a_difference() -> None:
    before = tasks([number / 60 for number in range(25)])
    now = {task: value + 0.08 for task, value in before.items()}
    paired, apart = difference(now, before), difference(now, before, paired=False)
    assert paired.high - paired.low < 0.7 * (apart.high - apart.low)
    assert difference({**now, "other": 1.0}, before).n == 25


def test_a_side_without_tasks_has_no_interval() -> None:
    assert interval({}) == difference({}, tasks([1.0])) == Interval(0.0, 0.0, 0.0, 0)
    assert difference(tasks([1.0], "a"), tasks([1.0], "b")).n == 0


def test_two_token_counts_that_are_the_same_differ_by_less_than_a_token() -> None:
    counts = tasks([600.0 + 7 * (number % 9) for number in range(60)])
    gap = difference(counts, counts)
    assert gap.mean == 0 and -0.5 < gap.low < 0 < gap.high < 0.5
    more = difference({task: value + 12 for task, value in counts.items()}, counts)
    assert more.mean == pytest.approx(12) and more.low > 10
    assert difference(counts, tasks([*counts.values()], "u"), paired=False).high > 1, "other tasks: two means"


@pytest.mark.parametrize("values", ALIKE)
@pytest.mark.parametrize("seeds", [1, 3])
def test_seeds_that_are_all_the_same_leave_an_interval_with_a_width(values: list[float], seeds: int) -> None:
    ends = crossed([tasks(values)] * seeds)
    assert ends.low <= ends.mean <= ends.high and ends.high - ends.low > 0.1
    if seeds == 1:
        assert ends == interval(tasks(values))
    gap = crossed([tasks([0.0] * len(values))] * seeds, difference=True)
    assert gap.low < 0 < gap.high


def test_seeds_widen_an_interval_and_stand_for_the_tasks_of_a_single_one() -> None:
    values = [number / 40 for number in range(40)]
    same = crossed([tasks(values)] * 3)
    apart = crossed([tasks([value + shift for value in values]) for shift in (-0.1, 0.0, 0.1)])
    assert apart.high - apart.low > 1.5 * (same.high - same.low)
    whole = crossed([{"": value} for value in (0.4, 0.5, 0.6)])
    assert (whole.n, whole.low, whole.high) == (1, *interval_ends([0.4, 0.5, 0.6]))
    assert crossed([]) == crossed([{"a": 1.0}, {"b": 1.0}]) == Interval(0.0, 0.0, 0.0, 0)


def interval_ends(values: Sequence[float]) -> tuple[float, float]:
    ends = interval(tasks(values))
    return ends.low, ends.high


@pytest.mark.parametrize("spread", [0.0, 0.03])
def test_as_many_crossed_intervals_as_promised_hold_the_truth(spread: float) -> None:
    rng = np.random.default_rng(0)
    holds = 0
    for _ in range(200):
        chances, shifts = rng.uniform(0.3, 0.7, 64), rng.normal(0, spread, 3)
        ends = crossed([tasks(rng.binomial(2, chances + shift) / 2) for shift in shifts])
        holds += ends.low <= 0.5 <= ends.high
    assert holds / 200 >= 0.92


def test_as_many_intervals_as_promised_hold_the_truth() -> None:
    rng = np.random.default_rng(0)
    holds = 0
    for _ in range(300):
        chances = rng.beta(1.8, 0.2, 20)
        ends = interval(tasks(rng.binomial(4, chances) / 4))
        holds += ends.low <= 0.9 <= ends.high
    assert 0.90 <= holds / 300 <= 0.99
