"""What a parser, reward, …, dataset, environment is to the engine, and the registry of each kind.

An item is a small frozen object that a factory makes from a spec's options. It carries its function and
says what it refers to (roles, task fields), so that the compiler can check it before anything runs.
Packages add their own items through the entry-point groups named here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from rolegraph.engine.errors import DataError, RolegraphError
from rolegraph.engine.records import (
    Episode,
    FailureName,
    Step,
    Task,
    TerminationReason,
    Trajectory,
    TrajectoryGroup,
    check_recordable,
)
from rolegraph.engine.vocabulary.environments import Environment
from rolegraph.engine.vocabulary.foreign import FOREIGN_ERRORS
from rolegraph.engine.vocabulary.registry import FIXED, Item, Origin, Registry
from rolegraph.engine.vocabulary.tools import Tool
from rolegraph.engine.vocabulary.views import Upstream, View


class ParseFailure(ValueError):
    """A parser raises this when it cannot read a response."""

    def __init__(self, name: FailureName, message: str) -> None:
        self.name = name
        super().__init__(message)


@dataclass(frozen=True, slots=True)
class Parser(Item):
    """Response text to action."""

    parse: Callable[[str, Upstream], Any]
    """Returns the action, or raises ParseFailure."""
    default: Any = ""
    """The action that later roles see when nothing could be read."""
    roles: tuple[str, ...] = ()
    """Roles it picks from; the role that uses it must need them."""
    strips: tuple[str, ...] = ()
    """Marks that it takes off the answer: no action has them."""
    examples: tuple[str, ...] = ()
    """Answers that it can read, made up, one for each way that a workflow may go on from it; `…` stands for
    what a model would have said. For a look at prompts without a model."""


NO_TERMS: Mapping[str, float] = {}
NOTHING: Mapping[str, Any] = {}


class Score(NamedTuple):
    """What a reward says of one action."""

    reward: float
    is_correct: bool | None
    """None where it says nothing of right."""
    terms: Mapping[str, float] = NO_TERMS
    """The named parts of a composite reward."""


class RewardInputs(NamedTuple):
    """What a reward may read beside the task and the action that it scores.

    Of other roles, the turns on its own branch that ran, in order of index.
    """

    scores: Mapping[str, Sequence[Score]] = NOTHING
    """By role of its `roles`, what those turns earned that earned anything."""
    views: Mapping[str, Sequence[View]] = NOTHING
    """By role of its `views`, those turns."""
    positions: Mapping[str, Sequence[int | None]] = NOTHING
    """By role of its `views`, where its own instance stood, from 0, in what each of those turns saw."""
    turn: View | None = None
    """The turn that it scores; given to one that is `reads_turn`, as are its steps."""
    steps: Sequence[Step] = ()
    """The turn's model calls."""
    env_reward: float | None = None
    """What the environment gave the player from this turn until its next one; given to one that reads an
    `environment`."""


@dataclass(frozen=True, slots=True)
class Reward(Item):
    """Task and action to Score."""

    score: Callable[[Task, Any, RewardInputs], Score | None]
    """None where nobody ran whom it reads: then there is no reward."""
    fields: tuple[str, ...] = ()
    """Task fields it reads; the dataset must have them."""
    labels: tuple[str, ...] = ()
    """Those of them that give the answer away: no prompt may show them."""
    roles: tuple[str, ...] = ()
    """Roles whose scores it reads."""
    terms: tuple[str, ...] = ()
    """The names of its parts, which its scores report."""
    timeout: float | None = None
    """Seconds. None: pure and fast, runs in place. A number: runs in a process stopped at the limit."""
    views: tuple[str, ...] = ()
    """Roles of which it reads what they said, whatever they earned."""
    reads_turn: bool = False
    """Whether it reads more of its own turn than the action."""
    delegates: bool = False
    """Whether it only hands on what others decide: then a failed turn earns it, too, and what it says of
    right counts in a sum only where no other term says anything."""
    patterns: tuple[str, ...] = ()
    """Patterns that it looks for in the action, marks that a parser may take off among them."""
    reads_environment: bool = False
    """Whether it reads what an environment gave. A failed turn earns that, too, because what is no move is
    the environment's to judge; and a trajectory earns the sum of its turns."""

    @property
    def read_roles(self) -> tuple[str, ...]:
        """Every role that it reads."""
        return tuple(dict.fromkeys((*self.roles, *self.views)))

    @property
    def is_deferred(self) -> bool:
        """Whether it reads more than its own turn, so that it is there only later."""
        return bool(self.roles or self.views) or self.reads_environment


if TYPE_CHECKING:  # a spec is read in milliseconds; numpy is for those who compute
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
else:
    Floats = Any
LossName = Literal["importance_sampling", "ppo", "cross_entropy", "cispo", "gspo"]
"""Those of the Tinker API (`tinker.types.LossFnType`) that need nothing but what was sampled. Not `dro`: its
penalty counts each token of a sequence, and the log-probabilities of the prompt's are nobody's sample."""
LossSetting = Literal["clip_low_threshold", "clip_high_threshold"]
_CLIPS: tuple[LossSetting, ...] = ("clip_low_threshold", "clip_high_threshold")
LOSS_SETTINGS: Mapping[LossName, tuple[LossSetting, ...]] = {
    "importance_sampling": (),
    "ppo": _CLIPS,
    "cross_entropy": (),
    "cispo": _CLIPS,
    "gspo": _CLIPS,
}
"""What may be set of each."""
FIXED["loss"] = LOSS_SETTINGS


@dataclass(frozen=True, slots=True)
class Estimator(Item):
    """How a role learns."""

    name: str
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    min_group: int = 1
    """The smallest group (count × rollouts) it can work with."""
    compute: Callable[[Sequence[Floats], Sequence[TrajectoryGroup]], Sequence[Floats]] | None = None
    """`compute(rewards_P_G, groups)`: advantages for each member of each of a role's P groups, an array [G]
    each, in the same order. None: the steps carry their advantages already (`precomputed`)."""
    loss: LossName = "importance_sampling"
    """The loss of a role that names none; grpo has ppo, as in rLLM."""
    baseline: Callable[[Sequence[Floats], Sequence[TrajectoryGroup]], Sequence[Floats]] | None = None
    """As `compute`: what it takes from each reward. It is noted in the episodes, for whoever asks why an
    advantage is what it is. None: it does not say."""


Advantages = Callable[[Step, Sequence[float] | None], Sequence[float]]


@dataclass(frozen=True, slots=True)
class Signal(Item):
    """What sets a role's advantages token by token, in place of a reward. One of the first two is given.

    It is asked after an episode is over, so a demonstration may see what no prompt may: hidden task fields
    and the rewards of the roles before.
    """

    advantages: Advantages | None = None
    """`advantages(step, teacher)`: a number for each of the step's T response tokens. `teacher` holds the
    teacher's log-probabilities of them, [T], at temperature 1; None without a teacher."""
    demonstration: object = None
    """A template, as a prompt is written in a spec: the turn that the role should have given. Text of nothing
    but white space is no demonstration."""
    teacher: object = None
    """A model, as it is written in a spec, whose log-probabilities `advantages` compares with."""
    loss: LossName = "importance_sampling"
    """The loss of a role that names none."""
    weight: float = 1.0
    """What each token of a demonstration counts."""


@dataclass(frozen=True, slots=True)
class Metric(Item):
    """A number for each episode; `role_metric` makes one of a function of a role's trajectories."""

    measure: Callable[[Episode], float | None]
    """None where the episode has nothing to measure."""
    role: str | None = None
    """The role that it measures, if one."""
    term: str | None = None
    """The part of the role's reward that it reads, if it reads one."""
    loop: str | None = None
    """The loop that it measures, if one."""


def role_metric(
    measure: Callable[[Sequence[Trajectory]], float], role: str, *, term: str | None = None
) -> Metric:
    """A metric of one role's trajectories, less those whose reward found nobody to read.

    Where the role was skipped there is nothing to measure; where the episode was stopped before it, it is
    measured without any.
    """
    return Metric(partial(_of_role, measure, role), role, term)


def _of_role(measure: Callable[[Sequence[Trajectory]], float], role: str, episode: Episode) -> float | None:
    trajectories = [t for t in episode.trajectories if t.name == role and not (t.masked and t.reward is None)]
    if not trajectories and episode.termination_reason is TerminationReason.ENV_DONE:
        return None
    return measure(trajectories)


@dataclass(frozen=True, slots=True)
class Dataset(Item):
    """Tasks to run on. Making one reads no more than a header; `rows` does the work."""

    columns: tuple[str, ...]
    """Every field of a row, `id` among them."""
    hidden: frozenset[str]
    """Fields that give the answer away: no prompt may show them."""
    rows: Callable[[int | None], Iterator[Task]]
    """`rows(limit)`: the tasks in a fixed order, at most `limit` of them. Raises DataError."""

    def __reduce_ex__(self, protocol: Any) -> str | tuple[Any, ...]:
        # Whoever is sent a plan may never read its data, and may not have the file.
        if self.origin is None:
            return object.__reduce_ex__(self, protocol)
        return _dataset, (self.columns, self.hidden, self.origin)


def _dataset(columns: tuple[str, ...], hidden: frozenset[str], origin: Origin) -> Dataset:
    return Dataset(columns, hidden, partial(_rows_of, origin), origin=origin)


def _rows_of(origin: Origin, limit: int | None) -> Iterator[Task]:
    dataset = origin.remake()
    assert isinstance(dataset, Dataset)
    return checked_rows(origin.call.name, dataset.rows, limit)


def checked_rows(
    name: str, rows: Callable[[int | None], Iterator[Task]], limit: int | None
) -> Iterator[Task]:
    """The tasks of a dataset, which may be a package's own code; raises DataError for whatever it does."""
    given = 0
    try:
        for row in rows(limit):
            given += 1
            if not isinstance(row.get("id"), str):
                raise TypeError("it has no id that is text")
            check_recordable(dict(row))
            yield row
    except RolegraphError:
        raise
    except FOREIGN_ERRORS as error:
        said = f"{type(error).__name__}: {error}"
        raise DataError(f"the dataset {name!r} fails at or after its task {given:,}: {said}") from error


parsers = Registry(Parser, "rolegraph.parsers")
rewards = Registry(Reward, "rolegraph.rewards")
estimators = Registry(Estimator, "rolegraph.estimators")
signals = Registry(Signal, "rolegraph.signals")
metrics = Registry(Metric, "rolegraph.metrics")
datasets = Registry(Dataset, "rolegraph.datasets", context=("split", "folder"))
environments = Registry(Environment, "rolegraph.environments")
tools = Registry(Tool, "rolegraph.tools", context=("folder",))
