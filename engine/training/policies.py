"""Policies in training over the Tinker SDK: open, sample, update, save, resume."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import tinker

from rolegraph.engine.compile import Plan
from rolegraph.engine.errors import ModelError, UsageError, WorldError
from rolegraph.engine.models import LimitedModel, Model, ServedModel
from rolegraph.engine.models.keys import redact
from rolegraph.engine.models.service_traits import ServiceTraits
from rolegraph.engine.models.tinker import (
    NO_RETRIES,
    Pulse,
    TinkerModel,
    TinkerSession,
    model_of,
    open_session,
    quiet,
    said,
    saying_why,
)
from rolegraph.engine.models.tinker_sdk import awaitable, close, created, rest_client
from rolegraph.engine.models.tokenizer import open_chat
from rolegraph.engine.prompts import ChatFormat
from rolegraph.engine.records import SavedPolicy
from rolegraph.engine.spec import Lora
from rolegraph.engine.training.batches import RoleBatch
from rolegraph.engine.training.passes import check_service, loss_passes
from rolegraph.engine.training.sampling_server import SamplingServer

_DELETE_SECONDS = 30.0
_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PolicyStart:
    """Starting point of a policy: a model, a checkpoint of that model, or a saved state of the policy."""

    served: ServedModel
    """Model and service. A checkpoint in it gives weights and the adapter's shape; the optimizer is new."""
    lora: Lora
    """Shape of a new adapter."""
    seed: int
    """Seed of a new adapter."""
    saved: SavedPolicy | None = None
    """State to resume, with its optimizer."""
    traits: ServiceTraits | None = None
    """Behaviour of the service; None takes the record of its URL and model."""
    sample_from: ServedModel | None = None
    """Server of vLLM or SGLang to sample from; None samples from the service that trains."""
    adapters: Path = Path("adapters")
    """Folder of the adapters that the server loads."""


@dataclass(frozen=True, slots=True)
class UpdateResult:
    """Losses and divergences of one policy update, by role."""

    loss: dict[str, float]
    """Weighted mean of the loss over the role's trajectories."""
    kl: dict[str, float]
    """Mean of log q - log p over the role's tokens: q sampled them, p is the policy before the update."""
    tokens: dict[str, int]
    """Number of tokens in `kl`."""
    grad_norm: float | None
    """Norm of the gradient before clipping; None if the service does not report it."""


@dataclass(slots=True)
class PolicyClient:
    """Tinker training client of one policy, with its chat format and sampler."""

    session: TinkerSession
    served: ServedModel
    client: tinker.TrainingClient
    model: str
    chat: ChatFormat
    concurrency: int
    version: int
    """Number of updates, from 0 for the starting weights."""
    pulse: Pulse
    traits: ServiceTraits
    sampler: tuple[int, LimitedModel] | None = field(default=None)
    """Version and sampling model of the weights that were last sampled from."""
    server: SamplingServer | None = None
    """Server to sample from, in place of the service."""

    def fault(self, action: str, error: Exception) -> WorldError:
        """Return a WorldError that names the service, the action and the reason, without the key."""
        reason = redact(said(error), self.session.key)
        return WorldError(f"the service at {self.session.url} cannot {action}: {reason}")


_UNREADABLE = (ValueError, tinker.APIResponseValidationError)
"""Errors of the SDK for a response that cannot be parsed, such as an error page of a gateway."""


class Policies:
    """Training clients of all policies, by name; methods raise WorldError when a service refuses or fails."""

    def __init__(self, policies: Mapping[str, PolicyClient]) -> None:
        self._policies = policies

    @classmethod
    @asynccontextmanager
    async def open(cls, starts: Mapping[str, PolicyStart]) -> AsyncGenerator[Policies, None]:
        """Open a training client for each policy, and close them at the end of the block.

        Args:
            starts: starting point of each policy, by name.

        Raises:
            UsageError: for a missing key, an unknown model and an unknown checkpoint.
            WorldError: if the service does not answer.
        """
        async with AsyncExitStack() as stack:
            yield cls(
                {name: await stack.enter_async_context(_open(name, start)) for name, start in starts.items()}
            )

    def version(self, name: str) -> int:
        """Return the number of updates a policy has had."""
        return self._policies[name].version

    def check(self, plan: Plan) -> None:
        """Raise UsageError for a plan that a policy's service cannot train as the plan says."""
        for name, policy in self._policies.items():
            check_service(plan, name, policy.session.url, policy.traits)

    def chat(self, name: str) -> ChatFormat:
        """Return the chat format of a policy's model."""
        return self._policies[name].chat

    def model(self, name: str) -> str:
        """Return the service's name for the model that a policy started from."""
        return self._policies[name].model

    async def sampler(self, name: str) -> LimitedModel:
        """Return a model that samples from a policy's current weights; made once for each version."""
        policy = self._policies[name]
        if policy.sampler is None or policy.sampler[0] != policy.version:
            try:
                model = await _current_model(policy)
            except ModelError as error:
                raise WorldError(str(error)) from error
            except Exception as error:  # the SDK raises ValueError, RuntimeError and its own family alike
                raise policy.fault("give weights to sample from", error) from error
            # Episodes of an older version may still be running; all versions share one limit.
            before = policy.sampler and policy.sampler[1]
            limited = before.with_model(model) if before else LimitedModel(model, policy.concurrency)
            policy.sampler = policy.version, limited
        return policy.sampler[1]

    async def update(
        self, batches: Mapping[str, Sequence[RoleBatch]], rates: Mapping[str, float], clip: float
    ) -> Mapping[str, UpdateResult]:
        """Make one Adam step for each policy that has batches, on all of them together.

        Args:
            batches: each policy's batches, a batch for each role.
            rates: learning rate of each policy.
            clip: maximum norm of the gradient; 0 does not clip.

        Returns:
            The results, by policy; policies without batches are left out.

        Raises:
            WorldError: if the service refuses a batch, fails, or its response cannot be read.
        """
        learning = {name: own for name, own in batches.items() if own}
        updates = (_update(self._policies[name], own, rates[name], clip) for name, own in learning.items())
        if any(self._policies[name].traits.merges_losses for name in learning):
            return dict(zip(learning, [await update for update in updates], strict=True))
        return dict(zip(learning, await asyncio.gather(*updates), strict=True))

    async def save_copy(self, name: str, label: str) -> str:
        """Save a policy's current weights to sample from, and return their path."""
        policy = self._policies[name]
        try:
            return (await policy.pulse.result(policy.client.save_weights_for_sampler(label))).path
        except Exception as error:
            raise policy.fault(f"write the copy {label}", error) from error

    async def copied(self, name: str, path: str, version: int) -> LimitedModel:
        """Return a model that samples from a copy of a policy; it shares the policy's limit.

        Args:
            name: the policy.
            path: path of the copy, from `save_copy`.
            version: the policy's number of updates at the copy.
        """
        policy = self._policies[name]
        try:
            service = policy.session.service
            create = partial(service.create_sampling_client, model_path=path, retry_config=NO_RETRIES)
            client = await policy.pulse.result(created(create))
        except Exception as error:
            raise policy.fault(f"sample from the copy {path}", error) from error
        quiet(client)
        return (await self.sampler(name)).with_model(_tinker_model(policy, client, version))

    def located_copy(self, name: str, path: str, version: int) -> ServedModel:
        """Return the place of a policy's copy, for another process that samples from it.

        Args:
            name: the policy.
            path: path of the copy, from `save_copy`.
            version: the policy's number of updates at the copy.
        """
        served = self._policies[name].served
        return replace(served, ref=served.ref.model_copy(update={"checkpoint": path}), weight_version=version)

    async def delete_copy(self, name: str, path: str) -> None:
        """Delete a copy of a policy at the service; a service that keeps it is no fault."""
        session = self._policies[name].session

        try:
            rest = rest_client(session.service, session.url, session.key)
            async with asyncio.timeout(_DELETE_SECONDS):
                await awaitable(rest.delete_checkpoint_from_tinker_path(path))
        except Exception as error:  # the SDK raises ValueError, RuntimeError and its own family alike
            _logger.debug("Cannot delete %s: %s", path, said(error))

    async def save(self, label: str) -> Mapping[str, SavedPolicy]:
        """Save a checkpoint of each policy; replaces one with the same label."""
        saved = await asyncio.gather(*(_save(policy, label) for policy in self._policies.values()))
        return dict(zip(self._policies, saved, strict=True))


@asynccontextmanager
async def _open(policy: str, start: PolicyStart) -> AsyncGenerator[PolicyClient, None]:
    served = start.served
    session = await open_session(served)
    pulse, service = Pulse(session.url), session.service
    try:
        name = model_of(session, served.ref)
        chat = await open_chat(name, served.tokenizer_dir)
        try:
            with saying_why(session.url, session.key):
                client = await pulse.result(created(partial(_client, service, name, start)))
        except (tinker.APIStatusError, tinker.RequestFailedError) as error:
            path = start.saved.state if start.saved else served.ref.checkpoint
            action = f"train {name!r}" if path is None else f"resume from {path}"
            reason = redact(said(error), session.key)
            raise UsageError(f"{session.url} cannot {action}: {reason}") from error
        quiet(client)
        async with AsyncExitStack() as stack:
            server = None
            if start.sample_from is not None:
                opening = SamplingServer.open(start.sample_from, chat, start.adapters, policy)
                server = await stack.enter_async_context(opening)
            yield PolicyClient(
                session=session,
                served=served,
                client=client,
                model=name,
                chat=chat,
                concurrency=(start.sample_from or served).ref.concurrency,
                version=start.saved.version if start.saved else 0,
                pulse=pulse,
                traits=start.traits or ServiceTraits.of(session.url, name),
                server=server,
            )
    except BaseException:
        close(service, "errored")
        raise
    close(service, "success")


def _client(
    service: tinker.ServiceClient, name: str, start: PolicyStart
) -> tinker.APIFuture[tinker.TrainingClient]:
    """Create the training client of a policy whose model the service calls `name`; see `created`.

    For a state, the SDKs that other services pin make a LoRA client first and load the state into it, since
    those services refuse `load_weights` without a model.
    """
    if start.saved is not None:
        return service.create_training_client_from_state_with_optimizer(start.saved.state)
    if start.served.ref.checkpoint is not None:
        return service.create_training_client_from_state(start.served.ref.checkpoint)
    lora = start.lora
    return service.create_lora_training_client(
        name,
        lora.rank,
        start.seed,
        train_mlp=lora.mlp,
        train_attn=lora.attention,
        train_unembed=lora.unembed,
    )


async def _current_model(policy: PolicyClient) -> Model:
    """Return a model that samples from a policy's weights as they are now."""
    session, pulse = policy.session, policy.pulse
    if policy.server is not None:
        rest = rest_client(session.service, session.url, session.key)
        return await policy.server.load(policy.client, rest, pulse, policy.version)
    save = partial(policy.client.save_weights_and_get_sampling_client, retry_config=NO_RETRIES)
    return _tinker_model(policy, await pulse.result(created(save)), policy.version)


def _tinker_model(policy: PolicyClient, client: tinker.SamplingClient, version: int) -> TinkerModel:
    session = policy.session
    return TinkerModel(
        client,
        policy.chat,
        url=session.url,
        context=session.lengths.get(policy.model),
        key=session.key,
        weight_version=version,
    )


async def _update(
    policy: PolicyClient, batches: Sequence[RoleBatch], rate: float, clip: float
) -> UpdateResult:
    """Send the batches and an optimizer step of one policy, and read its losses and KL."""
    # Adam's other settings are the SDK's defaults.
    adam = tinker.AdamParams(learning_rate=rate, grad_clip_norm=clip)
    try:
        # Everything is sent before the first await: a hosted service works in cycles and would skip one.
        passes: list[tinker.APIFuture[tinker.ForwardBackwardOutput]] = []
        for each in loss_passes(batches, policy.traits):
            passes.append(policy.client.forward_backward([*each.data], each.loss, {**each.settings} or None))
            if policy.traits.merges_losses:
                await policy.pulse.result(passes[-1])
        step = policy.client.optim_step(adam)
        outputs = [await policy.pulse.result(output) for output in passes]
        stepped = await policy.pulse.result(step)
    except _UNREADABLE as error:
        # The update may have been made, and a retry would apply it twice.
        fault = policy.fault("train on this batch", error)
        raise WorldError(
            f"{fault}. The response cannot be read, so it is unknown whether the update was made; "
            "`rolegraph train --resume` continues from the last checkpoint."
        ) from error
    except Exception as error:
        raise policy.fault("train on this batch", error) from error
    policy.version += 1
    loss: dict[str, float] = {}
    kl: dict[str, float] = {}
    tokens: dict[str, int] = {}
    for batch, output in zip(batches, outputs, strict=True):
        if (total := output.metrics.get("loss:sum")) is not None:
            loss[batch.role] = total
        log_ratios: list[float] = []
        for spans, outputs_of_datum in zip(batch.sampled, output.loss_fn_outputs, strict=True):
            logprobs = outputs_of_datum["logprobs"].tolist()
            for start, sampled in spans:
                current = logprobs[start : start + len(sampled)]
                log_ratios += [q - p for q, p in zip(sampled, current, strict=True)]
        if log_ratios:
            kl[batch.role] = sum(log_ratios) / len(log_ratios)
            tokens[batch.role] = len(log_ratios)
    result = UpdateResult(loss, kl, tokens, (stepped.metrics or {}).get("unclipped_grad_l2:mean"))
    _check_finite(policy.session.url, result)
    return result


def _check_finite(url: str, result: UpdateResult) -> None:
    """Raise WorldError for an update with a figure that is not finite: its weights must not be saved."""
    figures = {f"the loss of {role}": value for role, value in result.loss.items()}
    figures |= {f"the KL divergence of {role}": value for role, value in result.kl.items()}
    if result.grad_norm is not None:
        figures["the gradient's norm"] = result.grad_norm
    for name, value in figures.items():
        if not math.isfinite(value):
            raise WorldError(
                f"{name} is not finite at the service at {url} ({value}), and the update was made; "
                "`rolegraph train --resume` continues from the last checkpoint"
            )


async def _save(policy: PolicyClient, label: str) -> SavedPolicy:
    version = policy.version
    try:
        state = policy.client.save_state(label, overwrite=True)
        sampler = policy.client.save_weights_for_sampler(label)
        return SavedPolicy(
            version=version,
            state=(await policy.pulse.result(state)).path,
            sampler=(await policy.pulse.result(sampler)).path,
        )
    except Exception as error:
        raise policy.fault(f"write the checkpoint {label}", error) from error
