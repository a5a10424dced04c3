"""What a spec's names stand for: every registry item, data set and template that it mentions, or findings.

The only place where a spec's names meet the registries and its templates meet the disk.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path as FilePath
from typing import Any, TypeVar

from engine.compile.graph import Needs, ancestors, unknown_role
from engine.compile.plan import SignalPlan
from engine.compile.resolve import resolve, resolve_dataset, resolve_prompt, resolve_teacher
from engine.prompts import Surroundings, Template, read_template
from engine.spec import Finding, Path, PromptSource, Role, Spec
from engine.vocabulary import (
    REWARD_FIELDS,
    VIEW_FIELDS,
    Call,
    Dataset,
    Estimator,
    Item,
    Metric,
    Parser,
    Registry,
    Reward,
    Signal,
    Split,
    estimators,
    metrics,
    noting,
    parsers,
    rewards,
    signals,
)

ItemT = TypeVar("ItemT", bound=Item)

SPLITS: tuple[Split, ...] = ("train", "validation")


@dataclass(frozen=True, slots=True)
class Names:
    """What names stand for, by role where nothing else is said; None for none, or for one with a finding."""

    parsers: Mapping[str, Parser | None]
    rewards: Mapping[str, Reward | None]
    estimators: Mapping[str, Estimator | None]
    signals: Mapping[str, Signal | None]
    signal_plans: Mapping[str, SignalPlan]
    """The same signals, with the teacher and the template that each names."""
    templates: Mapping[str, tuple[Template | None, Template | None]]
    """Prompt and system."""
    metrics: Mapping[str, Metric | None]
    """By the metric's own name."""
    data: Mapping[Split, Dataset]
    hidden: frozenset[str]
    """Task fields that no prompt sees."""
    used: Sequence[tuple[Registry[Any], str]]
    """Every vocabulary item that is used, also inside others."""


def resolve_names(spec: Spec, needs: Needs, folders: tuple[FilePath, ...]) -> tuple[Names, list[Finding]]:
    """What the names of a spec stand for, and what is wrong with them.

    `needs` are its DAG of roles. `folders` are where its templates may lie; in the first are its data sets.
    """
    resolver = _Resolver(spec, needs, folders)
    return resolver.names(), resolver.findings


@dataclass(slots=True)
class _Resolver:
    """Resolves one spec, collecting findings on the way."""

    spec: Spec
    needs: Needs
    folders: tuple[FilePath, ...]
    findings: list[Finding] = field(default_factory=list[Finding])
    used: dict[tuple[Registry[Any], str], None] = field(default_factory=dict[tuple[Registry[Any], str], None])

    def names(self) -> Names:
        spec = self.spec
        parsed = {name: self.parser(name, role) for name, role in spec.roles.items()}
        scored = {name: self.reward(name, role) for name, role in spec.roles.items()}
        estimated = {
            name: self.build(estimators, role.estimator, ("roles", name, "estimator"))
            if role.estimator
            else None
            for name, role in spec.roles.items()
        }
        signalled = {
            name: self.build(signals, role.signal, ("roles", name, "signal")) if role.signal else None
            for name, role in spec.roles.items()
        }
        measured = {name: self.metric(name, call, scored) for name, call in spec.episode.metrics.items()}
        data = self.datasets(scored)
        labels = {label for reward in scored.values() if reward for label in reward.labels}
        hidden = frozenset({*spec.data.hidden, *labels, *(f for d in data.values() for f in d.hidden)})
        columns = _columns(data)
        return Names(
            parsers=parsed,
            rewards=scored,
            estimators=estimated,
            signals=signalled,
            templates={
                name: self.templates(name, role, columns, hidden) for name, role in spec.roles.items()
            },
            signal_plans={
                name: self.signal(name, signal, call, columns)
                for name, signal in signalled.items()
                if signal and (call := spec.roles[name].signal)
            },
            metrics=measured,
            data=data,
            hidden=hidden,
            used=tuple(self.used),
        )

    # vocabulary

    def parser(self, name: str, role: Role) -> Parser | None:
        path = ("roles", name, "parser")
        parser = self.build(parsers, role.parser, path)
        for other in parser.roles if parser else ():
            self.check_needed(name, other, path, "picks from")
        return parser

    def reward(self, name: str, role: Role) -> Reward | None:
        path = ("roles", name, "reward")
        if role.reward is None:
            return None
        reward = self.build(rewards, role.reward, path)
        upstream: set[str] = ancestors(self.needs, name) if reward and reward.roles else set()
        for other in reward.roles if reward else ():
            if other in self.spec.roles and other not in upstream:
                hint = f"add {other} to the `needs` of {name}"
                message = f"the reward reads {other}, which is not done when {name} is"
                self.findings.append(
                    Finding(path, message, "a role that this one waits for", hint, word=other)
                )
            else:
                self.findings += unknown_role(self.spec, other, path)
        return reward

    def signal(self, name: str, signal: Signal, call: Call, columns: Sequence[str] | None) -> SignalPlan:
        """A signal with its teacher and template resolved."""
        path = ("roles", name, "signal")
        teacher, findings = resolve_teacher(signal.teacher, path)
        self.findings += findings
        source, findings = resolve_prompt(signal.demonstration, path)
        self.findings += findings
        before = ancestors(self.needs, name)
        counts = {other: role.count for other, role in self.spec.roles.items() if other in before}
        around = Surroundings(counts, tuple(self.spec.roles), columns, fields=(*VIEW_FIELDS, *REWARD_FIELDS))
        demonstration = self.template((*path, *call.path_of(("demonstration",))), source, around)
        return SignalPlan(signal, teacher, demonstration)

    def metric(self, name: str, call: Call, scored: Mapping[str, Reward | None]) -> Metric | None:
        path = ("episode", "metrics", name)
        metric = self.build(metrics, call, path)
        if metric:
            self.findings += unknown_role(self.spec, metric.role, path)
            reward = scored.get(metric.role)
            if metric.term and reward and metric.term not in reward.terms:
                known = ", ".join(reward.terms) or "none: only a `weighted` reward has named terms"
                message = f"the reward of {metric.role} has no term {metric.term!r}"
                self.findings.append(Finding(path, message, known, word=metric.term))
        return metric

    def check_needed(self, name: str, other: str, path: Path, verb: str) -> None:
        unknown = list(unknown_role(self.spec, other, path))
        self.findings += unknown
        if not unknown and other not in self.spec.roles[name].needs:
            hint = f"add {other} to the `needs` of {name}"
            self.findings.append(
                Finding(path, f"{name} {verb} {other}, which it does not need", "", hint, word=other)
            )

    def build(self, registry: Registry[ItemT], call: Call, path: Path) -> ItemT | None:
        """An item of the vocabulary, or None and findings."""
        with noting(self.used):
            item, findings = resolve(registry, call, path)
        self.findings += findings
        return item

    # data

    def datasets(self, scored: Mapping[str, Reward | None]) -> dict[Split, Dataset]:
        data: dict[Split, Dataset] = {}
        for split in SPLITS:
            call = getattr(self.spec.data, split)
            if call is None:
                continue
            path = ("data", split)
            with noting(self.used):
                dataset, findings = resolve_dataset(call, path, split, self.folders[0])
            self.findings += findings
            if dataset is None:
                continue
            data[split] = dataset
            for name, reward in scored.items():
                for column in reward.fields if reward else ():
                    if column not in dataset.columns:
                        where = ("roles", name, "reward")
                        message = (
                            f"the reward of {name} reads task.{column}, which the {split} data does not have"
                        )
                        expected = f"data with that field; it has {', '.join(dataset.columns)}"
                        self.findings.append(Finding(where, message, expected, word=column))
        return data

    # templates

    def templates(
        self, name: str, role: Role, columns: Sequence[str] | None, hidden: frozenset[str]
    ) -> tuple[Template | None, Template | None]:
        needs = {need: self.spec.roles[need].count for need in role.needs if need in self.spec.roles}
        around = Surroundings(needs, tuple(self.spec.roles), columns, hidden)
        prompt = self.template(("roles", name, "prompt"), role.prompt, around)
        system = self.template(("roles", name, "system"), role.system, around)
        mentioned = {m for template in (prompt, system) if template for m in template.mentions}
        for position, need in enumerate(role.needs):
            if prompt and need in needs and need != name and need not in mentioned:
                message = f"{name} waits for {need}, but its prompt does not mention it"
                path = ("roles", name, "needs", position)
                self.findings.append(Finding(path, message, severity="warning"))
        return prompt, system

    def template(self, path: Path, source: PromptSource | None, around: Surroundings) -> Template | None:
        if source is None:
            return None
        template, findings = read_template(path, source, self.folders, around)
        self.findings += findings
        return template


def _columns(data: Mapping[Split, Dataset]) -> tuple[str, ...] | None:
    """The fields that every split has; None without data."""
    if not data:
        return None
    first, *others = data.values()
    return tuple(c for c in first.columns if all(c in other.columns for other in others))
