"""Kinds of vocabulary items, and the registry of each kind.

A factory makes an item, a small frozen object, from a spec's options. The item carries its functions and
names the roles and task fields that they read, so that the compiler checks them before anything runs.
Packages add items through the entry-point groups named at the end of this file.

Axes: P tasks, K rollouts, N instances of a role, G = K·N members of a group, T response tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from rolegraph.engine.errors import FOREIGN_ERRORS, DataError, RolegraphError
from rolegraph.engine.limits.tools import CALL_MEMORY
from rolegraph.engine.records import (
    Episode,
    FailureName,
    Step,
    Task,
    TerminationReason,
    Trajectory,
    check_recordable,
)
from rolegraph.engine.records.credit import Group
from rolegraph.engine.vocabulary.actions import ActionRead, Shape
from rolegraph.engine.vocabulary.environment import NOTHING, Environment
from rolegraph.engine.vocabulary.labels import CheckedScore, LabelCheck
from rolegraph.engine.vocabulary.registry import Item, Origin, Registry
from rolegraph.engine.vocabulary.tool import Tool
from rolegraph.engine.vocabulary.views import Upstream, View


class ParseFailure(ValueError):
    """Error of a parser that cannot read a response."""

    def __init__(self, name: FailureName, message: str) -> None:
        """Create the error for one response.

        Args:
            name: The failure that the episode records, `malformed_output` or `unparseable_choice`.
            message: The reason, for the record, and for the model if it is asked again.
        """
        self.name = name
        super().__init__(message)


@dataclass(frozen=True, slots=True)
class Parser(Item):
    """Parser: a function from a response's text to the role's action."""

    parse: Callable[[str, Upstream], Any]
    """`parse(response, upstream)` returns the action, or raises ParseFailure."""
    default: Any = ""
    """Action that later roles see if the response cannot be read."""
    roles: tuple[str, ...] = ()
    """Roles among whose actions the parser picks; a role with this parser must need them."""
    strips: tuple[str, ...] = ()
    """Marks that the parser removes, such as `<answer>`: no action contains them."""
    examples: tuple[str, ...] = ()
    """Made-up responses that the parser can read, for previews without a model: one for each branch that the
    workflow can take. `…` stands for the model's words."""
    expects: tuple[tuple[str, ...], ...] = ()
    """Groups of words, such as `("<answer>",)` or `("yes", "no")`: a response contains one word of each
    group. `validate` warns of a group if the role's prompts mention none of its words."""
    marks: tuple[str, ...] = ()
    """Marks without which a response cannot be read, such as `</answer>`; `validate` warns of a `stop` that
    cuts them off."""
    gives: Shape = field(default_factory=dict[str, Any])
    """Shape of the action."""
    chooses: Callable[[str, Upstream], View] | None = None
    """`chooses(response, upstream)` returns the turn whose action `parse` returns; None for a parser that
    chooses no turn."""


class Score(NamedTuple):
    """Result of a reward for one action."""

    reward: float | None
    """Finite number that the turn earns; None if it is unknown, because the role that rates failed. The turn
    is then masked, even if it earned other terms."""
    is_correct: bool | None
    """True for a right action, False for a wrong one; None if the reward does not judge that."""
    terms: Mapping[str, float] = NOTHING
    """Named parts of a composite reward, before their weights."""


class Formula(NamedTuple):
    """Expression whose value a reward reads, with the syntax of conditions.

    It is computed when the turn has ended, over `action`, `task`, `self`, `tokens` and `calls`.
    """

    text: str
    place: tuple[int | str, ...] = ()
    """Path of the expression inside the item's call."""


class Likelihood(NamedTuple):
    """Text whose log-probabilities a reward reads, after the turn's own answer."""

    of: str
    """Template of the text."""
    after: str = ""
    """Text between the answer and the scored text."""
    model: str = '"policy"'
    """Model that scores, as JSON of the spec's value: `policy`, `base`, or a model."""
    turn: bool = True
    """True to score the text after the turn's own answer, False to leave the answer out."""
    roles: tuple[str, ...] = ()
    """Roles that the template reads."""


class RewardInputs(NamedTuple):
    """Inputs of a reward besides the task and the action.

    The reward's fields `views`, `formulas`, `likelihoods`, `reads_turn` and `reads_environment` request them.
    Of other roles, a reward gets the turns on its own branch that ran, in order of index.
    """

    views: Mapping[str, Sequence[View]] = NOTHING
    """Turns of each of the reward's `views`."""
    turn: View | None = None
    """Turn that is scored, for a reward that `reads_turn`."""
    steps: Sequence[Step] = ()
    """Model calls of that turn, for a reward that `reads_turn`."""
    values: Mapping[str, Any] = NOTHING
    """Value of each of the reward's `formulas`, by its text."""
    likelihoods: Mapping[Likelihood, Sequence[float]] = NOTHING
    """Log-probabilities of the tokens of each of the reward's `likelihoods`; a text that reads a role which
    did not run, or failed, has no entry."""
    env_reward: float | None = None
    """Reward of the environment to the player from this turn until its next turn, for a reward that
    `reads_environment`."""


@dataclass(frozen=True, slots=True)
class RewardFacts:
    """Facts about a reward for checks of specs, such as the task fields it reads; a sum of rewards merges
    them."""

    fields: tuple[str, ...] = ()
    """Task fields that the reward reads; the dataset must have them."""
    labels: tuple[str, ...] = ()
    """Fields among `fields` that reveal the answer; no prompt may show them."""
    required: tuple[str, ...] | None = None
    """Fields among `fields` that each task must have, with an answer or a list of accepted answers; None
    requires the labels."""
    values: tuple[str, ...] = ()
    """Fields among `required` that hold one JSON value; a list in them is that value, not a list of accepted
    answers."""
    terms: tuple[str, ...] = ()
    """Names of the terms that the scores report."""
    patterns: tuple[str, ...] = ()
    """Patterns that the reward searches in the action; `validate` warns if the parser removes them."""
    reads: tuple[ActionRead, ...] = ()
    """Values that the reward reads from actions; `validate` finds those that no action can have."""
    judges: bool = True
    """True where the reward can tell by itself whether the action is right."""
    verdicts: tuple[str, ...] = ()
    """Roles whose verdict, right or wrong, the reward passes on."""
    compares_verdicts: tuple[str, ...] = ()
    """Roles whose verdict the reward compares the action with; each must be able to be right."""
    outcomes: tuple[str, ...] = ()
    """Roles whose result is paid unchanged, the same to every turn that reads the same instances."""
    bounds: tuple[float, float] = (0.0, 1.0)
    """Smallest and largest reward of an answer; (0, 1) if the item does not state them. `validate` warns if
    an answer may earn less than a missing answer does."""
    form: bool = False
    """True for a reward of form, such as length; in a sum with other terms, its verdict does not count."""

    @property
    def label_check(self) -> LabelCheck:
        """Check that each task has the required fields."""
        return LabelCheck(self.labels if self.required is None else self.required, self.values)


@dataclass(frozen=True, slots=True)
class Reward(Item):
    """Reward: a function from a task and an action to a Score.

    Only `score` is required. A reward that reads task fields lists them in `facts`, so that specs are checked
    before anything runs. `views` to `formulas` request the inputs of the same name; `timeout` and `memory`
    limit the function.
    """

    score: Callable[[Task, Any, RewardInputs], Score | None]
    """`score(task, action, inputs)`. None means no reward, because no turn that the reward reads ran."""
    facts: RewardFacts = RewardFacts()
    roles: tuple[str, ...] = ()
    """Roles whose reward or verdict the `formulas` read."""
    views: tuple[str, ...] = ()
    """Roles whose turns the reward reads, but not their rewards."""
    reads_turn: bool = False
    """True if the reward reads `RewardInputs.turn` or `steps`."""
    reads_environment: bool = False
    """True if the reward reads `RewardInputs.env_reward`. A failed turn earns it as well, because the
    environment judges invalid moves, and a trajectory earns the sum over its turns."""
    formulas: tuple[Formula, ...] = ()
    """Expressions whose values the reward reads."""
    likelihoods: tuple[Likelihood, ...] = ()
    """Texts whose log-probabilities the reward reads; the roles in them are among `views`."""
    delegates: bool = False
    """True if only other roles decide the reward."""
    timeout: float | None = None
    """Time limit in seconds of processor time; the function runs in a separate process that is killed at the
    limit. None runs a pure and fast function in this process."""
    memory: int = CALL_MEMORY.most
    """Memory limit in bytes of a call with a time limit, not counting the libraries of its process."""
    normalized: Mapping[str, float] = field(default_factory=dict[str, float])
    """Weights of the terms, for a reward whose terms the estimator compares separately."""
    compare: Callable[[Any, Any], float | bool] | None = None
    """`compare(answer, right)` scores an answer against the right one, or a list of accepted ones, as
    expressions call the reward: `math(action, task.answer)`."""

    def __post_init__(self) -> None:
        """Wrap `score` so that it raises MissingLabel if a task lacks a required field."""
        check = self.facts.label_check
        score = self.score.score if isinstance(self.score, CheckedScore) else self.score
        object.__setattr__(self, "score", CheckedScore(score, check) if check.fields else score)

    @property
    def read_roles(self) -> tuple[str, ...]:
        """All roles that the reward reads."""
        return tuple(dict.fromkeys((*self.roles, *self.views)))

    @property
    def task_fields(self) -> tuple[str, ...]:
        """All task fields that the reward reads or hides; each must be in the data."""
        return tuple(dict.fromkeys((*self.facts.fields, *self.facts.labels)))

    @property
    def is_deferred(self) -> bool:
        """True if the reward reads other roles' turns or the environment, so that it is computed after all
        turns."""
        return bool(self.roles or self.views or self.reads_environment)


RIGHT = ("right",)
"""Path of the expression in a role's `right`."""


def judged_by(reward: Reward, right: Reward) -> Reward:
    """Return a role's reward whose verdict is that of another reward.

    Args:
        reward: The reward.
        right: The role's `right`, an expression, as a reward.
    """
    facts, verdict_facts = reward.facts, right.facts
    verdicts = verdict_facts.verdicts or verdict_facts.compares_verdicts

    def both(one: Sequence[str], other: Sequence[str]) -> tuple[str, ...]:
        return tuple(dict.fromkeys((*one, *other)))

    merged_facts = replace(
        facts,
        fields=both(facts.fields, verdict_facts.fields),
        labels=both(facts.labels, verdict_facts.labels),
        required=both(facts.label_check.fields, verdict_facts.label_check.fields),
        judges=not verdicts,
        verdicts=verdicts,
        compares_verdicts=both(facts.compares_verdicts, verdict_facts.compares_verdicts),
    )
    roles = both(reward.roles, right.roles)
    views = tuple(role for role in both(reward.views, right.views) if role not in roles)
    formulas = (*reward.formulas, *(formula._replace(place=RIGHT) for formula in right.formulas))
    return replace(reward, facts=merged_facts, roles=roles, views=views, formulas=formulas)


if TYPE_CHECKING:  # importing numpy takes longer than checking a spec
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
else:
    Floats = Any
GroupFunction = Callable[[Sequence[Floats], Sequence[Group]], Sequence[Floats]]
"""`function(rewards_P_G, groups)` returns a number for each member of each of a role's P groups.

`rewards_P_G` is ragged: an array [G] for each group. The result has the same shape and order."""

State = Mapping[str, float]
"""State of an estimator that outlasts a step: numbers by key."""
StateFunction = Callable[[State, Sequence[Floats], Sequence[Group]], tuple[Sequence[Floats], State]]
"""`function(state, rewards_P_G, groups)` returns baselines as a GroupFunction does, and the next state."""


@dataclass(frozen=True, slots=True)
class Estimator(Item):
    """Estimator of a role's advantages from its rewards."""

    name: str
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    min_group: int = 1
    """Smallest group size G from which the estimator can learn."""
    compute: GroupFunction = field(kw_only=True)
    """Function that returns the advantages [G] of each group."""
    loss: str = "importance_sampling"
    """Default loss of a role with this estimator."""
    baseline: GroupFunction | None = None
    """Function that returns the baseline [G] of each group, for the record: the amounts that `compute`
    subtracts from the rewards."""
    running: StateFunction | None = None
    """Function with a state that takes the place of `baseline`. Training keeps the state between steps, saves
    it with each checkpoint and shows it in the metrics. A role's first state is empty."""
    key: str = ""
    """Expression over the visible fields of a task, whose values are the groups' `state_keys`; empty for a
    single state."""

    @property
    def compares_group(self) -> bool:
        """True if advantages depend on the other members of a group, and on no state of earlier steps."""
        return self.min_group > 1 and self.running is None


Advantages = Callable[[Step, Sequence[float] | None], Sequence[float]]


@dataclass(frozen=True, slots=True)
class Signal(Item):
    """Source of a role's advantages for each token; exactly one of `advantages` and `demonstration` is set.

    Beside an estimator that compares rewards, `advantages` are added to the estimator's, and a demonstration
    replaces the turn's own answer.

    The engine reads a signal after the episode, so a demonstration may contain what no prompt may: hidden
    task fields, and the rewards of earlier roles.
    """

    advantages: Advantages | None = None
    """`advantages(step, teacher)` returns an advantage for each of the step's T response tokens. `teacher`
    holds the teacher's log-probabilities [T] of these tokens at temperature 1; None without a teacher."""
    demonstration: str | None = None
    """Template of the answer that the role should have given, with the syntax of a prompt. A demonstration
    that renders to white space counts as missing."""
    teacher: object = None
    """Teacher, as a spec writes it, whose log-probabilities `advantages` reads: a model, `base` for the start
    of the policy itself, a mapping with a prompt, or a choice among several."""
    gate: str = ""
    """Expression over the turn, the task and the roles, whose value is a factor of `advantages`; empty for
    the factor 1. A turn whose gate is 0 asks no teacher."""
    center: bool = False
    """True to subtract from `advantages` their mean over the role's tokens of a training step."""
    loss: str = "importance_sampling"
    """Default loss of a role with this signal."""
    weight: float = 1.0
    """Weight of each token of a demonstration."""


@dataclass(frozen=True, slots=True)
class Metric(Item):
    """Metric of a workflow: a function from an episode to a number, or to None."""

    measure: Callable[[Episode], float | None]
    """`measure(episode)` returns the metric; None if the episode has nothing to measure."""
    role: str | None = None
    """Role that the metric measures."""


def role_metric(measure: Callable[[Sequence[Trajectory]], float | None], role: str) -> Metric:
    """Return a Metric that measures one role's trajectories in an episode.

    Trajectories without a reward, because no turn that the reward reads ran, or because the reward failed,
    are left out. An episode that skipped the role and ended normally has nothing to measure; an episode that
    was stopped before the role counts with an empty list.

    Args:
        measure: Function from the trajectories, which may be an empty list, to the metric; None if there is
            nothing to measure.
        role: The role.
    """

    def of_episode(episode: Episode) -> float | None:
        trajectories = [
            it for it in episode.trajectories if it.name == role and not (it.masked and it.reward is None)
        ]
        if not trajectories and episode.termination_reason is TerminationReason.ENV_DONE:
            return None
        return measure(trajectories)

    return Metric(of_episode, role)


@dataclass(frozen=True, slots=True)
class Dataset(Item):
    """Tasks of one split. Making a Dataset reads at most a header and a first row; `rows` reads the rest."""

    columns: tuple[str, ...]
    """All fields of a row, with `id`."""
    hidden: frozenset[str]
    """Fields that reveal the answer: no prompt may show them."""
    rows: Callable[[int | None], Iterator[Task]]
    """`rows(limit)` yields at most `limit` tasks in a fixed order, or raises DataError."""
    stem: str = ""
    """Beginning of the ids `STEM-SPLIT-NUMBER` of rows without an id, numbered from 0."""
    whole: Dataset | None = None
    """The undivided data set, if this is a part of it by the spec's `data.split`; else None."""
    file: Path | None = None
    """File of the rows; no prompt and no tool may quote it with its hidden fields. None for rows without a
    file."""
    lines: Callable[[], Iterator[int]] | None = None
    """Function that yields the line number of each row of a file; None for rows without lines."""

    def __reduce_ex__(self, protocol: Any) -> str | tuple[Any, ...]:
        # The receiver of a plan may never read its data, and may not have the file: so it opens nothing yet.
        if self.origin is None:
            return object.__reduce_ex__(self, protocol)
        return _unopened, (self.columns, self.hidden, self.stem, self.origin)


def _unopened(columns: tuple[str, ...], hidden: frozenset[str], stem: str, origin: Origin) -> Dataset:
    """Return a Dataset that makes the item again from `origin` each time its rows are read, and not
    before."""

    def rows(limit: int | None) -> Iterator[Task]:
        dataset = origin.remake()
        assert isinstance(dataset, Dataset)
        return checked_rows(origin.call.name, dataset.rows, limit)

    return Dataset(columns, hidden, rows, stem, origin=origin)


def checked_rows(
    name: str, rows: Callable[[int | None], Iterator[Task]], limit: int | None
) -> Iterator[Task]:
    """Yield the tasks of a dataset that may be third-party code.

    Args:
        name: The dataset's name, for messages.
        rows: `Dataset.rows`.
        limit: The largest number of tasks; None for all.

    Raises:
        DataError: `rows` raises any error, or yields a row without a textual `id` or with a value that no
            record can hold.
    """
    count = 0
    try:
        for row in rows(limit):
            count += 1
            if not isinstance(row.get("id"), str):
                raise TypeError("it has no id that is text")
            check_recordable(dict(row))
            yield row
    except RolegraphError:
        raise
    except FOREIGN_ERRORS as error:
        message = f"{type(error).__name__}: {error}"
        raise DataError(f"the dataset {name!r} fails at or after its task {count:,}: {message}") from error


parsers = Registry(Parser, "rolegraph.parsers")
rewards = Registry(Reward, "rolegraph.rewards", context=("interpreter",))
estimators = Registry(Estimator, "rolegraph.estimators")
signals = Registry(Signal, "rolegraph.signals")
metrics = Registry(Metric, "rolegraph.metrics")
datasets = Registry(Dataset, "rolegraph.datasets", context=("split", "folder"))
environments = Registry(Environment, "rolegraph.environments")
tools = Registry(Tool, "rolegraph.tools", context=("folder", "interpreter", "allowed"))
