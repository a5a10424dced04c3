"""Rewards, parsers and so on from plain functions: `@rg.reward("brief")` and a spec may name `brief`.

A function's keyword-only parameters are the options that a spec may write for it.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial, update_wrapper
from typing import Any, TypeVar, cast

import numpy as np

from rolegraph.engine.errors import DataError, UsageError
from rolegraph.engine.records import FailureName, Task, Trajectory, TrajectoryGroup
from rolegraph.engine.vocabulary import (
    Dataset,
    Estimator,
    Floats,
    Item,
    LossName,
    Metric,
    ParseFailure,
    Parser,
    Registry,
    Reward,
    RewardInputs,
    Row,
    Score,
    Split,
    Upstream,
    dataset_of,
    datasets,
    estimators,
    json_row,
    metrics,
    parsers,
    rewards,
    role_metric,
)

F = TypeVar("F", bound=Callable[..., Any])
Decorator = Callable[[F], F]
Options = Mapping[str, Any]
"""What a spec writes for a function's keyword-only parameters."""
REWARD_SECONDS = 10.0
"""The time limit of a reward that names none and is not pure."""


def reward(
    name: str | None = None,
    *,
    labels: Sequence[str] = (),
    timeout: float = REWARD_SECONDS,
    pure: bool = False,
) -> Decorator[F]:
    """Make `(task, action) -> float | bool | Score` known as a reward.

    A number of at least 1 is correct, as is True. `labels` are task fields that give the answer away: no
    prompt may show them. The function runs in a process of its own, which is stopped after `timeout` seconds;
    one that is `pure`, and fast, runs in place. What it raises is the episode's `reward_error`.
    """

    def build(known: str, function: Callable[..., Any], options: Options) -> Reward:
        score = partial(_score, function, options)
        return Reward(score, tuple(labels), tuple(labels), timeout=None if pure else timeout)

    return _decorator(rewards, name, ("task", "action"), build)


def _score(
    function: Callable[..., Any], options: Options, task: Task, action: Any, seen: RewardInputs
) -> Score:
    earned = function(task, action, **options)
    if isinstance(earned, Score):
        return earned
    if isinstance(earned, bool | int | float | np.number | np.bool_):
        number = float(cast("float", earned))
        return Score(number, number >= 1.0)
    raise TypeError(
        f"{function.__name__} returned {earned!r:.80}; expected a number, True or False, or a Score"
    )


def parser(name: str | None = None, *, default: Any = "") -> Decorator[F]:
    """Make `(text) -> action` known as a parser; a ValueError in it is a `malformed_output`.

    `default` is the action that later roles see then.
    """

    def build(known: str, function: Callable[..., Any], options: Options) -> Parser:
        return Parser(partial(_parse, function, options), default)

    return _decorator(parsers, name, ("text",), build)


def _parse(function: Callable[..., Any], options: Options, text: str, upstream: Upstream) -> Any:
    try:
        return function(text, **options)
    except ParseFailure:
        raise
    except ValueError as error:
        raise ParseFailure(FailureName.MALFORMED_OUTPUT, str(error) or "nothing could be read") from error


def estimator(
    name: str | None = None, *, min_group: int = 1, loss: LossName = "importance_sampling"
) -> Decorator[F]:
    """Make `(rewards) -> advantages` known as an estimator: both an array [G], of one group's members.

    `min_group` is the smallest G that it can work with, `loss` that of a role that names none.
    """

    def build(known: str, function: Callable[..., Any], options: Options) -> Estimator:
        return Estimator(known, options, min_group, partial(_advantages, function, options), loss)

    return _decorator(estimators, name, ("rewards",), build)


def _advantages(
    function: Callable[..., Any],
    options: Options,
    rewards_of: Sequence[Floats],
    groups: Sequence[TrajectoryGroup],
) -> Sequence[Floats]:
    return [np.asarray(function(rewards, **options), dtype=np.float64) for rewards in rewards_of]


def metric(name: str | None = None) -> Decorator[F]:
    """Make `(trajectories) -> float` known as a metric, written `{name: role}`: of a role in one episode."""

    def build(known: str, function: Callable[..., Any], options: Options, role: str) -> Metric:
        return role_metric(partial(_measure, function, options), role)

    role = inspect.Parameter("role", inspect.Parameter.POSITIONAL_ONLY, annotation=str)
    return _decorator(metrics, name, ("trajectories",), build, role)


def _measure(function: Callable[..., Any], options: Options, trajectories: Sequence[Trajectory]) -> float:
    return float(function(trajectories, **options))


def dataset(name: str | None = None, *, hidden: Sequence[str] = ()) -> Decorator[F]:
    """Make `() -> rows` known as a dataset: mappings, the same ones each time it is called.

    `hidden` are fields that no prompt may show. A keyword-only parameter `split` is given "train" or
    "validation". A row's `id` is its own, or follows from its place.
    """

    def build(known: str, function: Callable[..., Any], options: Options, split: Split) -> Dataset:
        asks = "split" in inspect.signature(function).parameters
        read = partial(_rows, partial(function, **options, **({"split": split} if asks else {})))
        shown = f"the dataset {known}"
        first = next(read(), None)
        if first is None:
            raise DataError(f"{shown} has no rows")
        return dataset_of(read, first=first[1], hidden=hidden, stem=known, split=split, shown=shown)

    split = inspect.Parameter("split", inspect.Parameter.KEYWORD_ONLY, annotation=Split)
    return _decorator(datasets, name, (), build, split)


def _rows(function: Callable[[], Iterable[Row]]) -> Iterator[tuple[int, Row]]:
    for number, row in enumerate(function(), 1):
        yield number, json_row(row, f"row {number}")


def _decorator(
    registry: Registry[Any],
    name: str | None,
    takes: Sequence[str],
    build: Callable[..., Item],
    given: inspect.Parameter | None = None,
) -> Decorator[Any]:
    """Registers a factory that a spec's options are checked against; the function itself stays as it is.

    `build(known, function, options)` makes the item `known`; where the kind is `given` one more argument than
    its options, that is `build`'s last.
    """
    if callable(name):  # what stands under a decorator without its parentheses
        function = getattr(name, "__name__", "…")
        raise UsageError(f'@rg.{registry.kind} takes a name: write @rg.{registry.kind}("{function}")')
    own = [] if given is None else [given]

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        known = name or function.__name__
        parameters = inspect.signature(function).parameters.values()
        positional = [p.name for p in parameters if p.kind is not p.KEYWORD_ONLY]
        if len(positional) != len(takes):
            raise UsageError(
                f"a {registry.kind} is a function of ({', '.join(takes)}), with its options after a `*`; "
                f"{function.__name__} takes ({', '.join(positional)})"
            )
        written = [p for p in parameters if p.kind is p.KEYWORD_ONLY and p.name not in {g.name for g in own}]

        def factory(*values: Any, **options: Any) -> Item:
            values += tuple(options.pop(g.name) for g in own if g.name in options)
            return build(known, function, options, *values)

        hints = typing.get_type_hints(function, include_extras=True)
        update_wrapper(factory, function)  # its documentation, and where it was written
        factory.__signature__ = inspect.Signature([*own, *written])  # pyright: ignore[reportFunctionMemberAccess]  # read by inspect
        factory.__annotations__ = {p.name: hints.get(p.name, Any) for p in written}
        factory.__annotations__ |= {g.name: g.annotation for g in own}
        registry.register(known)(factory)
        return function

    return decorate
