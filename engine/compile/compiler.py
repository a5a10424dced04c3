"""Spec, graph and vocabulary to an immutable Plan, or to every fault that stands in the way.

The only place where a spec's names meet the registries and its templates meet the disk.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path as FilePath
from typing import Any, TypeVar

import networkx as nx

from engine.compile.graph import ancestors, check_graph, role_graph, unknown_role
from engine.compile.plan import MAIN, Endpoint, Plan, RolePlan, SignalPlan
from engine.compile.resolve import digest, resolve, resolve_dataset, resolve_prompt, resolve_teacher
from engine.compile.trainable import learning_findings, loss_of
from engine.compile.unroll import unroll
from engine.errors import SpecError
from engine.prompts.lookup import read_template
from engine.prompts.templates import Surroundings, Template
from engine.spec.diagnostics import Diagnostic, Finding, Path
from engine.spec.loader import load_spec
from engine.spec.merge import dump
from engine.spec.models import PromptSource, Role, Spec
from engine.vocabulary import (
    REWARD_FIELDS,
    VIEW_FIELDS,
    Call,
    Dataset,
    Import,
    Item,
    LossName,
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

T = TypeVar("T")
ItemT = TypeVar("ItemT", bound=Item)

SPLITS: tuple[Split, ...] = ("train", "validation")


@dataclass(frozen=True, slots=True)
class Compiled:
    """What came of a spec: a plan, if no diagnostic is an error."""

    plan: Plan | None
    diagnostics: tuple[Diagnostic, ...]


def compile_file(
    name: str | FilePath,
    overrides: Sequence[str] = (),
    further: Callable[[Plan], Iterable[Finding]] | None = None,
) -> Plan:
    """The plan of a spec's file; raises SpecError with every fault, or UsageError where there is no file."""
    compiled = check_file(name, overrides, further)
    if compiled.plan is None:
        raise SpecError([d for d in compiled.diagnostics if d.severity == "error"])
    return compiled.plan


def check_file(
    name: str | FilePath,
    overrides: Sequence[str] = (),
    further: Callable[[Plan], Iterable[Finding]] | None = None,
) -> Compiled:
    """Load, check and compile; faults and warnings are in the result.

    `further` holds a plan without faults against more than the language: a trainer that it is meant for, say.
    """
    loaded = load_spec(name, overrides)
    compiler = _Compiler(loaded.spec, loaded.folders)
    plan = compiler.compile(loaded.data)
    loaded.report(compiler.findings)
    if further is not None and plan is not None and not loaded.faults:
        loaded.report(further(plan))
    return Compiled(None if loaded.faults else plan, tuple(loaded.diagnostics))


@dataclass(slots=True)
class _Compiler:
    """Resolves one spec, collecting findings on the way."""

    spec: Spec
    folders: tuple[FilePath, ...]
    findings: list[Finding] = field(default_factory=list[Finding])
    used: dict[tuple[Registry[Any], str], None] = field(default_factory=dict[tuple[Registry[Any], str], None])
    """Every vocabulary item that is used, also inside others."""

    def compile(self, data: Mapping[str, Any]) -> Plan | None:
        spec = self.spec
        self.findings += check_graph(spec)
        parsed = {name: self.parser(name, role) for name, role in spec.roles.items()}
        scored = {name: self.reward(name, role) for name, role in spec.roles.items()}
        learnt = {
            name: self.build(estimators, role.estimator, ("roles", name, "estimator"))
            if role.estimator
            else None
            for name, role in spec.roles.items()
        }
        taught = {
            name: self.build(signals, role.signal, ("roles", name, "signal")) if role.signal else None
            for name, role in spec.roles.items()
        }
        measured = {name: self.metric(name, call, scored) for name, call in spec.episode.metrics.items()}
        data_sets = self.datasets(scored)
        labels = {label for reward in scored.values() if reward for label in reward.labels}
        hidden = frozenset({*spec.data.hidden, *labels, *(f for d in data_sets.values() for f in d.hidden)})
        columns = self.columns(data_sets)
        prompts = {name: self.templates(name, role, columns, hidden) for name, role in spec.roles.items()}
        signal_plans = {name: self.signal(name, found, columns) for name, found in taught.items() if found}
        losses: dict[str, LossName] = {
            name: loss_of(role, learnt[name], taught[name]) for name, role in spec.roles.items()
        }
        self.findings += learning_findings(spec, learnt, taught)
        if any(finding.severity == "error" for finding in self.findings):
            return None
        positions = {name: position for position, name in enumerate(spec.roles)}
        graph = role_graph(spec)
        order = list(nx.topological_sort(graph))
        answering = {name: self.endpoint(role) for name, role in spec.roles.items()}
        endpoints = list(dict.fromkeys(answering.values()))
        numbers = {name: endpoints.index(endpoint) for name, endpoint in answering.items()}
        counts = {name: role.count for name, role in spec.roles.items()}
        unrolled = unroll(graph, counts, numbers, list(spec.roles))
        roles = tuple(
            RolePlan(
                name=name,
                count=role.count,
                needs=tuple(dict.fromkeys(role.needs)),
                prompt=_present(prompts[name][0]),
                system=prompts[name][1],
                parser=_present(parsed[name]),
                reward=scored[name],
                estimator=learnt[name],
                signal=signal_plans.get(name),
                loss=losses[name],
                trainable=role.trainable,
                endpoint=numbers[name],
                sampling=role.sampling or spec.sampling,
                on_failure=role.on_failure,
                timeout=role.timeout,
            )
            for name, role in spec.roles.items()
        )
        return Plan(
            name=spec.name,
            spec=spec,
            resolved=dump(data),
            hash=self.hash(data, prompts, signal_plans),
            imports=self.imports(),
            roles=roles,
            endpoints=tuple(endpoints),
            nodes=unrolled.nodes,
            blocks=unrolled.blocks,
            wiring=unrolled.wiring,
            scoring=tuple(positions[name] for name in order if (reward := scored[name]) and reward.roles),
            correct=positions[spec.episode.correct or order[-1]],
            metrics={name: _present(metric) for name, metric in measured.items()},
            hidden=hidden,
            data=data_sets,
        )

    def endpoint(self, role: Role) -> Endpoint:
        """Where a role's answers come from: a trained one speaks with the policy's weights."""
        return Endpoint(role.model or self.spec.model, MAIN if role.trainable else None)

    # vocabulary

    def parser(self, name: str, role: Role) -> Parser | None:
        path = ("roles", name, "parser")
        parser = self.build(parsers, role.parser, path)
        for other in parser.roles if parser else ():
            self.needed(name, other, path, "picks from")
        return parser

    def reward(self, name: str, role: Role) -> Reward | None:
        path = ("roles", name, "reward")
        if role.reward is None:
            return None
        reward = self.build(rewards, role.reward, path)
        upstream: set[str] = ancestors(self.spec, name) if reward and reward.roles else set()
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

    def signal(self, name: str, signal: Signal, columns: Sequence[str] | None) -> SignalPlan:
        """A signal with its teacher and template resolved."""
        path = ("roles", name, "signal")
        teacher, findings = resolve_teacher(signal.teacher, path)
        self.findings += findings
        source, findings = resolve_prompt(signal.demonstration, path)
        self.findings += findings
        before = ancestors(self.spec, name)
        counts = {other: role.count for other, role in self.spec.roles.items() if other in before}
        around = Surroundings(counts, tuple(self.spec.roles), columns, fields=(*VIEW_FIELDS, *REWARD_FIELDS))
        demonstration = self.template(path, source, around)
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

    def needed(self, name: str, other: str, path: Path, verb: str) -> None:
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
        found: dict[Split, Dataset] = {}
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
            found[split] = dataset
            for name, reward in scored.items():
                for column in reward.fields if reward else ():
                    if column not in found[split].columns:
                        where = ("roles", name, "reward")
                        message = (
                            f"the reward of {name} reads task.{column}, which the {split} data does not have"
                        )
                        expected = f"data with that field; it has {', '.join(found[split].columns)}"
                        self.findings.append(Finding(where, message, expected, word=column))
        return found

    def columns(self, data_sets: Mapping[Split, Dataset]) -> tuple[str, ...] | None:
        """The fields that every split has; None without data."""
        if not data_sets:
            return None
        first, *others = data_sets.values()
        return tuple(c for c in first.columns if all(c in other.columns for other in others))

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

    # identity

    def imports(self) -> tuple[Import, ...]:
        """What another process must import to know the vocabulary."""
        wanted = (registry.imported_from(name) for registry, name in self.used)
        return tuple(dict.fromkeys(filter(None, wanted)))

    def hash(
        self,
        data: Mapping[str, Any],
        prompts: Mapping[str, tuple[Template | None, Template | None]],
        taught: Mapping[str, SignalPlan],
    ) -> str:
        """A digest of the spec, its templates and the vocabulary it uses."""
        sources = {name: [t.source if t else None for t in pair] for name, pair in prompts.items()}
        for name, signal in taught.items():
            sources[name].append(signal.demonstration.source if signal.demonstration else None)
        used = {f"{registry.kind} {name}": digest(registry.factory(name)) for registry, name in self.used}
        identity = {"spec": data, "templates": sources, "vocabulary": used}
        return hashlib.sha256(json.dumps(identity, sort_keys=True, default=str).encode()).hexdigest()[:16]


def _present(value: T | None) -> T:
    """What is there because nothing was found wrong."""
    if value is None:
        raise AssertionError("a part of the plan is missing without a finding")
    return value
