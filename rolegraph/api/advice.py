"""Advice at the end of a command: the next commands, chosen from the end of the run, training or evaluation.

Plain data in, plain data out; the command line writes the commands.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal, NamedTuple

from rolegraph.engine.records import FailureName
from rolegraph.engine.records.episode import FORMLESS


class Action(StrEnum):
    """Action that a user may want to take next."""

    RESUME = "resume"
    """Continue a stopped command."""
    RETRY = "retry"
    """Make the episodes in which the model gave no answer again."""
    PREVIEW = "preview"
    """Look at the prompts."""
    VIEW = "view"
    """Look at the episodes, of a single role if one is at fault."""
    TRAIN = "train"
    """Train the workflow."""
    TRAIN_LOWER = "train with a lower learning rate"
    """Train the workflow again, with a lower learning rate for the roles that diverged."""
    REPLAY = "replay"
    """Run the workflow again on the recorded answers."""
    COMPARE = "compare"
    """Compare both sides of an evaluation."""
    RUN_WEIGHTS = "run weights"
    """Run the workflow with the trained weights."""
    OTHER_MODEL = "other model"
    """Fetch a model that can learn the prompts, and use it."""
    EXPORT = "export"
    """Export the trained weights."""


@dataclass(frozen=True, slots=True)
class RoleOutcome:
    """Numbers of a role's answers and failures in a run, and faults of its training."""

    name: str
    answers: int = 0
    """Number of answers, failed ones included."""
    failures: Mapping[str, int] = field(default_factory=dict[str, int])
    """Number of failed answers by the failure's name."""
    form: str = ""
    """Example of an answer that the parser reads."""
    dead: bool = False
    """True if the role was trained, but no group and no signal gave it a gradient."""

    diverged: bool = False
    """True if the role's training diverged."""

    @property
    def all_failed(self) -> bool:
        """True if every answer of the role failed."""
        return 0 < self.answers <= sum(self.failures.values())

    @property
    def all_malformed(self) -> bool:
        """True if the parser could read none of the answers."""
        return 0 < self.answers <= sum(self.failures.get(name, 0) for name in FORMLESS)


@dataclass(frozen=True, slots=True)
class Outcome:
    """Facts about a finished run, training or evaluation, from which `advise` chooses next commands."""

    kind: Literal["run", "train", "eval"]
    done: int
    """Number of episodes, or of steps of a training."""
    planned: int
    roles: Sequence[RoleOutcome] = ()
    foreign: bool = False
    """True if a shipped model answers prompts that it was not trained on: nothing else is advised then."""
    trainable: bool = False
    """True if the workflow of a run can be trained."""
    has_weights: bool = False
    """True if weights were saved that a command can export."""
    learnt: bool = True
    """True if any step of a training changed the weights."""
    rate: float | None = None
    """Learning rate of a training; None if its policies have several."""
    better: bool | None = None
    """True if the weights are better than those at the start; None if that was not measured."""


class NextAction(NamedTuple):
    """Suggested action, and the role that it concerns; an empty role stands for the whole workflow."""

    action: Action
    role: str = ""
    failures: bool = False
    """True to look at the role's failures."""


class Advice(NamedTuple):
    """Suggested actions, the most useful first, and remarks that explain them."""

    actions: Sequence[NextAction]
    remarks: Sequence[str]


def advise(outcome: Outcome) -> Advice:
    """Return suggested actions and remarks after a run, a training or an evaluation.

    Args:
        outcome: Facts about the finished command.

    Returns:
        The actions and the remarks; either may be empty.
    """
    if outcome.foreign:
        return Advice([NextAction(Action.OTHER_MODEL)], [])
    choose_actions = {"run": _after_run, "train": _after_training, "eval": _after_evaluation}[outcome.kind]
    return Advice([*choose_actions(outcome)], [*_remarks(outcome)])


def _after_run(it: Outcome) -> Iterator[NextAction]:
    is_stopped, malformed_roles, failed_roles = it.done < it.planned, _malformed(it), _failed(it)
    if malformed_roles:
        yield NextAction(Action.PREVIEW)
    if is_stopped:
        yield NextAction(Action.RESUME)
    elif any(role.failures.get(FailureName.MODEL_ERROR) for role in it.roles):
        yield NextAction(Action.RETRY)
    elif failed_roles:
        yield NextAction(Action.VIEW, failed_roles[0].name, failures=True)
    elif it.trainable:
        yield NextAction(Action.TRAIN)
    else:
        yield NextAction(Action.REPLAY)


def _after_training(it: Outcome) -> Iterator[NextAction]:
    failed_roles, dead_roles = _failed(it), [role for role in it.roles if role.dead]
    diverged_roles = [role for role in it.roles if role.diverged]
    if diverged_roles:
        yield NextAction(Action.TRAIN_LOWER)
        yield NextAction(Action.VIEW, diverged_roles[0].name)
        if it.better:
            yield NextAction(Action.EXPORT)
        return
    if _malformed(it):
        yield NextAction(Action.PREVIEW)
    if it.done < it.planned:
        yield NextAction(Action.RESUME)
    if failed_roles and not it.learnt:
        yield NextAction(Action.VIEW, failed_roles[0].name, failures=True)
    elif it.done and (not it.learnt or it.better is False):
        yield NextAction(Action.VIEW, dead_roles[0].name if dead_roles else "")
    elif it.has_weights:
        yield NextAction(Action.RUN_WEIGHTS)
        yield NextAction(Action.EXPORT)


def _after_evaluation(it: Outcome) -> Iterator[NextAction]:
    yield NextAction(Action.COMPARE)
    if it.has_weights and it.better:
        yield NextAction(Action.EXPORT)


def _malformed(it: Outcome) -> list[RoleOutcome]:
    return [role for role in it.roles if role.all_malformed]


def _failed(it: Outcome) -> list[RoleOutcome]:
    return [role for role in it.roles if role.all_failed]


def _remarks(it: Outcome) -> Iterator[str]:
    for role in _failed(it):
        form = f"; its parser reads {role.form!r}, and the prompt has to ask for that" if role.form else ""
        names = " or ".join(name for name, count in role.failures.items() if count)
        remark = f"{role.name}: every answer failed with {names} (n {role.answers})"
        yield remark + (form if role.all_malformed else "")
    for role in it.roles:
        if role.dead and not role.all_failed:
            yield f"{role.name} is dead: none of its groups taught anything"
    if it.kind == "train" and it.better is False:
        other_rates = [f"train.learning_rate={it.rate * factor:.2g}" for factor in (3, 1 / 3) if it.rate]
        rates_note = f" ({', '.join(other_rates)})" if other_rates else ""
        first_hint = f"change first the learning rate, up as well as down{rates_note}"
        second_hint = "then more tasks a step (train.batch_size), then a stage of imitation (train.stages)"
        yield f"no weights were better than those at the start; {first_hint}, {second_hint}"
