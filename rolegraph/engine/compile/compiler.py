"""Compilation of a spec's file to an immutable Plan, or to all its faults."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import chain
from pathlib import Path as FilePath
from typing import Any, TypeVar

import networkx as nx

from rolegraph.engine import vocabulary
from rolegraph.engine.compile import policies, role_plan
from rolegraph.engine.compile.action_types import type_findings
from rolegraph.engine.compile.chats import chat_findings, trunk_of
from rolegraph.engine.compile.earned import earning_findings, scored
from rolegraph.engine.compile.graph import check_graph, run_findings
from rolegraph.engine.compile.imitation import demonstration_findings, stage_findings, stages_findings
from rolegraph.engine.compile.inputs import role_inputs
from rolegraph.engine.compile.lineage import Instances, history_findings, instances_of
from rolegraph.engine.compile.names import ResolvedNames, judged
from rolegraph.engine.compile.numbers import in_step, numbers_of
from rolegraph.engine.compile.overrides import override_findings
from rolegraph.engine.compile.plan import EpisodeBounds, Plan, StagePlan, TurnGraph, size_of
from rolegraph.engine.compile.readable import (
    default_findings,
    instruction_findings,
    read_findings,
    stop_findings,
)
from rolegraph.engine.compile.resolve import digest, locate_models
from rolegraph.engine.compile.steps import last_step, with_numbers
from rolegraph.engine.compile.trainable import learning_findings, term_findings
from rolegraph.engine.compile.unroll import UnrolledGraph
from rolegraph.engine.compile.validations import fit_validations, validation_sources
from rolegraph.engine.errors import SpecError, Suggestion
from rolegraph.engine.prompts import Expression, Template, template_texts
from rolegraph.engine.records import Source, Task
from rolegraph.engine.secrets import without_url_secrets
from rolegraph.engine.spec import Diagnostic, Finding, Spec, coded, load_spec
from rolegraph.engine.spec.diagnostics import Severity
from rolegraph.engine.spec.loader import LoadedSpec, by_place
from rolegraph.engine.spec.stages import spec_in_stage
from rolegraph.engine.spec.yaml_text import dump_yaml
from rolegraph.engine.vocabulary.tool import never_called

T = TypeVar("T")
PlanCheck = Callable[[Plan], Iterable[Finding]]
"""Function that checks a plan without faults for one use, such as a trainer."""


@dataclass(frozen=True, slots=True)
class CompileResult:
    """Result of a compilation: a plan, if no diagnostic is an error."""

    plan: Plan | None
    diagnostics: tuple[Diagnostic, ...]

    def valid(self) -> Plan:
        """Return the plan; raises SpecError with all faults of a faulty spec."""
        if self.plan is None:
            raise SpecError([d for d in self.diagnostics if d.severity == "error"])
        return self.plan

    @property
    def size(self) -> EpisodeBounds | None:
        """Bounds of an episode's size; None without a plan."""
        return None if self.plan is None else size_of(self.plan)

    def files(self) -> Mapping[vocabulary.Split, vocabulary.Dataset]:
        """Return the data sets that are files of the spec's author; only their first task has been read."""
        if self.plan is None:
            return {}
        data = self.plan.data.items()
        origins = {split: (d.whole or d).origin for split, d in data}
        return {split: d for split, d in data if (made_by := origins[split]) and made_by.call.name == "file"}


def data_findings(plan: Plan) -> Iterator[Finding]:
    """Find faults of a plan's data; reads the training and validation files, and no other data set.

    Warnings are of validation rows that are also training rows, and of fewer validation rows than
    `validation.tasks`; demonstrations that do not fit a training row are faults.
    """
    files = CompileResult(plan, ()).files()
    if "train" in files:
        yield from demonstration_findings(plan, files["train"].rows(None))
    if "validation" in files:
        count = sum(1 for _ in files["validation"].rows(plan.spec.train.validation.tasks))
        if message := few_tasks_message(plan, count):
            path = ("train", "validation", "tasks")
            yield Finding(path, message, f"{count:,} or fewer", severity="warning")
    if len(files) == 2 and not plan.spec.data.split:
        shared_rows = vocabulary.shared_rows(files["train"].rows(None), files["validation"].rows(None))
        if shared_rows:
            hint = "hold rows out of one file: `data: {train: FILE, split: 0.1}`"
            yield Finding(("data", "validation"), shared_message(shared_rows), hint=hint, severity="warning")


def marker_findings(plan: Plan) -> Iterator[Finding]:
    """Warn of endpoints whose server does not escape chat markers in texts before it turns them to tokens."""
    spec = plan.spec
    used_models = [endpoint.model for endpoint in plan.endpoints]
    for path, ref in policies.models_of(spec):
        if ref in used_models and ref.provider == "openai" and ref.escape_markers is None:
            message = "the endpoint encodes texts itself, so a text with chat markers can forge a turn there"
            hint = "set `escape_markers` of the model: true escapes them, false trusts the server"
            yield Finding(path, message, hint=hint, severity="warning")


def few_tasks_message(plan: Plan, count: int) -> str:
    """Return a sentence about validation data with fewer rows than the spec's `train.validation.tasks`.

    Args:
        plan: The plan.
        count: Number of existing validation tasks, up to the number in the spec.

    Returns:
        The sentence; empty if there are enough tasks, or if the spec sets no number.
    """
    validation = plan.spec.train.validation
    if count >= validation.tasks or "tasks" not in validation.model_fields_set:
        return ""
    rows = "1 row, which is used" if count == 1 else f"{count:,} rows, which are all used"
    return f"`validation.tasks` is {validation.tasks:,}, and the validation data has {rows}"


def shared_message(shared: Sequence[Task]) -> str:
    """Describe validation tasks that are training tasks as well."""
    rows = "row is" if len(shared) == 1 else "rows are"
    example = vocabulary.short_repr({key: value for key, value in shared[0].items() if key != "id"})
    return f"{len(shared):,} validation {rows} in the training data, too, such as {example}"


def compile_file(name: str | FilePath, overrides: Sequence[str] = (), *, allow: Sequence[str] = ()) -> Plan:
    """Compile a spec's file.

    Args:
        name: A path, or the name of a shipped spec.
        overrides: `key.path=value` settings.
        allow: Permissions, as for `--allow`.

    Raises:
        SpecError: The spec has faults; all of them are in the error.
        UsageError: The file does not exist.
    """
    return check_file(name, overrides, allow=allow).valid()


def check_file(
    name: str | FilePath,
    overrides: Sequence[str] = (),
    further: PlanCheck | None = None,
    *,
    allow: Sequence[str] = (),
) -> CompileResult:
    """Check a spec's file as `check_source` does.

    Args:
        name: A path, or the name of a shipped spec.
        overrides: `key.path=value` settings.
        further: A check of the plan for one use.
        allow: Permissions, as for `--allow`.
    """
    return check_source(Source.of(name, *overrides, allow=allow), further)


def check_source(
    source: Source, further: PlanCheck | None = None, *, runs: bool = False, validates: bool = False
) -> CompileResult:
    """Import a source's Python files, then load, check and compile its spec and the specs that validate it.

    Args:
        source: The spec, overrides and options.
        further: A check of the plan for one use.
        runs: True if the plan is to run now, which makes a missing permission a fault, else a warning.
        validates: True for a spec that validates another one; its own `train.validation` is then not read.

    Returns:
        The plan, if there are no faults, and all faults and warnings.

    Raises:
        UsageError: No spec is named, or a file does not exist.
    """
    imports = [vocabulary.import_file(FilePath(file)) for file in source.imports]
    loaded_spec = load_spec(source.named_spec, source.overrides, model=source.model, base_url=source.base_url)
    plan = _compile(loaded_spec, imports, source.allow)
    if plan is not None:
        severity: Severity = "error" if runs else "warning"
        for name, path in plan.withheld:
            message = f"{'.'.join(map(str, path))} needs a permission: {name}"
            hint = f"--allow {shlex.quote(name)}"
            loaded_spec.report([Finding(path, message, "", hint, severity, word=name, code="permission")])
        if not validates:
            plan = _with_validations(plan, loaded_spec, source, runs)
        if further is not None and not loaded_spec.faults:
            loaded_spec.report(coded("engine", further(plan)))
    return CompileResult(None if loaded_spec.faults else plan, loaded_spec.shown_diagnostics())


def _with_validations(plan: Plan, loaded: LoadedSpec, source: Source, runs: bool) -> Plan:
    """Return a plan with the workflows that validate it; report their faults to `loaded`."""
    sources, findings = validation_sources(loaded, source)
    results = [check_source(one_source, runs=runs, validates=True) for one_source in sources]
    plans, misfits = fit_validations(plan, [result.plan for result in results])
    faults = (d for result in results for d in result.diagnostics if d.severity == "error")
    loaded.diagnostics = sorted(dict.fromkeys([*loaded.diagnostics, *faults]), key=by_place)
    loaded.report(coded("training", [*findings, *misfits]))
    return replace(plan, validations=plans) if plans else plan


def _compile(loaded: LoadedSpec, imports: Sequence[vocabulary.Import], allow: Sequence[str]) -> Plan | None:
    """Report all findings to `loaded`, and return the compiled plan; None where a finding is an error."""
    numbers, number_findings = numbers_of(loaded)
    spec, model_findings = locate_models(loaded)
    findings = [
        *number_findings,
        *coded("policy", model_findings),
        *check_graph(spec),
        *run_findings(spec, loaded.data),
    ]
    is_sound = all(finding.severity != "error" for finding in findings)
    instances = instances_of(spec) if is_sound else None
    findings += history_findings(spec, instances) if instances else ()
    names = ResolvedNames(spec, instances, loaded, allow)
    findings += coded("item", names.findings)
    findings += chat_findings(spec, instances) if instances else ()
    findings += coded("policy", policies.check_policies(spec, names.counts))
    findings += coded("policy", policies.checkpoint_findings(spec, names.counts))
    findings += coded("policy", policies.body_findings(spec))
    findings += coded("override", override_findings(loaded, spec, names.counts))
    findings += coded("reward", earning_findings(names))
    for check in (read_findings, type_findings, instruction_findings, stop_findings, default_findings):
        findings += coded("answer", check(names))
    findings += coded("training", learning_findings(names))
    for role in names.roles.values():
        findings += coded("training", term_findings(role))
    if any(isinstance(f.hint, Suggestion) for f in findings):  # prompts tell which spelling is meant
        texts = (text for role in spec.roles.values() for text in (role.prompt, role.system))
        loaded.source.texts |= template_texts(texts, loaded.folders)
    loaded.report(findings)
    if instances is None or loaded.faults:  # with faults, parts of the spec are missing
        return None
    if numbers is not None:  # the checks that items make of their options
        for step in numbers.extremes():
            in_stage = ResolvedNames(numbers.spec_at(step), instances, loaded, allow).findings
            loaded.report(in_step(step, finding) for finding in in_stage if finding not in names.findings)
        if loaded.faults:
            return None
    stages = _stages(names, instances, loaded, imports)
    if loaded.faults:
        return None
    plan = _assemble(names, instances, loaded.data, imports)
    if stages:
        joined_hashes = "".join([plan.hash, *(stage_plan.hash for _, stage_plan in stages)])
        hash = vocabulary.digest_of(joined_hashes.encode())
        plan = replace(plan, hash=hash, stages=tuple(stage for stage, _ in stages))
    if numbers is None and not plan.reads_step:
        return plan
    plan = replace(plan, numbers=numbers, last_step=last_step(plan))
    return with_numbers(plan, plan.last_step)


def _stages(
    names: ResolvedNames, instances: Instances, loaded: LoadedSpec, imports: Sequence[vocabulary.Import]
) -> list[tuple[StagePlan, Plan]]:
    """Compile the spec for each stage of the training, and report the findings of all stages.

    Returns:
        For each stage its StagePlan, and the plan of the spec in that stage; only stages before the first
        fault.
    """
    spec, stages, first_step = names.spec, list[tuple[StagePlan, Plan]](), 1
    stage_names = [
        ResolvedNames(spec_in_stage(spec, stage), instances, loaded, names.allow)
        for stage in spec.train.stages
    ]
    findings = chain.from_iterable(stage_findings(index, n) for index, n in enumerate(stage_names))
    loaded.report(coded("training", [*stages_findings(spec), *findings]))
    for stage, n in zip(spec.train.stages, stage_names, strict=True):
        if not loaded.faults:
            plan = _assemble(n, instances, loaded.data, imports)
            last_step = first_step + stage.steps - 1
            stages.append((StagePlan(stage, first_step, last_step, n.spec, plan.roles), plan))
        first_step += stage.steps
    return stages


def _assemble(
    names: ResolvedNames, instances: Instances, data: Mapping[str, Any], imports: Sequence[vocabulary.Import]
) -> Plan:
    """Build the Plan, with roles, nodes and blocks, of a spec without faults.

    Pure, except that `_hash` reads files of the vocabulary.
    """
    spec, counts = names.spec, names.counts
    runs_programs = any(permission.name == "python" for permission in names.permissions)
    interpreter = names.interpreter if runs_programs else ""
    positions = {name: index for index, name in enumerate(spec.roles)}
    loops = list(spec.loops)
    trainees = policies.trained_policies(spec, counts)
    endpoint_of = {name: policies.endpoints_of(spec, name, count, trainees) for name, count in counts.items()}
    scorers = {name: _scorers(role, endpoint_of[name]) for name, role in names.roles.items()}
    scoring = (endpoints for role_scorers in scorers.values() for _, endpoints in role_scorers.values())
    endpoints = list(dict.fromkeys(chain(*endpoint_of.values(), *scoring)))
    mentions = {
        name: role.mentions.union(*(text.mentions for text in role.expressions))
        for name, role in names.roles.items()
    }
    untils = {name: condition.mentions for name, condition in names.untils.items() if condition}

    rewards = {
        name: list(dict.fromkeys((*role.reward.read_roles, *_turns_in(role.formulas.values(), spec))))
        for name, role in names.roles.items()
        if role.reward
    }
    signals = {
        name: [e for e in spec.roles if e in role.signal.mentions and e not in role.spec.needs]
        for name, role in names.roles.items()
        if role.signal and role.signal.mentions
    }
    by_turn = {name for name, role in names.roles.items() if role.formulas}
    inputs = role_inputs(spec, mentions, untils)
    measures = [_present(metric).measure for metric in names.metrics.values()]
    correct = tuple(map(_present, names.correct))
    episode_turns = _turns_in((*measures, *(e.expression for e in correct)), spec)
    unrolled = UnrolledGraph(spec, instances, inputs, rewards, signals, by_turn, episode_turns)
    roles = tuple(
        role_plan.RolePlan(
            **_values(
                role,
                role_plan.ResolvedRole,
                loss=_present(role.loss),
                tools=tuple(tool for tool in map(_present, role.tools) if not tool.callee),
                groupings=role.groupings if role.compares_rewards else (role_plan.GroupingPlan(),),
                likelihoods={
                    likelihood: role_plan.LikelihoodPlan(text, tuple(map(endpoints.index, role_scorers)))
                    for likelihood, (text, role_scorers) in scorers[name].items()
                },
            ),
            count=counts[name],
            endpoints=tuple(map(endpoints.index, endpoint_of[name])),
            samplings=tuple(sampling for _, sampling in policies.samplings_of(spec, name, counts[name])),
            loop=None if (loop := spec.loop_of(name)) is None else loops.index(loop),
            rounds=spec.rounds_of(name),
            times=1 if loop is None else spec.loops[loop].times,
            nodes=unrolled.nodes_of[name],
            prompt_per_instance=role.spec.memory is not None
            or role.spec.callable is not None
            or "self" in role.mentions,
            kept_back=_kept_back(names, name),
            frozen=spec.frozen_instances(name, counts[name]),
            callees=tuple(_callee_plan(spec, name, called_role) for called_role in spec.callees_of(name)),
            trunk=frozenset(positions[trunk_role] for trunk_role in trunk_of(spec, name)),
        )
        for name, role in names.roles.items()
    )
    loop_plans: list[role_plan.LoopPlan] = []
    for name, settings in spec.loops.items():
        outer, condition, guard = spec.loop_around(name), names.untils[name], names.loop_whens[name]
        outer_index = None if outer is None else loops.index(outer)
        loop_plans.append(
            role_plan.LoopPlan(name, settings.times, condition, unrolled.branches[name], guard, outer_index)
        )
    envs = [_env_plan(spec, name, _present(e), unrolled) for name, e in names.environments.items()]
    scoring = nx.topological_sort(scored(names.rewards))
    late_roles = {name for name, reward in names.rewards.items() if reward and reward.is_deferred}
    item_imports = (registry.imported_from(name) for registry, name in names.used)
    return Plan(
        name=spec.name,
        spec=spec,
        resolved=dump_yaml(dict(data)),
        hash=_hash(data, names, imports, interpreter),
        imports=tuple(dict.fromkeys([*imports, *filter(None, item_imports)])),
        roles=roles,
        endpoints=tuple(endpoints),
        policies=trainees,
        past=policies.past_policies(spec, counts, trainees),
        **_values(unrolled, TurnGraph),
        loops=tuple(loop_plans),
        envs=tuple(envs),
        reward_order=tuple(positions[name] for name in scoring if name in late_roles),
        correct=correct,
        judged=judged(names.rewards),
        metrics={name: _present(metric) for name, metric in names.metrics.items()},
        hidden=names.hidden,
        data=names.data,
        permissions=tuple(names.permissions),
        withheld=tuple(e for e in names.permissions if not vocabulary.is_allowed(e.name, names.allow)),
        interpreter=interpreter,
    )


def _turns_in(texts: Iterable[object], spec: Spec) -> list[str]:
    """Return the names of turns that the expressions among `texts` read; other objects read none."""
    mentioned = {name for text in texts if isinstance(text, Expression) for name in text.mentions}
    return vocabulary.named_turns(mentioned, spec.roles)


def _scorers(
    role: role_plan.ResolvedRole, answering: Sequence[role_plan.Endpoint]
) -> dict[vocabulary.Likelihood, tuple[Template, list[role_plan.Endpoint]]]:
    """Return each text whose log-probabilities a role's reward reads, with the endpoint that scores it for
    each instance."""
    texts: dict[vocabulary.Likelihood, tuple[Template, list[role_plan.Endpoint]]] = {}
    for likelihood, scorer in role.likelihoods.items():
        model = scorer.model
        if model == "policy":
            endpoints = [*answering]
        else:
            refs = [endpoint.model if model == "base" else model for endpoint in answering]
            endpoints = [role_plan.Endpoint(ref) for ref in refs]
        texts[likelihood] = _present(scorer.text), endpoints
    return texts


def _values(record: object, kind: type[Any], **others: Any) -> dict[str, Any]:
    """Return `record`'s values for the fields of the dataclass `kind`, as keyword arguments; values in
    `others` replace them."""
    return {member.name: getattr(record, member.name) for member in fields(kind)} | others


def _callee_plan(spec: Spec, name: str, callee: str) -> role_plan.CalleePlan:
    role = spec.roles[name]
    offered_call = _present(spec.roles[callee].callable)
    function = vocabulary.Function(callee, offered_call.describe, offered_call.parameters, never_called)
    parallel = spec.callees_of(name)[callee] // (role.max_calls - 1)
    return role_plan.CalleePlan([*spec.roles].index(callee), function, parallel)


def _kept_back(names: ResolvedNames, name: str) -> frozenset[str]:
    """Return the functions of role `name`'s tools that its model may not call, because a `run: function`
    calls them."""
    functions: set[str] = set()
    for role in names.roles.values():
        if role.run and (session_call := role.run.tool.session):
            owner = role.spec.needs[session_call.role].of or session_call.role
            if any(tool in names.spec.roles[owner].tools for tool in names.spec.roles[name].tools):
                functions.add(session_call.function)
    return frozenset(functions)


def _env_plan(
    spec: Spec, loop: str, environment: vocabulary.Environment, unrolled: UnrolledGraph
) -> role_plan.EnvPlan:
    first_player: dict[int, int] = {}
    player_nodes, positions = unrolled.player_nodes[loop], [*spec.roles]
    for player, node in enumerate(player_nodes[0]):
        first_player.setdefault(unrolled.nodes[node].role, player)
    times = spec.loops[loop].times
    turns = {positions.index(name): spec.rounds_of(name) // times for name in spec.roles_in(loop)}
    number = [*spec.loops].index(loop)
    return role_plan.EnvPlan(
        environment, number, unrolled.transitions[loop], first_player, player_nodes, turns
    )


def _hash(
    data: Mapping[str, Any], names: ResolvedNames, imports: Sequence[vocabulary.Import], interpreter: str
) -> str:
    """Return the digest of a spec, its templates, the vocabulary it uses, the files imported for it, and the
    interpreter of its programs where that is not Monty.
    """
    sources: dict[str, list[str | None]] = {}
    for name, role in names.roles.items():
        templates = (role.run.value if role.run else role.prompt, role.system)
        sources[name] = [template.source if template else None for template in templates]
        if role.examples:
            sources[name].append(role.examples.source)
        if role.signal:
            demonstration = role.signal.demonstration
            sources[name].append(demonstration.source if demonstration else None)
            texts = [text for t in role.signal.all_teachers for text in (t.prompt, t.system)]
            sources[name] += [text.source for text in texts if text]
    digests = {f"{registry.kind} {name}": digest(registry.factory(name)) for registry, name in names.used}
    identity: dict[str, Any] = {"spec": data, "templates": sources, "vocabulary": digests}
    if imports:
        identity["imports"] = sorted(source_file.digest() for source_file in imports)
    if interpreter not in ("", vocabulary.MONTY):
        identity["interpreter"] = interpreter
    # A run's record has no keys of URLs, and a run may be resumed with another key.
    identity_text = json.dumps(identity, sort_keys=True, default=str)
    return vocabulary.digest_of(without_url_secrets(identity_text).encode())


def _present(value: T | None) -> T:
    """Return `value` unchanged; raise AssertionError for None, which a spec without faults never gives."""
    if value is None:
        raise AssertionError("a part of the plan is missing without a finding")
    return value
