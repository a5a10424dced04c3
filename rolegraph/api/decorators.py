"""Decorators that register plain functions as rewards, parsers and so on, for specs to name.

A function's keyword-only parameters are the options that a spec may give it.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial, update_wrapper
from typing import Any, TypeVar, cast

import numpy as np

from rolegraph.engine import vocabulary
from rolegraph.engine.errors import UsageError
from rolegraph.engine.limits.tools import CALL_MEMORY
from rolegraph.engine.records import FailureName, Task
from rolegraph.engine.records.credit import Group
from rolegraph.engine.vocabulary import (
    Dataset,
    Estimator,
    Floats,
    Item,
    Loss,
    Metric,
    Parser,
    Reward,
    RewardFacts,
    Score,
    Split,
)

F = TypeVar("F", bound=Callable[..., Any])
Decorator = Callable[[F], F]
Options = Mapping[str, Any]
"""Values that a spec gives for a function's keyword-only parameters."""
REWARD_SECONDS = 10.0
"""Default time limit of a reward that is not pure."""


def reward(
    name: str | None = None,
    *,
    labels: Sequence[str] = (),
    timeout: float = REWARD_SECONDS,
    memory: int = CALL_MEMORY.most,
    pure: bool = False,
) -> Decorator[F]:
    """Register a function `(task, action) -> float | bool | Score` as a reward.

    A number of at least 1 is correct, as is True. An error in the function is the turn's `reward_error`.

    Args:
        name: Name of the reward in specs; by default the function's name.
        labels: Task fields that reveal the answer; no prompt may show them.
        timeout: Seconds of processor time after which the function's process is stopped; by the clock ten
            times as many.
        memory: Bytes that the function may take, besides the libraries of its process.
        pure: True if the function is fast and safe enough to run without a process of its own.

    Returns:
        A decorator that returns the function unchanged.

    Raises:
        UsageError: The function has other positional parameters, or the name is missing or taken.
    """

    def build(item_name: str, function: Callable[..., Any], options: Options) -> Reward:
        score = partial(_score, function, options)
        time_limit = None if pure else timeout
        fields = (labels,) if isinstance(labels, str) else tuple(labels)
        facts = RewardFacts(fields=fields, labels=fields)
        return Reward(score, facts, timeout=time_limit, memory=memory)

    return _decorator(vocabulary.rewards, name, ("task", "action"), build)


def _score(
    function: Callable[..., Any], options: Options, task: Task, action: Any, seen: vocabulary.RewardInputs
) -> Score:
    score = function(task, action, **options)
    if isinstance(score, Score):
        return score
    if isinstance(score, bool | int | float | np.number | np.bool_):
        number = float(cast("float", score))
        return Score(number, number >= 1.0)
    expected = "expected a number, True or False, or a Score"
    raise TypeError(f"{function.__name__} returned {score!r:.80}; {expected}")


def parser(
    name: str | None = None,
    *,
    default: Any = "",
    expects: Sequence[str] | Callable[..., Sequence[str]] = (),
) -> Decorator[F]:
    """Register a function `(text) -> action` as a parser; a ValueError in it is a `malformed_output`.

    Args:
        name: Name of the parser in specs; by default the function's name.
        default: Action that later roles see after a `malformed_output`.
        expects: Words that each text must hold, such as `["MOVE:"]`, or a function of the options that
            returns them; `validate` warns if a role's prompts do not mention one.

    Returns:
        A decorator that returns the function unchanged.

    Raises:
        UsageError: The function has other positional parameters, or the name is missing or taken.
    """

    def build(item_name: str, function: Callable[..., Any], options: Options) -> Parser:
        words = expects(**options) if callable(expects) else expects
        return Parser(partial(_parse, function, options), default, expects=tuple((word,) for word in words))

    return _decorator(vocabulary.parsers, name, ("text",), build)


def _parse(function: Callable[..., Any], options: Options, text: str, upstream: vocabulary.Upstream) -> Any:
    try:
        return function(text, **options)
    except vocabulary.ParseFailure:
        raise
    except ValueError as error:
        reason = str(error) or "nothing could be read"
        raise vocabulary.ParseFailure(FailureName.MALFORMED_OUTPUT, reason) from error


def estimator(
    name: str | None = None, *, min_group: int = 1, loss: str = "importance_sampling"
) -> Decorator[F]:
    """Register a function `(rewards) -> advantages` as an estimator.

    Rewards and advantages are arrays of floats [G], one number for each of the G members of a group.

    Args:
        name: Name of the estimator in specs; by default the function's name.
        min_group: Smallest G that the function accepts, at least 1.
        loss: Default loss of a role with this estimator.

    Returns:
        A decorator that returns the function unchanged.

    Raises:
        UsageError: The function has other positional parameters, or the name is missing or taken.
    """

    def build(item_name: str, function: Callable[..., Any], options: Options) -> Estimator:
        def advantages(rewards_P_G: Sequence[Floats], groups: Sequence[Group]) -> list[Floats]:
            return [np.asarray(function(rewards, **options), dtype=np.float64) for rewards in rewards_P_G]

        return Estimator(item_name, options, min_group, loss, compute=advantages)

    return _decorator(vocabulary.estimators, name, ("rewards",), build)


def loss(name: str | None = None, *, reads_start: bool = False) -> Decorator[F]:
    """Register a function `(sequences) -> loss` as a training loss.

    The sequences, each a `rolegraph.engine.vocabulary.LossSequence` of tensors [T], are those of one role and
    policy in a step. The loss is a tensor with one element, the mean over the step's trajectories, alone or
    as a pair with metrics by name, which training shows as `loss/{role}/{name}`.

    Args:
        name: Name of the loss in specs; by default the function's name.
        reads_start: True if the function reads `start`, the log-probabilities of the weights that the
            training began with; each sequence is then scored once more.

    Returns:
        A decorator that returns the function unchanged.

    Raises:
        UsageError: The function has other positional parameters, or the name is missing or taken.
    """

    def build(item_name: str, function: Callable[..., Any], options: Options) -> Loss:
        return Loss(item_name, options, partial(function, **options), reads_start)

    return _decorator(vocabulary.losses, name, ("sequences",), build)


def metric(name: str | None = None) -> Decorator[F]:
    """Register a function `(trajectories) -> float` as a metric of one role in one episode: `{name: role}`.

    Args:
        name: Name of the metric in specs; by default the function's name.

    Returns:
        A decorator that returns the function unchanged.

    Raises:
        UsageError: The function has other positional parameters, or the name is missing or taken.
    """

    def build(item_name: str, function: Callable[..., Any], options: Options, role: str) -> Metric:
        return vocabulary.role_metric(lambda trajectories: float(function(trajectories, **options)), role)

    role = inspect.Parameter("role", inspect.Parameter.POSITIONAL_ONLY, annotation=str)
    return _decorator(vocabulary.metrics, name, ("trajectories",), build, role)


def dataset(name: str | None = None, *, hidden: Sequence[str] = ()) -> Decorator[F]:
    """Register a function `() -> rows` as a dataset; it yields the same mappings each time it is called.

    A keyword-only parameter `split` receives `train` or `validation`. A row without an `id` gets one from its
    position.

    Args:
        name: Name of the dataset in specs; by default the function's name.
        hidden: Fields that no prompt may show.

    Returns:
        A decorator that returns the function unchanged.

    Raises:
        UsageError: The function has other positional parameters, or the name is missing or taken.
    """

    def build(item_name: str, function: Callable[..., Any], options: Options, split: Split) -> Dataset:
        takes_split = "split" in inspect.signature(function).parameters
        arguments = {**options, "split": split} if takes_split else options

        def read() -> Iterator[tuple[int, vocabulary.Row]]:
            for number, row in enumerate(function(**arguments), 1):
                yield number, vocabulary.json_row(row, f"row {number}")

        label = f"the dataset {item_name}"
        return vocabulary.dataset_of(read, hidden=hidden, stem=item_name, split=split, shown=label)

    split = inspect.Parameter("split", inspect.Parameter.KEYWORD_ONLY, annotation=Split)
    return _decorator(vocabulary.datasets, name, (), build, split)


def _decorator(
    registry: vocabulary.Registry[Any],
    name: str | None,
    takes: Sequence[str],
    build: Callable[..., Item],
    *given: inspect.Parameter,
) -> Decorator[Any]:
    """Return a decorator that registers a factory of items made from the decorated function.

    Args:
        registry: Registry of the items' kind.
        name: Name of the item; None is the function's name.
        takes: Names of the positional parameters that the decorated function must have.
        build: Function from the item's name, the decorated function, the options and the values of `given` to
            the item.
        given: Parameters of the factory, besides options, whose values the registry passes.
    """
    if callable(name):  # the decorator was written without parentheses
        function = getattr(name, "__name__", "…")
        raise UsageError(f'@rg.{registry.kind} takes a name: write @rg.{registry.kind}("{function}")')

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        item_name = name or function.__name__
        parameters = inspect.signature(function).parameters.values()
        positional_names = [p.name for p in parameters if p.kind is not p.KEYWORD_ONLY]
        if len(positional_names) != len(takes):
            raise UsageError(
                f"a {registry.kind} is a function of ({', '.join(takes)}), with its options after a `*`; "
                f"{function.__name__} takes ({', '.join(positional_names)})"
            )
        option_parameters = [
            p for p in parameters if p.kind is p.KEYWORD_ONLY and p.name not in {g.name for g in given}
        ]

        def factory(*values: Any, **options: Any) -> Item:
            values += tuple(options.pop(parameter.name) for parameter in given if parameter.name in options)
            return build(item_name, function, options, *values)

        hints = typing.get_type_hints(function, include_extras=True)
        update_wrapper(factory, function)  # for the item's docstring and the place of its definition
        factory.__signature__ = inspect.Signature([*given, *option_parameters])  # pyright: ignore[reportFunctionMemberAccess]  # read by inspect
        factory.__annotations__ = {p.name: hints.get(p.name, Any) for p in option_parameters}
        factory.__annotations__ |= {g.name: g.annotation for g in given}
        registry.register(item_name)(factory)
        return function

    return decorate
