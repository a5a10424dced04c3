"""Whether a role can learn as its spec says: estimator, reward, signal and loss held against each other.

Pure: parts of a spec and what they were resolved to go in, findings for its author come out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from engine.errors import did_you_mean
from engine.spec.diagnostics import Finding
from engine.spec.models import Role, Spec
from engine.vocabulary import Estimator, LossName, Signal, estimators, signals


def estimator_findings(name: str, role: Role, estimator: Estimator | None, group: int) -> Iterator[Finding]:
    """What keeps a trainable role from learning by its estimator. `group` is count × rollouts."""
    at = ("roles", name, "estimator")
    if role.estimator is None and (role.reward is not None or role.signal is not None):
        hint = f"give it one of {', '.join(estimators.names())}, or say `trainable: false`"
        yield Finding(at[:-1], f"{name} is trained, but has no estimator", "", hint, at_key=True)
    if estimator is None:
        return
    if estimator.compute is None and role.signal is None:
        hint = f"give it a signal ({', '.join(signals.names())}), or another estimator"
        yield Finding(at, f"{name} is {estimator.name}, but nothing sets its advantages", "a `signal`", hint)
    if estimator.compute is not None and role.signal is not None:
        message = f"{name} has a signal, which the estimator {estimator.name} would replace"
        yield Finding(at, message, "estimator: precomputed", "or remove the signal")
    if group < estimator.min_group:
        message = f"{estimator.name} compares the members of a group, and {name}'s group has {group}"
        hint = "raise `count` or `train.rollouts`, or use reinforce"
        yield Finding(at, message, f"count × rollouts of at least {estimator.min_group}", hint)


def loss_of(role: Role, estimator: Estimator | None, signal: Signal | None) -> LossName:
    """The loss a role is trained with: its own, or what goes with its signal or estimator."""
    default = signal.loss if signal else estimator.loss if estimator else "importance_sampling"
    return role.loss or default


def training_findings(spec: Spec, taught: Mapping[str, Signal | None]) -> Iterator[Finding]:
    """A loss that cannot train what a role imitates, and a figure that nothing measures."""
    for name, signal in taught.items():
        loss = spec.roles[name].loss
        if signal is not None and signal.advantages is None and loss not in (None, "cross_entropy"):
            message = f"{name} learns turns that it did not sample, which {loss} cannot train"
            yield Finding(("roles", name, "loss"), message, "cross_entropy", "or leave `loss` out")
    best, known = spec.train.validation.best, ["correct", *spec.episode.metrics]
    if best not in known:
        path = ("train", "validation", "best")
        message = f"there is no figure {best!r}"
        yield Finding(path, message, ", ".join(known), did_you_mean(best, known))
