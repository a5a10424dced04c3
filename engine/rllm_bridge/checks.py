"""What a backend of rLLM would swallow, misread or die of after the rollouts: found before anything starts.

Pure: a plan and the words for rLLM go in, findings come out, each with its place in the spec and what to do.
Every check says where in rLLM it was read (paths below `rllm/`, at the commit that the extra `rllm` pins).
An error is something that would train wrongly, not at all, or stop; a warning is an option without effect.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rolegraph.engine.backends import Backend
from rolegraph.engine.compile import Plan, RolePlan
from rolegraph.engine.compile.trainable import TRAINED_PROVIDERS, drawn, policy_findings, sampling_findings
from rolegraph.engine.records import MAIN
from rolegraph.engine.rllm_bridge.config import folder_of, model_name, renderer
from rolegraph.engine.rllm_bridge.estimators import (
    BATCH_WIDE,
    custom_estimators,
    estimator_name,
    hook_reasons,
    is_precomputed,
)
from rolegraph.engine.rllm_bridge.prepared import is_rllms
from rolegraph.engine.rllm_bridge.words import (
    LOSSES,
    ROLLOUTS,
    ConfigOverride,
    SmallestGroup,
    alone,
    word_findings,
)
from rolegraph.engine.spec import Finding, Loss, Path

UNNAMED = "default_traj_name"
SERVICES: tuple[Backend, ...] = ("tinker", "fireworks")
"""Backends whose sampler and trainer are a service's, with that service's limits."""


def findings(plan: Plan, backend: Backend, words: Sequence[str] = ()) -> Iterator[Finding]:
    """Everything in a plan, and in the words that go to rLLM with it, that the backend cannot do."""
    yield from policy_findings(plan)
    if not plan.asking:
        return
    if backend in SERVICES:  # verl scales the trainer's logits by the temperature: see `_sampling`
        yield from sampling_findings(plan)
    yield from _policies(plan)
    yield from _model(plan, backend, words)
    for role in plan.asking:
        yield from _role(plan, role, backend)
    yield from _groups(plan, words)
    yield from _estimators(plan, backend)
    yield from _sampling(plan, backend)
    yield from _training(plan, backend)
    yield from _data(plan)
    yield from word_findings(words, backend, smallest(plan))


def smallest(plan: Plan) -> SmallestGroup | None:
    """The trained role with the fewest instances in a rollout; None where nobody is trained."""
    roles = sorted(plan.trained.values(), key=lambda role: role.count)
    return SmallestGroup(roles[0].name, roles[0].count) if roles else None


def _policies(plan: Plan) -> Iterator[Finding]:
    """A policy other than the spec's model, and one that begins elsewhere."""
    for name in plan.policies:
        if name != MAIN:
            # engine/unified_workflow_engine.py has one rollout engine, and a trainer backend one policy.
            message = f"rLLM has one engine, for the spec's `model`, and cannot train {name} beside it"
            hint = "let its roles share `main`, or train without --trainer rllm"
            yield Finding(("policies", name), message, "one policy", hint, at_key=True)
    if MAIN in plan.policies and plan.policies[MAIN].model.checkpoint is not None:
        own = plan.spec.policies.get(MAIN)
        at = ("policies", MAIN) if own is not None and own.checkpoint is not None else ("model",)
        message = "rLLM's training begins at the model itself"
        yield Finding((*at, "checkpoint"), message, "", "leave `checkpoint` out, or go on with --resume")


def _model(plan: Plan, backend: Backend, words: Sequence[str]) -> Iterator[Finding]:
    ref = plan.spec.model
    if ref.provider not in TRAINED_PROVIDERS:
        return
    if ref.provider == "tinker" and not ref.name:
        yield Finding(("model",), "rLLM needs the model's name", "tinker:NAME")
    folder = folder_of(ref)
    if folder is not None and backend != "fireworks" and not (folder / "config.json").is_file():
        what = f"there is no model folder {folder}"
        if folder.is_dir():
            what = f"{folder} is not a Hugging Face model folder: it has no config.json"
        # Ray's machines may have what this one has not.
        yield Finding(("model",), what, severity="warning" if backend == "verl" else "error")
    if backend == "verl" and folder is None and not any("max_prompt_length=" in word for word in words):
        # trainer/config/rllm/base.yaml: its 2,048 take the place of verl's own limit, too.
        hint = "rllm.data.max_prompt_length=N"
        message = "rLLM gives no answer to prompts of more than 2,048 tokens, whatever the model takes"
        yield Finding(("model",), message, hint=hint, severity="warning")
    if backend == "verl" and ref.base_url is not None:
        # verl starts its own inference servers (trainer/verl/verl_backend.py, init_rollout_engine).
        message = "verl loads the model itself, and asks no endpoint"
        yield Finding(("model", "base_url"), message, "", "remove it, or use the backend tinker")
    if backend == "fireworks" and ref.provider == "local":
        # fireworks.yaml: model.name and the training shape name what Fireworks hosts.
        hint = "--model tinker:accounts/fireworks/models/NAME"
        yield Finding(("model",), "fireworks trains the models that it hosts, not a folder", "", hint)
    elif backend == "fireworks" and not any("tokenizer_model=" in word for word in words):
        # trainer/config/rllm/backend/fireworks.yaml: both default to those of one small Qwen.
        hint = "++model.tokenizer_model=… ++fireworks_config.policy_trainer_shape_id=…"
        message = "fireworks takes the tokenizer and the training shape by keys of their own"
        yield Finding(("model",), message, hint=hint, severity="warning")
    if backend == "tinker" and ref.provider == "local":
        if renderer(ref) is None and not any("renderer_name=" in word for word in words):
            # engine/rollout/tinker_engine.py: the cookbook goes by a public model's name.
            hint = "++rollout_engine.renderer_name=NAME, such as qwen3_instruct, role_colon, llama3"
            yield Finding(("model",), "rLLM cannot tell which chat template a folder's model has", "", hint)
        folder = (model_name(ref) or "").lower()
        if "vl" in folder or "vision" in folder:
            # trainer/tinker/tinker_backend.py, init_rollout_engine: looks for the letters anywhere.
            hint = "give the folder a name and a path without them"
            yield Finding(
                ("model",), f"rLLM takes {folder} for a vision model, by its 'vl' or 'vision'", "", hint
            )


def _role(plan: Plan, role: RolePlan, backend: Backend) -> Iterator[Finding]:
    at, written = ("roles", role.name), plan.spec.roles[role.name]
    apart = [endpoint.model for endpoint in plan.endpoints_of(role) if not is_rllms(plan, endpoint)]
    if role.name == UNNAMED:
        # types.py and trainer/algorithms/transform.py: that name means "unnamed", and is replaced.
        yield Finding(at, f"rLLM renames trajectories called {UNNAMED}", "another name", at_key=True)
    if backend == "verl" and not role.spec.is_trained and any(model.served_here for model in apart):
        # trainer/verl/verl_launcher.py: workflows are made in a Ray actor, perhaps on another machine.
        message = f"the model of {role.name} would be served here, and asked from wherever Ray runs"
        yield Finding((*at, "model"), message, "a model with a base_url that all machines reach")
    if not role.spec.is_trained:
        if not apart and written.policy is None:
            # engine/unified_workflow_engine.py: the one rollout engine has the newest weights, and no others.
            message = (
                f"under rLLM {role.name} answers from the policy as it learns, not from the model as it was"
            )
            hint = "give it a `model` of its own to keep it as it is"
            yield Finding((*at, "trainable"), message, hint=hint, severity="warning")
        return
    if role.signal is not None and role.signal.demonstration is not None:
        # trainer/tinker/transform.py: a datum is what was sampled, and carries no weights for cross_entropy.
        message = f"{role.name} imitates turns that it did not sample, which rLLM's workflow cannot train"
        hint = "use reverse_kl, or train without --trainer rllm"
        yield Finding((*at, "signal"), message, "", hint)
    elif written.loss is not None:
        yield from _loss(role.name, written.loss, backend)


def _loss(role: str, loss: Loss, backend: Backend) -> Iterator[Finding]:
    """What the backend cannot do of a role's own loss."""
    at = ("roles", role, "loss")
    if loss.name == "cross_entropy":
        message = f"{role} learns from its own samples, for which rLLM gives cross_entropy no weights"
        yield Finding(at, message, "ppo or importance_sampling", "or leave `loss` out")
    elif backend == "fireworks":
        # trainer/fireworks/fireworks_policy_trainer.py, builtin_loss_args: one kernel for all roles.
        hint = "remove it, and set rllm.algorithm.loss_fn for all roles"
        yield Finding(at, "fireworks has one loss for all roles", "", hint)
    elif loss.settings:
        # tinker_policy_trainer.py sends no loss_fn_config; verl has settings of its own, by other names.
        message = f"rLLM gives {backend} no settings of a role's loss"
        yield Finding(at, message, loss.name, "leave them out, or train without --trainer rllm")
    elif loss.name == "gspo" and backend == "tinker":
        # trainer/tinker/tinker_policy_trainer.py, TINKER_KNOWN_LOSSES: an unknown loss becomes another.
        message = "rLLM's tinker backend knows no gspo, and falls back to importance_sampling"
        yield Finding(at, message, ", ".join(sorted(LOSSES["tinker"])), "or train without --trainer rllm")
    elif loss.name != "ppo" and backend == "verl":
        # trainer/verl/verl_backend.py, _update_actor_with_loss_routing: an unknown loss becomes vanilla.
        hint = "remove it, or name a loss of verl's by rllm.algorithm.loss_fn"
        message = f"verl is given no {loss.name} of a role, and falls back to PPO's"
        yield Finding(at, message, "ppo", hint)


def _groups(plan: Plan, words: Sequence[str]) -> Iterator[Finding]:
    """Groups that are too small for rLLM, unless a word (which has checks of its own) says otherwise."""
    said = {word.key: word.value for word in map(ConfigOverride, words)}
    if said.get("rllm.rejection_sample.min_trajs_per_group") == 1 or said.keys() & ROLLOUTS:
        return
    for role in plan.trained.values():
        if role.count * plan.spec.train.rollouts < 2:
            message, expected, hint = alone(role.name)
            yield Finding(("roles", role.name), message, expected, hint, at_key=True)


def _estimators(plan: Plan, backend: Backend) -> Iterator[Finding]:
    custom = custom_estimators(plan, backend)
    for role in plan.trained.values():
        at, name = ("roles", role.name, "estimator"), estimator_name(plan, role)
        if is_precomputed(role) and backend == "verl":
            # trainer/verl/transform.py, update_dataproto_with_advantages: float(advantage) of a list raises.
            message = f"verl takes one advantage for a trajectory, and {role.name}'s come token by token"
            yield Finding(at, message, "an estimator", "or use the backend tinker")
        elif is_precomputed(role) and backend == "fireworks":
            # trainer/fireworks/fireworks_policy_trainer.py, _process_datums: the first one counts.
            message = f"fireworks would give {role.name}'s first advantage to every token"
            yield Finding(at, message, "an estimator", "or use the backend tinker")
        elif backend == "verl" and name in custom:
            # trainer/verl/verl_launcher.py trains in a Ray actor, where nothing registered here is known.
            message = (
                f"rLLM's trainer on verl runs in another process, which does not know {name.split('/')[0]}"
            )
            same = (
                "the same `std` for all roles, or "
                if role.estimator and role.estimator.name == "grpo"
                else ""
            )
            expected = f"{same}grpo, reinforce, rloo, reinforce_plus_plus_baseline or prpo"
            yield Finding(at, message, expected, "or use the backend tinker")
        if plan.spec.train.staleness and name in BATCH_WIDE:
            # trainer/buffer.py computes advantages as each task's rollouts come in.
            message = f"{name} looks at the whole batch, but rLLM's asynchronous loop shows it one task"
            yield Finding(at, message, "train.staleness: 0", "or use grpo or rloo")
    if plan.spec.train.staleness:
        for name, reason in hook_reasons(plan, backend).items():
            # trainer/buffer.py groups without the hook: only the synchronous loop has it.
            message = f"{name} {reason}, which rLLM's asynchronous loop would lose"
            yield Finding(("train", "staleness"), message, "0", "or train without --trainer rllm")


def _sampling(plan: Plan, backend: Backend) -> Iterator[Finding]:
    longest = max(sampling.max_tokens for role in plan.asking for sampling in role.samplings)
    first = next(iter(plan.trained.values()), plan.asking[0])
    written = [(role, *drawing) for role in plan.asking for drawing in drawn(plan, role).items()]
    for role, at, sampling in written:
        if backend in SERVICES and sampling.stop:
            # engine/rollout/tinker_engine.py and fireworks_engine.py: stop is the chat template's.
            message = f"{backend} ends an answer where the chat template does, and takes no `stop`"
            yield Finding((*at, "stop"), message, "", "remove it, and let the parser find the end")
        if backend in SERVICES and sampling.seed is not None:
            # The same two engines read temperature, top_p and top_k of a call, and no seed.
            yield _idle((*at, "seed"), f"{backend} draws without a seed")
        if backend == "fireworks" and sampling.max_tokens < longest:
            # engine/rollout/fireworks_engine.py: rllm.rollout.*.max_tokens goes before the call's own.
            message = (
                f"fireworks has one limit for all roles: {role.name}'s answers may have {longest} tokens"
            )
            yield Finding((*at, "max_tokens"), message, f"{longest}", severity="warning")
        if not role.spec.is_trained:
            continue
        wanted = first.samplings[0].temperature
        if backend == "verl" and sampling.temperature != wanted:
            # trainer/verl/utils.py: actor_rollout_ref.rollout.temperature also scales the trainer's logits.
            message = f"verl trains all roles at one temperature, and {role.name}'s is not {first.name}'s"
            expected = f"temperature: {wanted:g}"
            yield Finding(("roles", role.name, "sampling"), message, expected, at_key=True)


def _training(plan: Plan, backend: Backend) -> Iterator[Finding]:
    train = plan.spec.train
    if train.gradient_clip and backend == "tinker":
        # trainer/tinker/tinker_policy_trainer.py, optim_step_future: AdamParams without a norm, and no key.
        message = f"rLLM does not clip gradients on tinker, at {train.gradient_clip:g} or at all"
        hint = "train without --trainer rllm to clip; `train.gradient_clip: 0` says that you know"
        yield Finding(("train", "gradient_clip"), message, hint=hint, severity="warning")
    if backend == "fireworks" and train.gradient_clip == 0.0:
        yield _idle(
            ("train", "gradient_clip"), "fireworks clips at the norm given, and 0 leaves nothing of it"
        )
    for part in sorted({"attention", "mlp", "unembed"} & train.lora.model_fields_set):
        if backend in ("verl", "fireworks"):
            # Nothing below trainer/fireworks reads model.train_*; verl has target_modules in their place.
            other = " (++actor_rollout_ref.model.target_modules=…)" if backend == "verl" else ""
            yield _idle(("train", "lora", part), f"{backend} does not choose layers by this{other}")
    if train.schedule.kind == "linear" and backend == "verl":
        # verl/workers/engine/fsdp/transformer_impl.py knows two, and raises when the workers are up.
        yield Finding(("train", "schedule"), "verl has no linear schedule", "constant or cosine")
    reads_floor = backend == "custom" or (backend == "verl" and train.schedule.kind == "cosine")
    if train.schedule.floor and not reads_floor:
        # tinker_policy_trainer.py, compute_schedule_lr_multiplier, falls to 0; fireworks uses the same.
        yield _idle(
            ("train", "schedule", "floor"), f"rLLM's {train.schedule.kind} schedule has no floor here"
        )
    if "best" in train.validation.model_fields_set:
        yield _idle(
            ("train", "validation", "best"), "rLLM keeps the checkpoints of save_freq, and no best one"
        )


def _data(plan: Plan) -> Iterator[Finding]:
    size = plan.spec.train.batch_size
    for split, dataset in plan.data.items():
        limit = None if split == "train" else plan.spec.train.validation.tasks
        names = [str(row["id"]) for row in dataset.rows(limit)]
        cut = next((name for name in names if ":" in name), None)
        if cut is not None:
            # types.py, Episode.task_id: whatever stands before the first colon.
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
    return Finding(path, message, hint="remove it", severity="warning")
