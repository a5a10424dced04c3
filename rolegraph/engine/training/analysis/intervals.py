"""Confidence intervals of means over tasks, over tasks and seeds, and of their differences. Pure.

Episodes of one task share its difficulty, so the task is the unit, not the episode. No interval has the width
0: 20 right answers of 20 are compatible with a share of 0.84. The formulas are closed ones instead of a
bootstrap, which resamples values that are all the same to one point; scipy and statsmodels, which have
Wilson's and Newcombe's, are large dependencies for these lines.

References:
- Wilson (1927), "Probable inference, the law of succession, and statistical inference": the interval.
- Satterthwaite (1946), "An approximate distribution of estimates of variance components": the degrees of
  freedom where tasks are crossed with seeds.
- Korn and Graubard (1998), "Confidence intervals for proportions with small expected number of positive
  counts estimated from survey data": the effective number of tasks.
- Newcombe (1998), "Interval estimation for the difference between independent proportions", method 10, and
  "Improved confidence intervals for the difference between binomial proportions based on paired data", also
  method 10: the difference. Zou and Donner (2008) derive it for means of any kind.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import sqrt
from statistics import NormalDist
from typing import Literal

import numpy as np

from rolegraph.engine.records.numbers import signed
from rolegraph.engine.records.schema import Figure
from rolegraph.engine.vocabulary import Floats

LEVEL = 95
"""Confidence level in percent."""
METHOD = f"{LEVEL} % intervals over tasks (Wilson, Newcombe), the rollouts of a task averaged first"
"""Description of the intervals, for pages and tables."""
STAR = "* its interval leaves out 0"
"""Caption of a table of differences."""
ROUNDING = 1e-9
"""Standard deviation, as a part of the range, below which values differ by rounding alone."""
_Z = NormalDist().inv_cdf(0.5 + LEVEL / 200)

ByTask = Mapping[str, float]
"""Mean of a metric over each task's episodes, by task id."""


@dataclass(frozen=True, slots=True)
class Interval:
    """Mean over tasks with its confidence interval, at the level `LEVEL`."""

    mean: Figure
    low: Figure
    high: Figure
    n: int
    """Number of tasks."""

    @property
    def signed(self) -> str:
        """Mean and ends of a difference with their signs, such as `+0.321 [+0.250, +0.387]`."""
        return f"{signed(self.mean)} [{signed(self.low)}, {signed(self.high)}]"

    @property
    def sign(self) -> Literal[-1, 0, 1]:
        """1 if the whole interval is above 0, -1 if it is below 0; 0 if it contains 0, or without tasks."""
        return 0 if not self.n else 1 if self.low > 0 else -1 if self.high < 0 else 0


def interval_cell(interval: Interval | None, *, is_difference: bool = False, tasks: int | None = None) -> str:
    """Return a mean for a table, with its interval and n in two further lines.

    Args:
        interval: The mean over n tasks; None, or n = 0, is shown as a dash.
        is_difference: Whether to write the sign, and a star where the interval leaves out 0 (`STAR`).
        tasks: The number of all tasks, which is shown beside an n that differs from it.
    """
    if interval is None or not interval.n:
        return "–"
    form = f"{'+' if is_difference else ''},.{3 if abs(interval.mean) < 10 else 1}f"
    star = " *" if is_difference and interval.sign else ""
    of = "" if tasks in (None, interval.n) else f" of {tasks}"
    return (
        f"{interval.mean:{form}}{star}\n[{interval.low:{form}}, {interval.high:{form}}]\nn {interval.n}{of}"
    )


def interval(values: ByTask) -> Interval:
    """Return the mean over tasks with Wilson's interval, on the metric's range.

    Args:
        values: Mean of each task. A range of 0 to 1 is assumed, and stretched to the values outside of it.

    Returns:
        The interval. For no tasks, all its numbers are 0.
    """
    return _wilson(_array(values), _range(values))


def crossed(seeds: Sequence[ByTask], *, difference: bool = False) -> Interval:
    """Return the mean over seeds and tasks, with an interval for other seeds and other tasks.

    Wilson's interval of the tasks, each averaged over the seeds, is widened by the variance that the seeds
    add, with Student's factor for few seeds. With one task, the seeds take its place; with one seed, nothing
    is known of seeds, and the interval is that of the tasks.

    Args:
        seeds: Means of each task, by seed; tasks that a seed lacks are left out.
        difference: Whether the values are differences of shares, -1 to 1, instead of shares.

    Returns:
        The interval, whose n is the number of tasks. If no task is common to all seeds, all its numbers are
        0.
    """
    tasks = sorted(set[str]().union(*seeds[:1]).intersection(*seeds))
    if not tasks:
        return Interval(0.0, 0.0, 0.0, 0)
    values_S_P = np.array([[seed[task] for task in tasks] for seed in seeds], dtype=np.float64)
    bounds = _range(*seeds, least=-1.0 if difference else 0.0)
    if len(tasks) == 1:
        return replace(_wilson(values_S_P[:, 0], bounds), n=1)
    return _wilson(values_S_P.mean(axis=0), bounds, _variance_of_seeds(values_S_P))


def difference(now: ByTask, before: ByTask, *, paired: bool = True) -> Interval:
    """Return the difference of two means, `now` minus `before`, with Newcombe's interval.

    Newcombe's holds for shares. Values outside of 0 to 1, such as tokens, have no range of their own: paired,
    their interval is Wilson's of the differences, since a large count that is the same on both sides says
    nothing of how far they are apart.

    Args:
        now: Mean of each task.
        before: Mean of each task on the other side.
        paired: Whether a task id means the same task on both sides. Then the tasks that only one side has are
            left out, and the correlation of the sides narrows the interval.

    Returns:
        The interval, whose n is that of the smaller side. If a side has no task, all its numbers are 0.
    """
    if paired:
        now = {task: value for task, value in now.items() if task in before}
        before = {task: before[task] for task in now}
    bounds = _range(now, before)
    now_mean, before_mean = _wilson(_array(now), bounds), _wilson(_array(before), bounds)
    if not (now_mean.n and before_mean.n):
        return Interval(0.0, 0.0, 0.0, 0)
    if paired and bounds != (0.0, 1.0):
        return crossed([{task: value - before[task] for task, value in now.items()}], difference=True)
    correlation = _correlation(_array(now), _array(before), bounds) if paired else 0.0
    mean = now_mean.mean - before_mean.mean
    low = mean - _joined(now_mean.mean - now_mean.low, before_mean.high - before_mean.mean, correlation)
    high = mean + _joined(now_mean.high - now_mean.mean, before_mean.mean - before_mean.low, correlation)
    return Interval(mean, low, high, min(now_mean.n, before_mean.n))


def _array(values: ByTask) -> Floats:
    return np.array([*values.values()], dtype=np.float64)


def _range(*sides: ByTask, least: float = 0.0) -> tuple[float, float]:
    """Return (low, high), the smallest range that holds `least`, 1 and all values of the sides."""
    values = [least, 1.0, *(value for means in sides for value in means.values())]
    return min(values), max(values)


def _wilson(values: Floats, ends: tuple[float, float], further: float = 0.0) -> Interval:
    """Return Wilson's interval of values, whose mean varies by a `further` variance that they do not show."""
    if not values.size:
        return Interval(0.0, 0.0, 0.0, 0)
    mean, n = float(values.mean()), _effective(values, ends)
    if (largest_variance := (mean - ends[0]) * (ends[1] - mean)) > 0:
        n = largest_variance / (largest_variance / n + further)
    return _score(mean, n, ends, values.size)


def _score(mean: float, n: float, ends: tuple[float, float], size: int) -> Interval:
    """Return Wilson's interval of a mean on a range, from `n` tasks of 0 or 1; `size` is its `Interval.n`."""
    low, width = ends[0], ends[1] - ends[0]
    share = (mean - low) / width
    centre = (share + _Z**2 / (2 * n)) / (1 + _Z**2 / n)
    half_width = _Z * sqrt(max(0.0, share * (1 - share)) / n + _Z**2 / (4 * n**2)) / (1 + _Z**2 / n)
    lower, upper = low + width * max(0.0, centre - half_width), low + width * min(1.0, centre + half_width)
    return Interval(mean, min(mean, lower), max(mean, upper), size)


def _effective(values: Floats, ends: tuple[float, float]) -> float:
    """Return the number of 0-or-1 tasks that would determine the mean as well as these tasks do.

    That is their own number where each task is 0 or 1, or where all are the same: nothing is known then of
    how tasks vary. Tasks that vary less count for more, with Student's factor for a variance of few tasks.
    """
    variance, mean = float(values.var()), float(values.mean())
    largest_variance = (mean - ends[0]) * (ends[1] - mean)
    if float(values.std()) < ROUNDING * (ends[1] - ends[0]):
        return values.size
    return values.size * max(1.0, largest_variance / variance / _factor(values.size - 1))


def _variance_of_seeds(table_S_P: Floats) -> float:
    """Return the variance that seeds add to the mean of a table of seeds and tasks, with Student's factor.

    The tasks' means and the seeds' means both show the noise of each answer, which counts once. The degrees
    of freedom are Satterthwaite's: 93 to 98 % of 2,000 simulated tables of 3 seeds and 128 tasks held the
    truth.
    """
    seeds, tasks = table_S_P.shape
    if seeds == 1:
        return 0.0
    task_means, seed_means = table_S_P.mean(axis=0), table_S_P.mean(axis=1, keepdims=True)
    by_task, by_seed = float(task_means.var(ddof=1)) / tasks, float(seed_means.var(ddof=1)) / seeds
    residual = ((table_S_P - task_means - seed_means + table_S_P.mean()) ** 2).sum()
    noise = float(residual) / ((seeds - 1) * (tasks - 1)) / (seeds * tasks)
    if not (total := max(by_task, by_seed, by_task + by_seed - noise)):
        return 0.0
    freedom = total**2 / (by_task**2 / (tasks - 1) + by_seed**2 / (seeds - 1))
    return max(0.0, total * _factor(freedom) - by_task * _factor(tasks - 1))


def _factor(freedom: float) -> float:
    """Return the square of the factor by which an interval widens because its variance is estimated."""
    return (_student(freedom) / _Z) ** 2


def _student(freedom: float) -> float:
    """Return Student's t quantile at the level of the intervals, by its series (Abramowitz and Stegun,
    26.7.5)."""
    quantile = _Z
    terms = (
        (quantile**3 + quantile) / 4,
        (5 * quantile**5 + 16 * quantile**3 + 3 * quantile) / 96,
        (3 * quantile**7 + 19 * quantile**5 + 17 * quantile**3 - 15 * quantile) / 384,
    )
    return quantile + sum(term / freedom**power for power, term in enumerate(terms, 1))


def _correlation(now: Floats, before: Floats, ends: tuple[float, float]) -> float:
    """Return the correlation of two sides' values, for the interval of their difference.

    A positive correlation is lowered by Newcombe's continuity correction.
    """
    deviations = float(now.std() * before.std())
    if min(float(now.std()), float(before.std())) < ROUNDING * (ends[1] - ends[0]):
        return 0.0
    covariance = float(((now - now.mean()) * (before - before.mean())).mean())
    if covariance <= 0:
        return covariance / deviations
    shares = [(float(values.mean()) - ends[0]) / (ends[1] - ends[0]) for values in (now, before)]
    binomial = sqrt(shares[0] * (1 - shares[0]) * shares[1] * (1 - shares[1]))
    return max(0.0, covariance / deviations - 1 / (2 * now.size * binomial))


def _joined(one: float, two: float, alike: float) -> float:
    return sqrt(max(0.0, one**2 - 2 * alike * one * two + two**2))
