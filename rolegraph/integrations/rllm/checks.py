"""Checks of a plan for one of rLLM's backends, made before anything starts.

Pure: a plan and the overrides for rLLM go in, findings come out, each with its place in the spec and a fix.
An error would train wrongly, not at all, or stop after the rollouts; a warning is an option without effect.
Each check was read in rLLM at the commit that the extra `rllm` pins; paths in comments are below `rllm/`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace

from rolegraph.engine.compile import Plan, RolePlan
from rolegraph.engine.compile.trainable import drawn, policy_findings, sampling_findings
from rolegraph.engine.models.service_traits import unmet_needs
from rolegraph.engine.records import MAIN, Extent
from rolegraph.engine.run.prepared import is_policy
from rolegraph.engine.spec import Finding, Path
from rolegraph.engine.spec.train import Keep
from rolegraph.integrations.rllm.backends import TRAITS, BackendTraits
from rolegraph.integrations.rllm.config import folder_of, renderer
from rolegraph.integrations.rllm.estimators import (
    BATCH_WIDE,
    custom_estimators,
    estimator_name,
    hook_reasons,
    is_precomputed,
)
from rolegraph.integrations.rllm.names import Backend
from rolegraph.integrations.rllm.override_checks import (
    ROLLOUTS,
    ConfigOverride,
    override_findings,
    single_member,
)
from rolegraph.integrations.rllm.prepared import WITHOUT_RLLM, likelihood_fault, signal_fault

UNNAMED = "default_traj_name"
"""Name by which rLLM marks a trajectory without a name (types.py), and replaces it."""


def findings(
    plan: Plan,
    backend: Backend,
    overrides: Sequence[str] = (),
    known_keys: Collection[str] | None = None,
) -> Iterator[Finding]:
    """Yield everything in a plan and in rLLM's overrides that the backend cannot do or would ignore.

    Args:
        plan: The compiled spec.
        backend: Name of the backend, `custom` for a class of the user's.
        overrides: Overrides of rLLM's config from the command line.
        known_keys: Keys of the installed rLLM's config; None leaves keys added with `+` unchecked.
    """
    yield from policy_findings(plan)
    if not plan.asking:
        return
    traits = TRAITS[backend]
    if traits.is_service:  # verl scales the trainer's logits by the temperature: see `_sampling`
        yield from sampling_findings(plan)
    for need in unmet_needs(plan, traits.service):
        yield replace(need, message=f"{traits.name} {need.message}", hint=f"{need.hint}, or {WITHOUT_RLLM}")
    yield from _policies(plan)
    yield from _steps(plan)
    yield from _model(plan, traits, overrides)
    for role in plan.asking:
        yield from _role(plan, role, traits)
    yield from _groups(plan, overrides)
    yield from _estimators(plan, traits)
    yield from _sampling(plan, traits)
    yield from _training(plan, traits)
    yield from _data(plan)
    smallest = min(plan.trained.values(), key=lambda role: role.count, default=None)
    yield from override_findings(overrides, traits, smallest, known_keys)


def _policies(plan: Plan) -> Iterator[Finding]:
    """Find policies that rLLM cannot train: a second policy, past copies, or one from a checkpoint."""
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
    if MAIN in plan.policies and plan.policies[MAIN].model.checkpoint is not None:
        policy = plan.spec.policies.get(MAIN)
        path = ("policies", MAIN) if policy is not None and policy.checkpoint is not None else ("model",)
        message = "rLLM's training begins at the model itself"
        yield Finding((*path, "checkpoint"), message, "", "leave `checkpoint` out, or continue with --resume")


def _steps(plan: Plan) -> Iterator[Finding]:
    """Find numbers and expressions that follow the step of a training, which rLLM tells no workflow."""
    if plan.stages:
        message = "rLLM tells a workflow no step, so it has no stages of imitation"
        yield Finding(("train", "stages"), message, "", f"remove them, or {WITHOUT_RLLM}", at_key=True)
    for path in plan.schedules.by_path if plan.schedules else ():
        message = "rLLM tells a workflow no step, so no number can follow a schedule"
        yield Finding(path, message, "a number", f"or {WITHOUT_RLLM}")
    for role in plan.roles:
        if any("step" in formula.mentions for formula in role.formulas.values()):
            message = f"the reward of {role.name} reads `step`, and rLLM tells a workflow no step"
            yield Finding(("roles", role.name, "reward"), message, "", WITHOUT_RLLM)


def _model(plan: Plan, traits: BackendTraits, overrides: Sequence[str]) -> Iterator[Finding]:
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
    if traits.name == "verl" and ref.base_url is not None:
        message = f"{traits.name} loads the model itself, and calls no endpoint"
        yield Finding(("model", "base_url"), message, "", "remove it, or use the backend tinker")
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


def _role(plan: Plan, role: RolePlan, traits: BackendTraits) -> Iterator[Finding]:
    path, written = ("roles", role.name), plan.spec.roles[role.name]
    if (fault := likelihood_fault(role)) is not None:
        yield Finding((*path, "reward"), *fault)
    own_models = [endpoint.model for endpoint in plan.endpoints_of(role) if not is_policy(plan, endpoint)]
    if role.name == UNNAMED:
        # trainer/algorithms/transform.py.
        yield Finding(path, f"rLLM renames trajectories called {UNNAMED}", "another name", at_key=True)
    if traits.name == "verl" and not role.spec.is_trained and any(model.served_here for model in own_models):
        message = f"the model of {role.name} would be served here, and called from wherever Ray runs"
        yield Finding((*path, "model"), message, "a model with a base_url that all machines reach")
    if not role.spec.is_trained:
        if not own_models and written.policy is None:
            # engine/unified_workflow_engine.py: the one rollout engine has the newest weights, and no others.
            message = f"under rLLM {role.name} answers with the policy's newest weights, not the model's own"
            hint = "give it a `model` of its own to keep its weights"
            yield Finding((*path, "trainable"), message, hint=hint, severity="warning")
        return
    if (fault := signal_fault(role)) is not None:
        yield Finding((*path, "signal"), *fault)
    elif written.loss is not None:
        yield from _loss(role, traits)


def _loss(plan: RolePlan, traits: BackendTraits) -> Iterator[Finding]:
    """Find a loss of a role that rLLM, or this backend, cannot compute or sets only for all roles."""
    role, loss, call = plan.name, plan.loss, plan.spec.loss
    path = ("roles", role, "loss")
    if loss.compute is not None:
        message = f"rLLM cannot compute {loss.name}, a loss over the sequences of a step"
        yield Finding(path, message, "a loss of the backend, such as ppo", f"or {WITHOUT_RLLM}")
    elif loss.name == "cross_entropy":
        message = f"{role} learns from its own samples, for which rLLM gives cross_entropy no weights"
        yield Finding(path, message, "ppo or importance_sampling", "or leave `loss` out")
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


def _groups(plan: Plan, overrides: Sequence[str]) -> Iterator[Finding]:
    """Find roles whose groups have one member, which rLLM drops, unless an override decides the sizes."""
    values = {override.key: override.value for override in map(ConfigOverride, overrides)}
    if values.get("rllm.rejection_sample.min_trajs_per_group") == 1 or values.keys() & ROLLOUTS:
        return
    for role in plan.trained.values():
        if role.count * plan.spec.train.rollouts < 2:
            message, expected, hint = single_member(role.name)
            yield Finding(("roles", role.name), message, expected, hint, at_key=True)


def _groupings(role: RolePlan) -> Iterator[Finding]:
    """Find groupings of a role that rLLM's grouping, by task and role, cannot express."""
    path, first = ("roles", role.name, "group"), role.groupings[0]
    if len(role.groupings) > 1:
        # trainer/algorithms/transform.py: a trajectory is in one group, which sets its advantage.
        message = f"rLLM has one group for each trajectory, and {role.name} adds the advantages of several"
        yield Finding(path, message, "task, turn or prompt", f"or {WITHOUT_RLLM}")
    elif first.over is not Extent.TASK:
        message = f"rLLM groups by task and role, and cannot compare {role.name} over the {first.over}"
        yield Finding(path, message, "over: task", f"or {WITHOUT_RLLM}")
    elif first.key is not None or first.by == "episode":
        message = f"rLLM groups by task and role, and cannot group {role.name} by {first.by}"
        yield Finding(path, message, "task, turn or prompt", f"or {WITHOUT_RLLM}")
    if role.estimator is not None and role.estimator.running is not None:
        # No checkpoint of rLLM has a place for the state of an estimator.
        message = f"rLLM keeps no state of an estimator between steps, as {role.estimator.name} needs"
        yield Finding(
            ("roles", role.name, "estimator"), message, "an estimator without one", f"or {WITHOUT_RLLM}"
        )


def _estimators(plan: Plan, traits: BackendTraits) -> Iterator[Finding]:
    custom = custom_estimators(plan, traits.name)
    for role in plan.trained.values():
        if unknown := [*_groupings(role)]:
            yield from unknown
            continue
        path, name = ("roles", role.name, "estimator"), estimator_name(plan, role)
        if is_precomputed(role) and traits.name in ("verl", "fireworks"):
            # trainer/verl/transform.py, update_dataproto_with_advantages: float(advantage) of a list raises.
            # trainer/fireworks/fireworks_policy_trainer.py, _process_datums: all tokens count as the first.
            message = f"{traits.name} has one advantage for a trajectory, and {role.name}'s differ by token"
            yield Finding(path, message, "an estimator", "or use the backend tinker")
        elif traits.name == "verl" and name in custom:
            message = f"rLLM's trainer on {traits.name} is another process, where {name} is not registered"
            expected = "grpo, reinforce, rloo, reinforce_plus_plus_baseline or prpo"
            if role.estimator and role.estimator.name == "grpo":
                expected = f"the same `std` for all roles, or {expected}"
            yield Finding(path, message, expected, "or use the backend tinker")
        if plan.spec.train.staleness and name in BATCH_WIDE:
            # trainer/buffer.py computes advantages as each task's rollouts come in.
            message = f"{name} compares the whole batch, but rLLM's asynchronous loop passes it one task"
            yield Finding(path, message, "train.staleness: 0", "or use grpo or rloo")
    if plan.spec.train.staleness:
        for name, reason in hook_reasons(plan, traits.name).items():
            # trainer/buffer.py groups without the hook: only the synchronous loop has it.
            message = f"{name} {reason}, which needs the grouping hook that rLLM's asynchronous loop ignores"
            yield Finding(("train", "staleness"), message, "0", f"or {WITHOUT_RLLM}")


def _sampling(plan: Plan, traits: BackendTraits) -> Iterator[Finding]:
    longest = max(sampling.max_tokens for role in plan.asking for sampling in role.samplings)
    first = next(iter(plan.trained.values()), plan.asking[0])
    temperature = first.samplings[0].temperature
    written = [(role, *drawing) for role in plan.asking for drawing in drawn(plan, role).items()]
    for role, path, sampling in written:
        if traits.name == "fireworks" and sampling.max_tokens < longest:
            # engine/rollout/fireworks_engine.py: rllm.rollout.*.max_tokens goes before the call's own.
            message = f"fireworks has one limit for all roles: {role.name} may answer with {longest} tokens"
            yield Finding((*path, "max_tokens"), message, f"{longest}", severity="warning")
        if traits.name == "verl" and role.spec.is_trained and sampling.temperature != temperature:
            # trainer/verl/utils.py: actor_rollout_ref.rollout.temperature also scales the trainer's logits.
            message = f"verl trains all roles at one temperature, and {role.name}'s is not {first.name}'s"
            expected = f"temperature: {temperature:g}"
            yield Finding(("roles", role.name, "sampling"), message, expected, at_key=True)


def _training(plan: Plan, traits: BackendTraits) -> Iterator[Finding]:
    train = plan.spec.train
    options = {
        "sample_from": (train.sample_from is not None, "rLLM samples from its own engine"),
        "keep": (train.keep != Keep(), "rLLM uses the value of its own config"),
        "stop": (train.stop is not None, "rLLM makes all steps"),
    }
    for key, (is_set, message) in options.items():
        if is_set:
            yield Finding(("train", key), message, "", f"remove it, or {WITHOUT_RLLM}", at_key=True)
    clip = ("train", "gradient_clip")
    if train.gradient_clip == 0.0 and traits.name == "fireworks":
        yield _idle(clip, "fireworks scales gradients down to the norm given, so 0 leaves nothing")
    if traits.name in ("verl", "fireworks"):  # nothing there reads model.train_*
        for part in sorted({"attention", "mlp", "unembed"} & train.lora.model_fields_set):
            yield _idle(("train", "lora", part), f"{traits.name} does not choose layers by this")
    schedule = train.schedule.kind
    if schedule not in traits.schedules:
        message, expected = f"{traits.name} has no {schedule} schedule", " or ".join(sorted(traits.schedules))
        yield Finding(("train", "schedule"), message, expected)
    if train.schedule.floor and schedule not in traits.schedules_with_floor:
        # tinker_policy_trainer.py, compute_schedule_lr_multiplier, falls to 0; fireworks uses the same.
        yield _idle(("train", "schedule", "floor"), f"rLLM's {schedule} schedule has no floor here")
    if train.refill:
        # trainer/unified_trainer.py: a step takes one batch of the data loader.
        message = "rLLM draws one batch for a step, and no further ones"
        yield Finding(("train", "refill"), message, "0", f"remove it, or {WITHOUT_RLLM}")
    if train.validation.workflow:
        # trainer/unified_trainer.py: one workflow class trains and validates.
        message = "rLLM validates with the workflow that it trains"
        yield Finding(("train", "validation", "workflow"), message, "", f"remove it, or {WITHOUT_RLLM}")
    elif "best" in train.validation.model_fields_set:
        message = "rLLM keeps the checkpoints of save_freq, and no best one"
        yield _idle(("train", "validation", "best"), message)


def _data(plan: Plan) -> Iterator[Finding]:
    size = plan.spec.train.batch_size
    withheld = {permission.path[1] for permission in plan.withheld if permission.path[0] == "data"}
    for split, dataset in plan.data.items():
        if split in withheld:
            continue
        limit = None if split == "train" else plan.spec.train.validation.tasks
        names = [str(row["id"]) for row in dataset.rows(limit)]
        cut = next((name for name in names if ":" in name), None)
        if cut is not None:
            # types.py, Episode.task_id: the text before the first colon.
            message = f"the task id {cut!r} has a colon, at which rLLM cuts it: groups would merge"
            yield Finding(("data", split), message, "ids without a colon")
        if split == "train" and len(names) < size:
            # trainer/unified_trainer.py, _init_dataloaders: drop_last, and success without one update.
            message = (
                f"{len(names)} tasks do not fill a batch of {size}: rLLM would succeed and train nothing"
            )
            hint = "lower `train.batch_size`, or give more data"
            yield Finding(("train", "batch_size"), message, f"at most {len(names)}", hint)


def _idle(path: Path, message: str) -> Finding:
    """Return a warning at `path` that an option has no effect, with the hint to remove it."""
    return Finding(path, message, hint="remove it", severity="warning")
