"""Table of the spec's keys under rLLM: for each backend, whether it carries, refuses or ignores the key.

`validate --backend`, the launcher, `eject`, an AgentFlow's first episode and docs/rllm.md read the table.
Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from typing import Literal, NamedTuple

from rolegraph.engine.compile import Plan
from rolegraph.engine.errors import UsageError
from rolegraph.engine.spec import Finding
from rolegraph.integrations.rllm import checks
from rolegraph.integrations.rllm.backends import TRAITS
from rolegraph.integrations.rllm.checks import Check, CheckTarget, FlowRun
from rolegraph.integrations.rllm.names import BACKENDS, Backend
from rolegraph.integrations.rllm.override_checks import override_findings

Column = Literal[Backend, "flow"]
"""Column of `TABLE`, which maps spec keys to their support by rLLM backend: a backend with the compiled
Workflow, or an AgentFlow without `agent_trainer`."""


class Support(StrEnum):
    """Support of a spec key by an rLLM backend."""

    YES = "yes"
    """The compiled workflow or rLLM's config carries the key."""
    HOOK = "hook"
    """The grouping hook carries the key."""
    SOME = "some values"
    """Some values are carried; a check refuses the others."""
    NO_EFFECT = "no effect"
    """The key has no effect; a warning says so."""
    REFUSED = "refused"
    ELSEWHERE = "elsewhere"
    """The run's own setting replaces the spec's: an option, or a key of the user's config."""


YES, HOOK, SOME = Support.YES, Support.HOOK, Support.SOME
NO_EFFECT, REFUSED, ELSEWHERE = Support.NO_EFFECT, Support.REFUSED, Support.ELSEWHERE
_UNCHECKED = frozenset({YES, ELSEWHERE})


class KeyRow(NamedTuple):
    """Support of a key in each column."""

    tinker: Support
    verl: Support
    fireworks: Support
    custom: Support
    flow: Support
    checks: tuple[Check, ...] = ()
    """Checks that find the values that are not carried."""
    note: str = ""
    """Note for the docs: the carried part of the key, or the reason why the key is not carried."""


def _same(support: Support, *of_key: Check, flow: Support | None = None, note: str = "") -> KeyRow:
    """Return a row with the same support on all backends.

    Args:
        support: Support on every backend.
        *of_key: Checks of the key.
        flow: Support with an AgentFlow; None for `support`.
        note: Note for the docs.
    """
    return KeyRow(support, support, support, support, flow or support, of_key, note)


_CARRIED = _same(YES)
_BY_ITS_KEYS = _same(YES, note="by its keys")
_OPTION = _same(YES, flow=ELSEWHERE)
_YOURS = KeyRow(YES, YES, YES, ELSEWHERE, ELSEWHERE)
_NO_STEP = _same(REFUSED, checks.stages, note="a workflow does not know the step")
_NO_COUNTERPART = _same(REFUSED, checks.without_counterpart, note="rLLM's trainer has nothing like it")
_PAST = _same(REFUSED, checks.policies, note="the engine has the newest weights alone")
_DATA = _same(SOME, checks.data, flow=ELSEWHERE, note="no colon in a task's id, at which rLLM cuts it")
_LAYERS = KeyRow(YES, NO_EFFECT, NO_EFFECT, ELSEWHERE, ELSEWHERE, (checks.layers,), "only tinker chooses")
_DOLLARS = _same(NO_EFFECT, checks.price, note="rLLM counts no dollars")
_LISTS = _same(REFUSED, checks.groupings, note="a trajectory is in one group")


def _rows(model: str, row: KeyRow, keys: str) -> dict[str, KeyRow]:
    return {f"{model}.{key}": row for key in keys.split()}


TABLE: Mapping[str, KeyRow] = {
    **_rows("Spec", _CARRIED, "rolegraph name description loops episode"),
    **_rows("Spec", _BY_ITS_KEYS, "data model sampling train"),
    "Spec.roles": _same(SOME, checks.roles, checks.trained_otherwise, note="one of them is trained"),
    "Spec.policies": _same(SOME, checks.policies, note="`main` alone: rLLM has one engine"),
    **_rows("Data", _DATA, "train validation"),
    "Data.split": _OPTION,
    "Data.hidden": _CARRIED,
    "Data.examples": _same(YES, checks.examples, flow=REFUSED, note="rLLM's own rows carry none"),
    **_rows("RowSplit", _OPTION, "share seed"),
    **_rows("Examples", _same(YES, checks.examples, flow=REFUSED), "count sees by seed"),
    **_rows("ModelRef", _same(SOME, checks.model, flow=ELSEWHERE, note="a model to train"), "provider name"),
    "ModelRef.base_url": KeyRow(
        YES, REFUSED, YES, ELSEWHERE, ELSEWHERE, (checks.base_url,), "verl loads the model itself"
    ),
    "ModelRef.checkpoint": _same(REFUSED, checks.checkpoint, note="a training begins at the model itself"),
    "ModelRef.concurrency": _same(ELSEWHERE, flow=YES, note="n_parallel_tasks bounds rLLM's engine"),
    **_rows("ModelRef", _CARRIED, "replay_any escape_markers body bf16"),
    "ModelRef.price": _DOLLARS,
    **_rows("Price", _DOLLARS, "prompt response train"),
    "Sampling.temperature": KeyRow(
        *(SOME, SOME, SOME, SOME, SOME),
        (checks.temperature,),
        "a number; 1 of trained roles on a service; one for all trained roles on verl; a flow has the run's",
    ),
    "Sampling.top_p": KeyRow(SOME, YES, SOME, YES, SOME, (checks.top_p,), "as the temperature"),
    "Sampling.max_tokens": KeyRow(
        *(YES, YES, NO_EFFECT, YES, SOME),
        (checks.max_tokens,),
        "each role's own; fireworks has the longest for all; a flow has the run's",
    ),
    "Sampling.stop": KeyRow(
        *(REFUSED, YES, REFUSED, YES, REFUSED),
        (checks.need_of("stop"),),
        "not on a service",
    ),
    "Sampling.seed": KeyRow(
        *(NO_EFFECT, YES, NO_EFFECT, YES, NO_EFFECT),
        (checks.need_of("seed"),),
        "not to a service",
    ),
    "Policy.model": _same(REFUSED, checks.policies, note="rLLM has one engine"),
    "Policy.checkpoint": _same(REFUSED, checks.checkpoint, note="a training begins at the model itself"),
    **_rows("Policy", _BY_ITS_KEYS, "lora sampling"),
    "Policy.learning_rate": _YOURS,
    **_rows("Policy", _PAST, "of every keep pick"),
    "Lora.rank": _YOURS,
    **_rows("Lora", _LAYERS, "attention mlp unembed"),
    **_rows(
        "Role",
        _CARRIED,
        "count needs when sees prompt run callable system examples memory parser tools max_calls credit",
    ),
    **_rows(
        "Role",
        _same(SOME, checks.rewards, note="no likelihood, step or `normalize: term`"),
        "reward right",
    ),
    "Role.group": _same(SOME, checks.groupings, note="one; `turn` and `prompt` by the hook"),
    "Role.estimator": _same(
        SOME,
        checks.estimators,
        checks.frozen,
        checks.trained_otherwise,
        note="all but `ema`; without one, a model of its own or the newest weights; a flow has the run's; "
        "with staleness those that see one task",
    ),
    "Role.signal": KeyRow(
        *(SOME, REFUSED, REFUSED, SOME, REFUSED),
        (checks.signals, checks.estimators),
        "in place of an estimator, one advantage for each token",
    ),
    "Role.loss": KeyRow(
        *(SOME, SOME, REFUSED, SOME, SOME),
        (checks.losses, checks.trained_otherwise),
        "tinker takes ppo, importance_sampling, cispo, dro without settings; verl ppo",
    ),
    "Role.model": _same(SOME, checks.own_models, note="of roles that are not trained"),
    "Role.policy": _same(SOME, checks.policies, note="`main`"),
    "Role.weight": KeyRow(
        *(SOME, SOME, SOME, SOME, REFUSED),
        (checks.numbers, checks.trained_otherwise),
        "a number, by which the advantages are multiplied",
    ),
    **_rows("Role", _BY_ITS_KEYS, "sampling on_failure"),
    "Role.timeout": _same(YES, checks.repeated_calls, flow=REFUSED, note="a flow's answers are counted"),
    **_rows("Edge", _CARRIED, "of join chunks round"),
    **_rows("CallSignature", _CARRIED, "describe arguments"),
    **_rows("Memory", _CARRIED, "chat fork reset"),
    "Grouping.by": _same(SOME, checks.groupings, note="task, turn, prompt"),
    "Grouping.over": _same(REFUSED, checks.groupings, note="rLLM groups by task and role"),
    "Grouping.weight": _LISTS,
    "Grouping.credit": _CARRIED,
    "OnFailure.retry": _same(YES, checks.repeated_calls, flow=REFUSED, note="a flow's answers are counted"),
    "OnFailure.then": KeyRow(
        *(HOOK, HOOK, HOOK, HOOK, SOME), (checks.trained_otherwise,), "`mask` by the hook, which a flow lacks"
    ),
    "OnFailure.reward": _CARRIED,
    **_rows("Loop", _CARRIED, "roles times until when env players"),
    **_rows("EpisodeSpec", _CARRIED, "correct metrics"),
    "Train.rollouts": _same(SOME, checks.group_sizes, flow=ELSEWHERE, note="rLLM drops groups of one"),
    "Train.batch_size": _same(SOME, checks.data, flow=ELSEWHERE, note="no more than the tasks"),
    **_rows("Train", _NO_COUNTERPART, "refill stop keep sample_from"),
    **_rows("Train", _OPTION, "steps epochs checkpoint_every"),
    "Train.stages": _NO_STEP,
    "Train.learning_rate": _YOURS,
    "Train.lora": _YOURS,
    **_rows("Train", _OPTION, "schedule validation"),
    "Train.gradient_clip": KeyRow(
        *(NO_EFFECT, YES, SOME, ELSEWHERE, ELSEWHERE), (checks.gradient_clip,), "tinker clips nothing"
    ),
    "Train.staleness": KeyRow(
        *(SOME, SOME, REFUSED, SOME, ELSEWHERE),
        (checks.staleness, checks.estimators),
        "where no role needs the grouping hook",
    ),
    **_rows("Stage", _NO_STEP, "imitation steps rollouts learning_rate"),
    "Schedule.kind": KeyRow(YES, SOME, YES, YES, ELSEWHERE, (checks.schedule,), "verl has no linear"),
    "Schedule.warmup": _OPTION,
    "Schedule.floor": KeyRow(NO_EFFECT, SOME, NO_EFFECT, YES, ELSEWHERE, (checks.floor,), "verl with cosine"),
    **_rows("Validation", _OPTION, "every tasks rollouts"),
    "Validation.workflow": _NO_COUNTERPART,
    "Validation.best": _same(NO_EFFECT, checks.best, note="rLLM keeps no best checkpoint"),
    **_rows("Keep", _NO_COUNTERPART, "checkpoints episodes"),
}
"""Support of every key of the language, by model and key."""


def checks_of(column: Column) -> list[Check]:
    """Return the checks of all spec keys for an rLLM backend, without duplicates, in the order of `TABLE`."""
    rows = (row for row in TABLE.values() if getattr(row, column) not in _UNCHECKED)
    return list(dict.fromkeys(check for row in rows for check in row.checks))


def findings(
    plan: Plan,
    backend: Backend,
    overrides: Sequence[str] = (),
    known_keys: Collection[str] | None = None,
) -> Iterator[Finding]:
    """Yield everything in a plan and in rLLM's overrides that the backend cannot carry or would ignore.

    Args:
        plan: The compiled spec.
        backend: Name of the backend; `custom` for a class of the user's.
        overrides: Overrides of rLLM's config from the command line.
        known_keys: Keys of the installed rLLM's config; None to skip the check of keys added with `+`.
    """
    yield from _found(CheckTarget(plan, TRAITS[backend], overrides), backend)
    yield from elsewhere(plan, backend)
    if plan.asking:
        smallest_role = min(plan.trained.values(), key=lambda role: role.count, default=None)
        yield from override_findings(overrides, TRAITS[backend], smallest_role, known_keys)


def flow_findings(plan: Plan, flow: FlowRun) -> Iterator[Finding]:
    """Yield everything in a plan that a run with its AgentFlow would not carry.

    Args:
        plan: The compiled spec.
        flow: Settings of the run; its backend is assumed to be tinker, the backend of `rllm train`.
    """
    return _found(CheckTarget(plan, TRAITS["tinker"], flow=flow), "flow")


def refuse(plan: Plan, backend: Backend = "custom", flow: FlowRun | None = None) -> None:
    """Raise UsageError if a run with the user's own config would not train all of a plan as the spec says.

    Args:
        plan: The compiled spec.
        backend: Name of the backend; `custom` refuses only parts that every backend refuses.
        flow: Run with an AgentFlow; None for a run with the compiled Workflow.
    """
    target = CheckTarget(plan, TRAITS[backend], flow=flow)
    flow_checks = {*checks_of("flow")}
    if not plan.trained:
        flow_checks.remove(checks.roles)  # a workflow that trains nothing may still be run
    results = (finding for check in checks_of(backend) if check in flow_checks for finding in check(target))
    check_faults(plan, results if plan.asking else ())


def check_faults(plan: Plan, results: Iterable[Finding]) -> None:
    """Raise UsageError with the errors among findings, one per line; do nothing without errors."""
    errors = [it for it in dict.fromkeys(results) if it.severity == "error"]
    if errors:
        lines = [
            f"{'.'.join(map(str, it.path))}: {'; '.join(filter(None, (it.message, it.expected, it.hint)))}"
            for it in errors
        ]
        raise UsageError("\n".join([f"rLLM cannot train {plan.name} as it is written:", *lines]))


def _found(target: CheckTarget, column: Column) -> Iterator[Finding]:
    column_checks = checks_of(column) if target.plan.asking else ()
    yield from dict.fromkeys(finding for check in column_checks for finding in check(target))


def elsewhere(plan: Plan, column: Column) -> list[Finding]:
    """Return a warning for each key of `train` that the spec sets although the run has its own setting for
    it."""
    set_keys = plan.spec.train.model_fields_set
    runner = "rllm train" if column == "flow" else "a backend of your own"
    return [
        Finding(
            ("train", key), f"{runner} takes this from its own settings", hint="remove it", severity="warning"
        )
        for key in type(plan.spec.train).model_fields
        if key in set_keys and getattr(TABLE[f"Train.{key}"], column) is ELSEWHERE
    ]


HEADS = {name: name for name in BACKENDS} | {"custom": "your own", "flow": "`rllm train`"}


def markdown() -> str:
    """Return the table of docs/rllm.md: the rows that differ from `yes`, with equal rows of a model
    joined."""
    keys_by_row: dict[tuple[str, KeyRow], list[str]] = {}
    for name, row in TABLE.items():
        if any(getattr(row, column) is not YES for column in HEADS):
            model, _, key = name.partition(".")
            keys_by_row.setdefault((model, row), []).append(key)
    lines = [f"| key | {' | '.join(HEADS.values())} | |", "| --- " * (len(HEADS) + 2) + "|"]
    for (model, row), keys in keys_by_row.items():
        cells = " | ".join(getattr(row, column) for column in HEADS)
        lines.append(f"| {model}: {', '.join(f'`{key}`' for key in keys)} | {cells} | {row.note} |")
    return "\n".join([*lines, ""])
