"""Compilation of a spec's file to an immutable Plan, or to all its faults."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path as FilePath
from typing import Any, TypeVar

from rolegraph.engine.compile.earned import correct_findings, earning_findings, scored
from rolegraph.engine.compile.graph import (
    Needs,
    check_graph,
    env_loop,
    in_order,
    loop_of,
    players_of,
    repeated_needs,
    role_needs,
    run_findings,
)
from rolegraph.engine.compile.inputs import OWN_TURNS, role_inputs
from rolegraph.engine.compile.lineage import Instances, instances_of
from rolegraph.engine.compile.model_files import ModelFiles
from rolegraph.engine.compile.names import ResolvedNames, resolve_names
from rolegraph.engine.compile.plan import EnvPlan, LoopPlan, Node, Permission, Plan, RolePlan, self_view
from rolegraph.engine.compile.policies import check_policies, endpoints_of, samplings_of, trained_policies
from rolegraph.engine.compile.resolve import digest
from rolegraph.engine.compile.size import EpisodeBounds, size_of
from rolegraph.engine.compile.trainable import alike_findings, learning_findings, loss_of, smallest_group
from rolegraph.engine.compile.unroll import unroll
from rolegraph.engine.errors import SpecError
from rolegraph.engine.prompts import IN_A_LOOP, OF_SELF, SELF, PromptError
from rolegraph.engine.records import Source
from rolegraph.engine.spec import Diagnostic, Finding, Spec, load_spec
from rolegraph.engine.spec.diagnostics import Severity
from rolegraph.engine.spec.merge import dump_yaml
from rolegraph.engine.vocabulary import Dataset, Import, Split, import_file, is_allowed

T = TypeVar("T")
PlanCheck = Callable[[Plan], Iterable[Finding]]
"""Function that checks a plan without faults for one use, such as a trainer."""


_CONSTANTS = {"self", *(f"self.{field}" for field in (*OF_SELF, *IN_A_LOOP))} - {OWN_TURNS}
"""Mentions with the same value in every episode."""


@dataclass(frozen=True, slots=True)
class CompileResult:
    """Result of a compilation: a plan, if no diagnostic is an error."""

    plan: Plan | None
    diagnostics: tuple[Diagnostic, ...]

    def valid(self) -> Plan:
        """Return the plan; raises SpecError with all faults if there is none."""
        if self.plan is None:
            raise SpecError([d for d in self.diagnostics if d.severity == "error"])
        return self.plan

    @property
    def size(self) -> EpisodeBounds | None:
        """Bounds of an episode's size; None without a plan."""
        return None if self.plan is None else size_of(self.plan)

    def files(self) -> Mapping[Split, Dataset]:
        """Return the data sets that are files of the spec's author; only their first task has been read."""
        written: dict[Split, Dataset] = {}
        for split, dataset in self.plan.data.items() if self.plan else ():
            if dataset.origin is not None and dataset.origin.call.name == "file":
                written[split] = dataset
        return written


def compile_file(
    name: str | FilePath,
    overrides: Sequence[str] = (),
    further: PlanCheck | None = None,
    *,
    allow: Sequence[str] = (),
) -> Plan:
    """Compile a spec's file.

    Args:
        name: A path, or the name of a shipped spec.
        overrides: `key.path=value` settings.
        further: A check of the plan for one use.
        allow: Permissions, as for `--allow`.

    Raises:
        SpecError: The spec has faults; all of them are in the error.
        UsageError: The file does not exist.
    """
    return check_file(name, overrides, further, allow=allow).valid()


def check_file(
    name: str | FilePath,
    overrides: Sequence[str] = (),
    further: PlanCheck | None = None,
    *,
    model: str | None = None,
    base_url: str | None = None,
    imports: Sequence[Import] = (),
    allow: Sequence[str] = (),
    runs: bool = False,
) -> CompileResult:
    """Load, check and compile a spec's file; faults and warnings are in the result.

    Args:
        name: A path, or the name of a shipped spec.
        overrides: `key.path=value` settings.
        further: A check of the plan for one use.
        model: Value of `--model`.
        base_url: Value of `--base-url`.
        imports: Files of vocabulary that the command line allows, already imported.
        allow: Permissions, as for `--allow`. A missing one is a warning.
        runs: True if the plan is to run now, which makes a missing permission a fault.

    Raises:
        UsageError: The file does not exist.
    """
    loaded = load_spec(name, overrides, model=model, base_url=base_url)
    files = ModelFiles(loaded.folders, loaded.is_overridden)
    plan, findings = _compile(loaded.spec, loaded.data, files, imports, allow, whole=not loaded.faults)
    loaded.report(findings)
    if plan is not None:
        loaded.report(_permission_findings(plan.withheld, "error" if runs else "warning"))
    if further is not None and plan is not None and not loaded.faults:
        loaded.report(further(plan))
    return CompileResult(None if loaded.faults else plan, loaded.shown_diagnostics())


def check_source(source: Source, further: PlanCheck | None = None, *, runs: bool = False) -> CompileResult:
    """Import a source's Python files and check its spec as `check_file` does.

    Raises UsageError where no spec is named, or a file is missing.
    """
    return check_file(
        source.named_spec,
        source.overrides,
        further,
        model=source.model,
        base_url=source.base_url,
        imports=[import_file(FilePath(file)) for file in source.imports],
        allow=source.allow,
        runs=runs,
    )


def _compile(
    spec: Spec,
    data: Mapping[str, Any],
    files: ModelFiles,
    imports: Sequence[Import],
    allow: Sequence[str],
    *,
    whole: bool,
) -> tuple[Plan | None, list[Finding]]:
    """Return the plan, or None where a finding is an error, and all findings.

    `data` is the spec as it was read. Where not `whole`, parts that did not fit the model are not in `spec`.
    """
    needs = role_needs(spec)
    spec, of_models = files.all_located(spec)
    findings = [*of_models, *check_graph(spec, needs), *repeated_needs(data), *run_findings(spec, data)]
    instances = None if any(map(_is_error, findings)) else instances_of(spec)
    names, of_names = resolve_names(spec, needs, instances, files)
    findings += of_names
    counts = {name: len(instances[name]) if instances else role.count for name, role in spec.roles.items()}
    findings += earning_findings(spec, names)
    findings += check_policies(spec, counts)
    groups = {name: smallest_group(spec, name, instances, asked) for name, asked in names.templates.items()}
    findings += learning_findings(spec, groups, names.estimators, names.signals)
    if instances is not None:
        findings += alike_findings(spec, instances, names.templates, names.rewards)
        findings += correct_findings(spec, names.rewards, in_order(needs)[-1])
    if instances is None or not whole or any(map(_is_error, findings)):
        return None, findings
    return _assemble(spec, data, needs, instances, names, imports, allow), findings


def _is_error(finding: Finding) -> bool:
    return finding.severity == "error"


def _assemble(
    spec: Spec,
    data: Mapping[str, Any],
    needs: Needs,
    instances: Instances,
    names: ResolvedNames,
    imports: Sequence[Import],
    allow: Sequence[str],
) -> Plan:
    """Build the plan of a spec without faults. Pure, except that `_hash` reads files of the vocabulary."""
    positions = {name: position for position, name in enumerate(spec.roles)}
    order = in_order(needs)
    counts = {name: len(its) for name, its in instances.items()}
    policies = trained_policies(spec, counts)
    endpoint_of = {name: endpoints_of(spec, name, count, policies) for name, count in counts.items()}
    endpoints = {endpoint: None for its in endpoint_of.values() for endpoint in its}
    positions_of = {endpoint: position for position, endpoint in enumerate(endpoints)}
    numbers = {name: [positions_of[endpoint] for endpoint in its] for name, its in endpoint_of.items()}
    inputs = role_inputs(
        spec,
        {name: _mentions(names, name) for name in spec.roles},
        {name: until.mentions for name, until in names.untils.items() if until},
    )
    loop_with_env = env_loop(spec)
    players = [] if loop_with_env is None else players_of(spec, loop_with_env)
    unrolled = unroll(
        spec,
        instances,
        inputs,
        endpoints=numbers,
        rewards={name: reward.read_roles for name, reward in names.rewards.items() if reward},
        by_turn={
            name for name, it in spec.roles.items() if it.credit.kind != "trajectory" or it.group != "task"
        },
    )
    loops = list(spec.loops)
    turns = Counter(node.role for node in unrolled.nodes)
    ends = list(accumulate(turns[position] for position in range(len(spec.roles))))
    roles = tuple(
        RolePlan(
            name=name,
            spec=role,
            count=counts[name],
            needs=tuple(needs[name]),
            prompt=None if role.run else _present(names.templates[name][0]),
            run=names.runs[name],
            system=names.templates[name][1],
            parser=_present(names.parsers[name]),
            reward=names.rewards[name],
            estimator=names.estimators[name],
            signal=names.signal_plans.get(name),
            loss=loss_of(role, names.estimators[name], names.signals[name]),
            endpoints=tuple(numbers[name]),
            samplings=tuple(sampling for _, sampling in samplings_of(spec, name, counts[name])),
            when=names.whens[name],
            loop=None if (loop := loop_of(spec, name)) is None else loops.index(loop),
            rounds=turns[position] // counts[name],
            nodes=range(ends[position] - turns[position], ends[position]),
            prompt_per_instance=role.memory == "chat"
            or any("self" in template.mentions for template in names.templates[name] if template),
            tools=tuple(map(_present, names.tools[name])),
            defers_reward=(reward := names.rewards[name]) is not None and reward.is_deferred,
            sums_rewards=reward is not None and reward.reads_environment,
        )
        for position, (name, role) in enumerate(spec.roles.items())
    )
    return Plan(
        name=spec.name,
        spec=spec,
        resolved=dump_yaml(data),
        hash=_hash(data, names, imports),
        imports=_imports(names, imports),
        roles=roles,
        endpoints=tuple(endpoints),
        policies=policies,
        nodes=unrolled.nodes,
        never_run=_never_run(roles, unrolled.nodes),
        blocks=unrolled.blocks,
        wiring=unrolled.wiring,
        reward_inputs=unrolled.reward_inputs,
        loops=tuple(
            LoopPlan(name, loop.times, names.untils[name], unrolled.early_exit[name], unrolled.branches[name])
            for name, loop in spec.loops.items()
        ),
        env=None
        if loop_with_env is None
        else EnvPlan(
            _present(names.environment),
            loops.index(loop_with_env),
            {positions[name]: sum(len(instances[p]) for p in players[:n]) for n, name in enumerate(players)},
            unrolled.player_nodes,
        ),
        reward_order=tuple(
            positions[name]
            for name in in_order(scored(names.rewards))
            if roles[positions[name]].defers_reward
        ),
        correct=positions[spec.episode.correct or order[-1]],
        metrics={name: _present(metric) for name, metric in names.metrics.items()},
        hidden=names.hidden,
        data=names.data,
        permissions=tuple(names.permissions),
        withheld=tuple(asked for asked in names.permissions if not is_allowed(asked.name, allow)),
    )


def _never_run(roles: Sequence[RolePlan], nodes: Sequence[Node]) -> frozenset[int]:
    """Return the nodes whose `when` reads only constants of the node and is false."""
    never: set[int] = set()
    for place, node in enumerate(nodes):
        role = roles[node.role]
        if role.when is None or not role.when.mentions <= _CONSTANTS:
            continue
        with suppress(PromptError):  # counted in each episode, among its `uncomputed_conditions`
            if not role.when.holds({SELF: self_view(role, node)}):
                never.add(place)
    return frozenset(never)


def _mentions(names: ResolvedNames, role: str) -> set[str]:
    """Return the names that a role's prompts and its condition read."""
    read = (*names.templates[role], names.whens[role])
    return {name for template in read if template for name in template.mentions}


def _imports(names: ResolvedNames, given: Sequence[Import]) -> tuple[Import, ...]:
    """Return the modules that another process must import to have the vocabulary."""
    wanted = (registry.imported_from(name) for registry, name in names.used)
    return tuple(dict.fromkeys([*given, *filter(None, wanted)]))


def _hash(data: Mapping[str, Any], names: ResolvedNames, imports: Sequence[Import]) -> str:
    """Return the digest of a spec, its templates, the vocabulary it uses and the files imported for it."""
    sources = {name: [t.source if t else None for t in pair] for name, pair in names.templates.items()}
    for name, signal in names.signal_plans.items():
        sources[name].append(signal.demonstration.source if signal.demonstration else None)
    used = {f"{registry.kind} {name}": digest(registry.factory(name)) for registry, name in names.used}
    identity: dict[str, Any] = {"spec": data, "templates": sources, "vocabulary": used}
    if imports:
        identity["imports"] = sorted(wanted.digest() for wanted in imports)
    return hashlib.sha256(json.dumps(identity, sort_keys=True, default=str).encode()).hexdigest()[:16]


def _permission_findings(permissions: Iterable[Permission], severity: Severity) -> Iterator[Finding]:
    """Report permissions that were not given, each at its key."""
    for name, path in permissions:
        message = f"{'.'.join(map(str, path))} needs a permission: {name}"
        yield Finding(path, message, "", f"--allow {name}", severity, word=name)


def _present(value: T | None) -> T:
    """Return a value that is present because the spec has no faults."""
    if value is None:
        raise AssertionError("a part of the plan is missing without a finding")
    return value
