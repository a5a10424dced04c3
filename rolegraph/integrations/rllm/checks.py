"""Checks of a plan for rLLM, each for the keys whose rows in `keys` name the check.

Pure: a plan, a backend and overrides go in, findings come out, each with its place in the spec and a fix. An
error marks a run that would train wrongly, fail to train, or stop after the rollouts; a warning marks an
option without effect. Each check was read in rLLM at the commit that the group `rllm` pins; paths in comments
are below `rllm/`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from rolegraph.engine.compile import Plan, RolePlan
from rolegraph.engine.compile.trainable import drawn, policy_findings, sampling_findings
from rolegraph.engine.models.service_traits import unmet_needs
from rolegraph.engine.records import MAIN, Extent
from rolegraph.engine.run.prepared import is_policy
from rolegraph.engine.spec import Finding, ModelRef, Path
from rolegraph.engine.spec.train import Keep
from rolegraph.integrations.rllm.backends import BackendTraits
from rolegraph.integrations.rllm.config import folder_of, renderer
from rolegraph.integrations.rllm.estimators import (
    KNOWN_ESTIMATORS,
    default_loss,
    hook_reasons,
    is_batch_wide,
)
from rolegraph.integrations.rllm.override_checks import ROLLOUTS, ConfigOverride, single_member

WITHOUT_RLLM = "train without --trainer rllm"
UNNAMED = "default_traj_name"
"""Name by which rLLM marks an unnamed trajectory (types.py); rLLM replaces this name."""


@dataclass(frozen=True, slots=True)
class FlowRun:
    """Settings of a run of rLLM with an AgentFlow and without `agent_trainer`."""

    algorithm: Mapping[str, object] = field(default_factory=dict[str, object])
    """Keys of the run's section `rllm.algorithm`; rLLM's defaults apply to missing keys."""
    sampling: Mapping[str, object] = field(default_factory=dict[str, object])
    """Sampling settings that the run's gateway puts into every call."""
    is_ours: bool = False
    """True for a run of `agent_trainer`, which has the spec's estimators and the grouping hook."""


PLAIN_RUN = FlowRun()
"""Run with rLLM's defaults."""


@dataclass(frozen=True, slots=True)
class CheckTarget:
    """A plan, and the run of rLLM for which it is checked."""

    plan: Plan
    traits: BackendTraits
    overrides: Sequence[str] = ()
    """Overrides of rLLM's config from the command line."""
    flow: FlowRun | None = None
    """Run with an AgentFlow; None for a run with the compiled Workflow."""


Check = Callable[[CheckTarget], Iterator[Finding]]


def roles(target: CheckTarget) -> Iterator[Finding]:
    """Yield a finding for plans that train no role, and role names that rLLM replaces."""
    yield from (finding for finding in policy_findings(target.plan) if finding.path == ("roles",))
    if any(role.name == UNNAMED for role in target.plan.asking):
        # trainer/algorithms/transform.py.
        message = f"rLLM renames trajectories called {UNNAMED}"
        yield Finding(("roles", UNNAMED), message, "another name", at_key=True)


def policies(target: CheckTarget) -> Iterator[Finding]:
    """Yield a finding for policies that rLLM cannot train: a second policy, and past copies of a policy."""
    plan = target.plan
    for name in plan.policies:
        if name != MAIN:
            # engine/unified_workflow_engine.py has one rollout engine, and a trainer backend one policy.
            message = f"rLLM has one engine, for the spec's `model`, and cannot train {name} beside it"
            hint = f"let its roles share `main`, or {WITHOUT_RLLM}"
            yield Finding(("policies", name), message, "one policy", hint, at_key=True)
    for name in plan.past:
        # engine/unified_workflow_engine.py: the rollout engine has the newest weights, and no others.
        message = f"rLLM samples from the newest weights alone, and {name} are past selves"
        yield Finding(("policies", name), message, "", WITHOUT_RLLM, at_key=True)


def checkpoint(target: CheckTarget) -> Iterator[Finding]:
    """Yield a finding for a training that starts from a checkpoint."""
    plan = target.plan
    if MAIN in plan.policies and plan.policies[MAIN].model.checkpoint is not None:
        policy = plan.spec.policies.get(MAIN)
        path = ("policies", MAIN) if policy is not None and policy.checkpoint is not None else ("model",)
        message = "rLLM's training begins at the model itself"
        yield Finding((*path, "checkpoint"), message, "", "leave `checkpoint` out, or continue with --resume")


def stages(target: CheckTarget) -> Iterator[Finding]:
    """Yield a finding for stages of imitation."""
    if target.plan.stages:
        message = "rLLM tells a workflow no step, so it has no stages of imitation"
        yield Finding(("train", "stages"), message, "", f"remove them, or {WITHOUT_RLLM}", at_key=True)


def numbers(target: CheckTarget) -> Iterator[Finding]:
    """Yield a finding for numbers that change with the training step, because rLLM passes no step to a
    workflow.
    """
    plan = target.plan
    for path in plan.numbers.by_path if plan.numbers else ():
        message = "rLLM tells a workflow no step, so no number can follow it"
        yield Finding(path, message, "a number", f"or {WITHOUT_RLLM}")


def model(target: CheckTarget) -> Iterator[Finding]:
    """Yield a finding for models that the backend cannot train, or cannot train with the settings of the
    config.
    """
    plan, traits, overrides = target.plan, target.traits, target.overrides
    yield from (finding for finding in policy_findings(plan) if finding.path[0] in ("policies", "model"))
    ref = plan.spec.model
    if not ref.is_trainable:
        return
    if ref.provider == "tinker" and not ref.name:
        yield Finding(("model",), "rLLM needs the model's name", "tinker:NAME")
    folder = folder_of(ref)
    if folder is not None and traits.name != "fireworks" and not (folder / "config.json").is_file():
        message = f"there is no model folder {folder}"
        if folder.is_dir():
            message = f"{folder} is not a Hugging Face model folder: it has no config.json"
        # Ray's machines may have a folder that this machine does not have.
        yield Finding(("model",), message, severity="warning" if traits.name == "verl" else "error")
    if traits.name == "verl" and folder is None and not _overridden("max_prompt_length", overrides):
        # trainer/config/rllm/base.yaml: its 2,048 replace verl's own limit, too.
        message = "rLLM refuses prompts of more than 2,048 tokens, whatever the model's context is"
        yield Finding(("model",), message, hint="rllm.data.max_prompt_length=N", severity="warning")
    if traits.name == "fireworks" and ref.provider == "local":
        hint = "--model tinker:accounts/fireworks/models/NAME"
        yield Finding(("model",), "fireworks trains the models that it hosts, not a folder", "", hint)
    elif traits.name == "fireworks" and not _overridden("tokenizer_model", overrides):
        # trainer/config/rllm/backend/fireworks.yaml: they default to those of one small Qwen.
        message = "fireworks reads the tokenizer and the training shape from other keys"
        hint = "++model.tokenizer_model=… ++fireworks_config.policy_trainer_shape_id=…"
        yield Finding(("model",), message, hint=hint, severity="warning")
    if traits.name == "tinker" and ref.provider == "local":
        # engine/rollout/tinker_engine.py: the cookbook goes by a public model's name.
        if renderer(ref) is None and not _overridden("renderer_name", overrides):
            hint = "++rollout_engine.renderer_name=NAME, such as qwen3_instruct, role_colon, llama3"
            yield Finding(("model",), "rLLM cannot tell which chat template a folder's model has", "", hint)
        path = str(folder).lower()
        if "vl" in path or "vision" in path:
            # trainer/tinker/tinker_backend.py, init_rollout_engine: looks for the letters anywhere.
            message = f"rLLM takes {path} for a vision model, by its 'vl' or 'vision'"
            yield Finding(("model",), message, "", "give the folder a name and a path without them")


def _overridden(key: str, overrides: Sequence[str]) -> bool:
    return any(f"{key}=" in override for override in overrides)


def base_url(target: CheckTarget) -> Iterator[Finding]:
    """Yield a finding for the URL of an endpoint that the backend does not call."""
    traits = target.traits
    if target.plan.spec.model.base_url is None:
        return
    if traits.name == "verl":
        message = f"{traits.name} loads the model itself, and calls no endpoint"
        yield Finding(("model", "base_url"), message, "", "remove it, or use the backend tinker")


def price(target: CheckTarget) -> Iterator[Finding]:
    """Yield a finding for prices of a model, which rLLM's trainer does not count."""
    if target.plan.spec.model.price is not None:
        yield _idle(("model", "price"), "rLLM counts no dollars")


def own_models(target: CheckTarget) -> Iterator[Finding]:
    """Yield a finding for models of single roles that rLLM cannot train or reach."""
    plan = target.plan
    yield from (fault for fault in policy_findings(plan) if fault.path[0] == "roles" and len(fault.path) > 1)
    for role in plan.asking if target.traits.name == "verl" else ():
        if not role.spec.is_trained and any(ref.served_here for ref in _models_of(plan, role)):
            message = f"the model of {role.name} would be served here, and called from wherever Ray runs"
            expected = "a model with a base_url that all machines reach"
            yield Finding(("roles", role.name, "model"), message, expected)


def frozen(target: CheckTarget) -> Iterator[Finding]:
    """Yield a finding for untrained roles for which the policy's newest weights would answer all the same."""
    plan = target.plan
    for role in plan.asking:
        role_spec = plan.spec.roles[role.name]
        if not role.spec.is_trained and not _models_of(plan, role) and role_spec.policy is None:
            # engine/unified_workflow_engine.py: the one rollout engine has the newest weights, and no others.
            message = f"under rLLM {role.name} answers with the policy's newest weights, not the model's own"
            hint = "give it a `model` of its own to keep its weights"
            yield Finding(("roles", role.name), message, hint=hint, severity="warning", at_key=True)


def _models_of(plan: Plan, role: RolePlan) -> Sequence[ModelRef]:
    """Return the models of a role, without the trained policy."""
    return [endpoint.model for endpoint in plan.endpoints_of(role) if not is_policy(plan, endpoint)]


def rewards(target: CheckTarget) -> Iterator[Finding]:
    """Yield a finding for rewards that read a likelihood or the step, and rewards whose terms are compared
    separately.
    """
    for role in target.plan.roles:
        path = ("roles", role.name, "reward")
        if role.likelihoods:
            # engine/rollout/*.py: an engine answers messages, and scores no given tokens.
            message = (
                f"the reward of {role.name} reads a likelihood, and rLLM's engines score no given tokens"
            )
            yield Finding(path, message, "another reward", f"or {WITHOUT_RLLM}")
        if role.compares_terms:
            # trainer/algorithms/advantage.py: an estimator gets the trajectories' rewards.
            message = f"rLLM compares the rewards of {role.name}, and not their terms"
            yield Finding((*path, "normalize"), message, "", f"remove `normalize`, or {WITHOUT_RLLM}")
        if any("step" in formula.mentions for formula in role.formulas.values()):
            message = f"the reward of {role.name} reads `step`, and rLLM tells a workflow no step"
            yield Finding(path, message, "", WITHOUT_RLLM)


def signals(target: CheckTarget) -> Iterator[Finding]:
    """Yield a finding for signals that rLLM cannot train on."""
    for role in target.plan.trained.values():
        path = ("roles", role.name, "signal")
        if (fault := _signal_fault(role)) is not None:
            yield Finding(path, *fault)
        elif role.signal is not None and target.flow is not None:
            message = f"rLLM's gateway carries no advantages, which the signal of {role.name} sets"
            yield Finding(path, message, "", "use the compiled Workflow")


def _signal_fault(role: RolePlan) -> tuple[str, str, str] | None:
    """Return (message, expected, hint) for a signal that rLLM cannot train on; None if rLLM can, or without a
    signal."""
    if role.signal is None:
        return None
    if role.signal.demonstration is not None:
        # trainer/tinker/transform.py: a datum has the sampled tokens, and no weights for cross_entropy.
        message = f"{role.name} imitates turns that it did not sample, which rLLM's workflow cannot train"
        return message, "", f"use reverse_kl, or {WITHOUT_RLLM}"
    if role.adds_signal:
        # trainer/algorithms/advantage.py: a trajectory's steps carry advantages, or its estimator sets them.
        message = f"rLLM adds no signal to the advantages that {role.name}'s estimator computes"
        return message, "", f"remove the estimator, or {WITHOUT_RLLM}"
    if role.signal.gate is not None or any(
        it.prompt or it.system or (it.model is None and not it.is_start) for it in role.signal.all_teachers
    ):
        # workflows/workflow.py: a trajectory's advantages are set before the trainer's chat format is known.
        message = f"rLLM asks {role.name}'s teacher after the role's own prompt, without a gate"
        return message, "a model or base, alone", f"or {WITHOUT_RLLM}"
    if role.signal.signal.center:
        # workflows/workflow.py: an episode is handed over before the others of its step have ended.
        message = f"the mean of {role.name}'s signal is over a whole step, and rLLM takes each episode alone"
        return message, "center: false", f"or {WITHOUT_RLLM}"
    return None


def losses(target: CheckTarget) -> Iterator[Finding]:
    """Yield a finding for losses of roles that rLLM or this backend cannot compute, or sets only for all
    roles together.
    """
    for role in target.plan.trained.values():
        if _signal_fault(role) is None:
            yield from _loss(role, target.traits)


def _loss(plan: RolePlan, traits: BackendTraits) -> Iterator[Finding]:
    """Yield a finding for a role's loss that rLLM or this backend cannot compute, or sets only for all roles
    together.
    """
    role, loss, call = plan.name, plan.loss, plan.spec.loss
    path = ("roles", role, "loss")
    if call is None and loss.name != "cross_entropy":
        return
    if loss.compute is not None:
        message = f"rLLM cannot compute {loss.name}, a loss over the sequences of a step"
        yield Finding(path, message, "a loss of the backend, such as ppo", f"or {WITHOUT_RLLM}")
    elif loss.name == "cross_entropy":
        message = f"{role} learns from its own samples, for which rLLM gives cross_entropy no weights"
        hint = "or leave `loss` out" if call else f"as `loss`, another estimator, or {WITHOUT_RLLM}"
        yield Finding(path, message, "ppo or importance_sampling", hint)
    elif traits.role_losses is not None and not traits.role_losses:
        hint = "remove it, and set rllm.algorithm.loss_fn for all roles"
        yield Finding(path, f"{traits.name} has one loss for all roles", "", hint)
    elif call and (call.value or call.options):
        # tinker_policy_trainer.py sends no loss_fn_config; verl's own settings have other names.
        message = f"rLLM passes no settings of a role's loss to {traits.name}"
        yield Finding(path, message, loss.name, f"leave them out, or {WITHOUT_RLLM}")
    elif traits.role_losses is not None and loss.name not in traits.role_losses:
        message = f"{traits.name} has no {loss.name} for a role, and falls back to {traits.fallback_loss}"
        yield Finding(path, message, ", ".join(sorted(traits.role_losses)), f"or {WITHOUT_RLLM}")


def group_sizes(target: CheckTarget) -> Iterator[Finding]:
    """Yield a finding for roles with groups of one member, which rLLM drops, unless an override sets the
    group size.
    """
    plan = target.plan
    values = {override.key: override.value for override in map(ConfigOverride, target.overrides)}
    if values.get("rllm.rejection_sample.min_trajs_per_group") == 1 or values.keys() & ROLLOUTS:
        return
    for role in plan.trained.values():
        if role.count * plan.spec.train.rollouts < 2:
            message, expected, hint = single_member(role.name)
            yield Finding(("roles", role.name), message, expected, hint, at_key=True)


def groupings(target: CheckTarget) -> Iterator[Finding]:
    """Yield a finding for groupings that rLLM cannot express, because it groups by task and role."""
    for role in target.plan.trained.values():
        path, grouping = ("roles", role.name, "group"), role.groupings[0]
        if len(role.groupings) > 1:
            # trainer/algorithms/transform.py: a trajectory is in one group, which sets its advantage.
            message = (
                f"rLLM has one group for each trajectory, and {role.name} adds the advantages of several"
            )
            yield Finding(path, message, "task, turn or prompt", f"or {WITHOUT_RLLM}")
        elif grouping.over is not Extent.TASK:
            message = f"rLLM groups by task and role, and cannot compare {role.name} over the {grouping.over}"
            yield Finding(path, message, "over: task", f"or {WITHOUT_RLLM}")
        elif grouping.key is not None or grouping.by == "episode":
            message = f"rLLM groups by task and role, and cannot group {role.name} by {grouping.by}"
            yield Finding(path, message, "task, turn or prompt", f"or {WITHOUT_RLLM}")


def estimators(target: CheckTarget) -> Iterator[Finding]:
    """Yield a finding for estimators that need a state, token advantages or a whole batch that rLLM does not
    give them.
    """
    plan, traits = target.plan, target.traits
    for role in plan.trained.values():
        path, estimator = ("roles", role.name, "estimator"), role.estimator
        if estimator is not None and estimator.running is not None:
            # No checkpoint of rLLM has a place for the state of an estimator.
            message = f"rLLM keeps no state of an estimator between steps, as {estimator.name} needs"
            yield Finding(path, message, "an estimator without one", f"or {WITHOUT_RLLM}")
        elif not role.compares_rewards and traits.name in ("verl", "fireworks"):
            # trainer/verl/transform.py, update_dataproto_with_advantages: float(advantage) of a list raises.
            # trainer/fireworks/fireworks_policy_trainer.py, _process_datums: all tokens count as the first.
            message = f"{traits.name} has one advantage for a trajectory, and {role.name}'s differ by token"
            yield Finding(path, message, "an estimator", "or use the backend tinker")
        elif estimator is not None and plan.spec.train.staleness and is_batch_wide(role):
            # trainer/buffer.py computes advantages as each task's rollouts come in.
            batch_fault = f"{estimator.name} may compare the whole batch"
            message = f"{batch_fault}, but rLLM's asynchronous loop passes it one task"
            yield Finding(path, message, "train.staleness: 0", "or use grpo or rloo")


def staleness(target: CheckTarget) -> Iterator[Finding]:
    """Yield a finding for roles that need the grouping hook in a training with staleness."""
    if target.plan.spec.train.staleness:
        for name, reason in hook_reasons(target.plan, target.traits.name).items():
            # trainer/buffer.py groups without the hook: only the synchronous loop has it.
            message = f"{name} {reason}, which needs the grouping hook that rLLM's asynchronous loop ignores"
            yield Finding(("train", "staleness"), message, "0", f"or {WITHOUT_RLLM}")


def temperature(target: CheckTarget) -> Iterator[Finding]:
    """Yield a finding for temperatures at which the backend would train on another distribution than it
    samples.
    """
    plan, traits = target.plan, target.traits
    yield from numbers(target)
    if traits.is_service:
        yield from (finding for finding in sampling_findings(plan) if finding.path[-1] == "temperature")
    first = next(iter(plan.trained.values()), plan.asking[0])
    for role in plan.trained.values() if traits.name == "verl" else ():
        if any(
            finding.temperature != first.samplings[0].temperature
            for finding in drawn(plan, role, "temperature").values()
        ):
            # trainer/verl/utils.py: actor_rollout_ref.rollout.temperature also scales the trainer's logits.
            message = f"verl trains all roles at one temperature, and {role.name}'s is not {first.name}'s"
            expected = f"temperature: {first.samplings[0].temperature:g}"
            yield Finding(("roles", role.name, "sampling"), message, expected, at_key=True)
    yield from _overwritten(target, "temperature")


def top_p(target: CheckTarget) -> Iterator[Finding]:
    """Yield a finding for nucleus sampling in roles that a service trains."""
    if target.traits.is_service:
        yield from (finding for finding in sampling_findings(target.plan) if finding.path[-1] == "top_p")
    yield from _overwritten(target, "top_p")


def max_tokens(target: CheckTarget) -> Iterator[Finding]:
    """Yield a finding for roles with a lower token limit than others, if the backend has one limit for
    all.
    """
    plan, traits = target.plan, target.traits
    most_tokens = max(role.max_tokens for role in plan.asking)
    for role in plan.asking if traits.name == "fireworks" else ():
        for path, sampling in drawn(plan, role, "max_tokens").items():
            if sampling.max_tokens < most_tokens:
                # engine/rollout/fireworks_engine.py: rllm.rollout.*.max_tokens goes before the call's own.
                message = (
                    f"fireworks has one limit for all roles: {role.name} may answer with {most_tokens} tokens"
                )
                yield Finding(path, message, f"{most_tokens}", severity="warning")
    yield from _overwritten(target, "max_tokens")


def _overwritten(target: CheckTarget, key: str) -> Iterator[Finding]:
    """Yield a finding for values of sampling setting `key` that the gateway of an AgentFlow replaces by the
    run's value.
    """
    plan, enforced_value = target.plan, target.flow and target.flow.sampling.get(key)
    for role in plan.asking if enforced_value is not None else ():
        if not any(is_policy(plan, endpoint) for endpoint in plan.endpoints_of(role)):
            continue
        for path, sampling in drawn(plan, role, key).items():
            value = getattr(sampling, key)
            if key in sampling.model_fields_set and value != enforced_value:
                # rllm-model-gateway, middleware.py, _mutate: what the session has goes before the call's own.
                message = f"rLLM's gateway replaces {role.name}'s {key}, {value:g}, by {enforced_value}"
                null = f"rllm: {{rollout: {{train: {{{key}: null}}, val: {{{key}: null}}}}}}"
                hint = f"--{key.replace('_', '-')} {value:g}, or in --config, for each role its own: {null}"
                yield Finding(path, message, f"{enforced_value}", hint)


def need_of(key: str) -> Check:
    """Return the check that reports the entries of `unmet_needs` for a key of the spec."""

    def check(target: CheckTarget) -> Iterator[Finding]:
        traits = target.traits
        for need in unmet_needs(target.plan, traits.service):
            if need.path[-1] == key:
                hint = f"{need.hint}, or {WITHOUT_RLLM}"
                yield replace(need, message=f"{traits.name} {need.message}", hint=hint)

    return check


def gradient_clip(target: CheckTarget) -> Iterator[Finding]:
    """Yield a finding for limits of the gradient's norm that the backend does not have."""
    yield from need_of("gradient_clip")(target)
    if target.plan.spec.train.gradient_clip == 0.0 and target.traits.name == "fireworks":
        message = "fireworks scales gradients down to the norm given, so 0 leaves nothing"
        yield _idle(("train", "gradient_clip"), message)


def without_counterpart(target: CheckTarget) -> Iterator[Finding]:
    """Yield a finding for settings of a training that rLLM's trainer does not have."""
    train = target.plan.spec.train
    options = {
        ("sample_from",): (train.sample_from is not None, "rLLM samples from its own engine"),
        ("keep",): (train.keep != Keep(), "rLLM uses the value of its own config"),
        ("stop",): (train.stop is not None, "rLLM makes all steps"),
        # trainer/unified_trainer.py: a step takes one batch of the data loader.
        ("refill",): (train.refill > 0, "rLLM draws one batch for a step, and no further ones"),
        # trainer/unified_trainer.py: one workflow class trains and validates.
        ("validation", "workflow"): (
            bool(train.validation.workflow),
            "rLLM validates with the workflow that it trains",
        ),
    }
    for key, (is_set, message) in options.items():
        if is_set:
            yield Finding(("train", *key), message, "", f"remove it, or {WITHOUT_RLLM}", at_key=True)


def best(target: CheckTarget) -> Iterator[Finding]:
    """Yield a finding for a setting that chooses the best checkpoint."""
    validation = target.plan.spec.train.validation
    if "best" in validation.model_fields_set and not validation.workflow:
        message = "rLLM keeps the checkpoints of save_freq, and no best one"
        yield _idle(("train", "validation", "best"), message)


def layers(target: CheckTarget) -> Iterator[Finding]:
    """Yield a finding for a choice of adapter layers that the backend does not offer."""
    for layer_part in sorted({"attention", "mlp", "unembed"} & target.plan.spec.train.lora.model_fields_set):
        # Nothing there reads model.train_*.
        yield _idle(("train", "lora", layer_part), f"{target.traits.name} does not choose layers by this")


def schedule(target: CheckTarget) -> Iterator[Finding]:
    """Yield a finding for schedules of the learning rate that the backend does not have."""
    traits, schedule_spec = target.traits, target.plan.spec.train.schedule
    if schedule_spec.kind not in traits.schedules:
        expected = " or ".join(sorted(traits.schedules))
        yield Finding(("train", "schedule"), f"{traits.name} has no {schedule_spec.kind} schedule", expected)


def floor(target: CheckTarget) -> Iterator[Finding]:
    """Yield a finding for a floor of the learning rate if the backend's schedule falls to 0."""
    schedule_spec = target.plan.spec.train.schedule
    if schedule_spec.floor and schedule_spec.kind not in target.traits.schedules_with_floor:
        # tinker_policy_trainer.py, compute_schedule_lr_multiplier, falls to 0; fireworks uses the same.
        yield _idle(("train", "schedule", "floor"), f"rLLM's {schedule_spec.kind} schedule has no floor here")


def data(target: CheckTarget) -> Iterator[Finding]:
    """Yield a finding for trainings without data, task ids that rLLM cuts, and batches larger than the number
    of tasks.
    """
    plan, train = target.plan, target.plan.spec.train
    yield from (finding for finding in policy_findings(plan) if finding.path[0] in ("data", "train"))
    withheld_splits = {permission.path[1] for permission in plan.withheld if permission.path[0] == "data"}
    for split, dataset in plan.data.items():
        if split in withheld_splits:
            continue
        ids = [str(row["id"]) for row in dataset.rows(None if split == "train" else train.validation.tasks)]
        ambiguous_id = next((name for name in ids if ":" in name), None)
        if ambiguous_id is not None:
            # types.py, Episode.task_id: the text before the first colon.
            message = f"the task id {ambiguous_id!r} has a colon, at which rLLM cuts it: groups would merge"
            yield Finding(("data", split), message, "ids without a colon")
        if split == "train" and len(ids) < train.batch_size:
            # trainer/unified_trainer.py, _init_dataloaders: drop_last, and success without one update.
            batch_fault = f"{len(ids)} tasks do not fill a batch of {train.batch_size}"
            message = f"{batch_fault}: rLLM would succeed and train nothing"
            hint = "lower `train.batch_size`, or give more data"
            yield Finding(("train", "batch_size"), message, f"at most {len(ids)}", hint)


def examples(target: CheckTarget) -> Iterator[Finding]:
    """Yield a finding for the key `data.examples`, because rows of rLLM's benchmarks contain no examples."""
    if target.plan.spec.data.examples is not None:
        message = "the rows of rLLM's benchmarks carry no examples"
        yield Finding(("data", "examples"), message, "", f"remove it, or {OWN_RUN}", at_key=True)


def repeated_calls(target: CheckTarget) -> Iterator[Finding]:
    """Yield a finding for roles with retries or a timeout, whose calls the gateway could not match with their
    turns.
    """
    for role in target.plan.asking:
        if not any(is_policy(target.plan, endpoint) for endpoint in target.plan.endpoints_of(role)):
            continue
        keys = {
            ("on_failure", "retry"): role.spec.on_failure.retry,
            ("timeout",): role.spec.timeout is not None,
        }
        for key in (key for key, is_set in keys.items() if is_set):
            message = (
                f"rLLM's gateway matches answers to steps by their number, which a retried or abandoned call "
                f"of {role.name} would shift"
            )
            yield Finding(("roles", role.name, *key), message, "", "remove it, or use the compiled Workflow")


OWN_RUN = (
    "train by `rolegraph train SPEC --trainer rllm`, or pass the flow to "
    "rolegraph.integrations.rllm.agent_trainer"
)


def trained_otherwise(target: CheckTarget) -> Iterator[Finding]:
    """Yield a finding for roles that a run with one estimator and without a grouping hook trains otherwise
    than the spec says.
    """
    plan, flow = target.plan, target.flow
    if flow is None or flow.is_ours:
        return
    run_estimator = str(flow.algorithm.get("adv_estimator", "grpo"))
    std, loss = flow.algorithm.get("norm_adv_by_std_in_grpo", True), flow.algorithm.get("loss_fn")
    if run_estimator not in KNOWN_ESTIMATORS:
        # trainer/algorithms/config.py: another name is OTHER, which is found missing after the rollouts.
        message = f"rLLM has no estimator {run_estimator}, which `rllm.algorithm.adv_estimator` names"
        yield Finding(("roles",), message, ", ".join(sorted(KNOWN_ESTIMATORS)), f"or {OWN_RUN}")
        return
    reasons, prefix = hook_reasons(plan, "tinker"), f"rLLM would train every role by {run_estimator}, but"
    for name, reason in reasons.items():
        yield Finding(("roles", name), f"{prefix} {name} {reason}", "", OWN_RUN, at_key=True)
    for role in plan.trained.values():
        estimator, path = role.estimator, ("roles", role.name)
        if estimator is None or role.name in reasons:
            continue
        if estimator.name != run_estimator:
            message = f"{prefix} {role.name} has the estimator {estimator.name}"
            yield Finding((*path, "estimator"), message, run_estimator, f"or {OWN_RUN}")
        elif run_estimator == "grpo" and estimator.options.get("std", True) != std:
            message = f"{prefix} {role.name} has grpo with another `std`"
            yield Finding(
                (*path, "estimator"), message, f"{{grpo: {{std: {str(std).lower()}}}}}", f"or {OWN_RUN}"
            )
        elif role.loss.name != (loss or default_loss(run_estimator)):
            message = f"{prefix} {role.name} has the loss {role.loss.name}"
            yield Finding((*path, "loss"), message, str(loss or default_loss(run_estimator)), f"or {OWN_RUN}")
        elif role.spec.weight != 1.0:
            message = f"{prefix} {role.name} has the weight {role.spec.weight:g}"
            yield Finding((*path, "weight"), message, "1", f"or {OWN_RUN}")


def _idle(path: Path, message: str) -> Finding:
    """Return a warning at `path` that an option has no effect, with the hint to remove the option."""
    return Finding(path, message, hint="remove it", severity="warning")
