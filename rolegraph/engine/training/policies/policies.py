"""Policies in training over the Tinker SDK: open, sample, update, save, resume."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import AsyncGenerator, Generator, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import cast

from rolegraph.engine.compile import Plan
from rolegraph.engine.compile.steps import plan_at
from rolegraph.engine.errors import ModelError, UsageError, WorldError
from rolegraph.engine.models import LimitedModel, ServedModel
from rolegraph.engine.models.checkpoints import whereabouts
from rolegraph.engine.models.service_traits import ServiceTraits
from rolegraph.engine.models.tinker import (
    NO_RETRIES,
    Pulse,
    TinkerModel,
    TinkerSession,
    final_refusal,
    model_of,
    open_session,
    quiet,
    saying_why,
    service_message,
)
from rolegraph.engine.models.tinker_sdk import awaitable, close, created, rest_client, tinker
from rolegraph.engine.models.tokenizer import open_chat
from rolegraph.engine.prompts import ChatFormat
from rolegraph.engine.records import SavedPolicy
from rolegraph.engine.spec import Lora
from rolegraph.engine.training.advantages.group_metrics import KL
from rolegraph.engine.training.policies.batches import RoleBatch, check_service, loss_passes
from rolegraph.engine.training.policies.custom_losses import CustomPass, LossResult
from rolegraph.engine.training.policies.sampling_server import SamplingServer

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
    imitated: dict[str, list[float]] = field(default_factory=dict[str, list[float]])
    """-log p of each target token of a cross-entropy, before the update."""
    metrics: Mapping[str, Mapping[str, float]] = field(default_factory=dict[str, Mapping[str, float]])
    """Metrics that losses of packages report, by role."""
    made: bool = True
    """False if every gradient was 0, so that no optimizer step was made."""


_UNREADABLE = (ValueError, tinker.APIResponseValidationError)
"""Errors of the SDK for a response that cannot be parsed, such as an error page of a gateway."""


@dataclass(slots=True)
class PolicyClient:
    """Tinker training client of one policy; methods raise WorldError when the service refuses or fails."""

    session: TinkerSession
    start: PolicyStart
    client: tinker.TrainingClient
    model: str
    """The service's name for the model that the policy started from."""
    chat: ChatFormat
    pulse: Pulse
    traits: ServiceTraits
    version: int
    """Number of updates, from 0 for the starting weights."""
    server: SamplingServer | None = None
    """Server to sample from, in place of the service."""
    _sampler: tuple[int, LimitedModel] | None = None
    """Version and sampling model of the weights that were last sampled from."""
    _scorer: tuple[int, LimitedModel] | None = None
    """Version and model of the weights that last scored tokens; used only if another server samples."""

    @contextmanager
    def _faults(self, action: str, if_unreadable: str = "") -> Generator[None]:
        """Convert any error of a block to the error of `final_refusal`, or to a WorldError.

        The WorldError names the service's URL, the failed action and the reason, which `if_unreadable` is
        added to if the response could not be parsed.
        """
        try:
            yield
        except ModelError as error:  # of the server to sample from
            raise WorldError(str(error)) from error
        except Exception as error:  # the SDK raises ValueError, RuntimeError and its own family alike
            if (final_error := final_refusal(error, self.session.url)) is not None:
                raise final_error from error
            reason = service_message(error)
            reason += if_unreadable if isinstance(error, _UNREADABLE) else ""
            raise WorldError(f"the service at {self.session.url} cannot {action}: {reason}") from error

    async def sampler(self) -> LimitedModel:
        """Return a model that samples from the current weights; create it once for each version."""
        previous = self._sampler
        if previous and previous[0] == self.version:
            return previous[1]
        with self._faults("give weights to sample from"):
            if self.server is not None:
                model = await self.server.load(self.client, self._rest(), self.pulse, self.version)
            else:
                save_copy = partial(self.client.save_weights_and_get_sampling_client, retry_config=NO_RETRIES)
                model = self._tinker_model(await self.pulse.result(created(save_copy)), self.version)
        # Episodes of an older version may still be running; all versions share one limit.
        concurrency = (self.start.sample_from or self.start.served).ref.concurrency
        limited_model = previous[1].with_model(model) if previous else LimitedModel(model, concurrency)
        self._sampler = self.version, limited_model
        return limited_model

    async def scorer(self) -> LimitedModel:
        """Return a model at the training service that scores given tokens with the current weights; create it
        once for each version."""
        if self.server is None:
            return await self.sampler()
        if self._scorer is None or self._scorer[0] != self.version:
            with self._faults("give weights to score with"):
                save_copy = partial(self.client.save_weights_and_get_sampling_client, retry_config=NO_RETRIES)
                model = self._tinker_model(await self.pulse.result(created(save_copy)), self.version)
            self._scorer = self.version, LimitedModel(model, self.start.served.ref.concurrency)
        return self._scorer[1]

    def _rest(self) -> tinker.RestClient:
        return rest_client(self.session.service, self.session.url, self.session.key)

    def _tinker_model(self, client: tinker.SamplingClient, version: int) -> TinkerModel:
        url, context = self.session.url, self.session.lengths.get(self.model)
        return TinkerModel(client, self.chat, url=url, context=context, weight_version=version)

    async def save_copy(self, label: str) -> str:
        """Save the current weights to sample from, and return their path."""
        with self._faults(f"write the copy {label}"):
            return (await self.pulse.result(self.client.save_weights_for_sampler(label))).path

    async def copied(self, path: str, version: int) -> LimitedModel:
        """Return a model that samples from a copy of the policy and shares the policy's limit on concurrent
        calls.

        Args:
            path: Path of the copy, from `save_copy`.
            version: Number of updates at the copy.
        """
        create_client = partial(
            self.session.service.create_sampling_client, model_path=path, retry_config=NO_RETRIES
        )
        with self._faults(f"sample from the copy {path}"):
            client = await self.pulse.result(created(create_client))
        quiet(client)
        return (await self.sampler()).with_model(self._tinker_model(client, version))

    def located_copy(self, path: str, version: int) -> ServedModel:
        """Return the service and path of saved weights, from which another process may sample."""
        model = self.start.served
        return replace(model, ref=model.ref.model_copy(update={"checkpoint": path}), weight_version=version)

    async def delete_copy(self, path: str) -> None:
        """Delete a copy at the service; a service that cannot delete it raises no error."""
        try:
            async with asyncio.timeout(_DELETE_SECONDS):
                await awaitable(self._rest().delete_checkpoint_from_tinker_path(path))
        except Exception as error:  # the SDK raises ValueError, RuntimeError and its own family alike
            _logger.debug("Cannot delete %s: %s", path, service_message(error))

    async def save(self, label: str) -> SavedPolicy:
        """Save a checkpoint; replaces one with the same label."""
        version = self.version
        with self._faults(f"write the checkpoint {label}"):
            state = self.client.save_state(label, overwrite=True)
            sampler = self.client.save_weights_for_sampler(label)
            paths = [(await self.pulse.result(saving)).path for saving in (state, sampler)]
        return SavedPolicy(version=version, state=paths[0], sampler=paths[1])

    async def compute_functions(self, batches: Sequence[RoleBatch]) -> FunctionResults:
        """Compute the gradients of the custom losses at the service, before the optimizer's step.

        Raises:
            AdvantageError: A loss raises, or a number or gradient of it is not finite.
        """
        results: FunctionResults = {}
        for batch in batches:
            if batch.loss.compute is None:
                continue
            function = CustomPass(batch)
            with self._faults("train on this batch"):
                # Older SDKs block until the service has answered.
                future = created(partial(self.client.forward_backward_custom, function.data, function))
                output = await self.pulse.result(future)
            if function.error is not None:
                raise function.error
            assert function.result is not None
            results[batch.role] = function.result, output
        return results

    async def update(
        self, batches: Sequence[RoleBatch], rate: float, clip: float, functions: FunctionResults
    ) -> UpdateResult:
        """Send the batches and an optimizer step, and return losses and KL; see `Policies.update_all`."""
        metrics = {role: result.metrics for role, (result, _) in functions.items()}
        if len(functions) == len(batches) and not any(result.moves for result, _ in functions.values()):
            losses = {role: result.value for role, (result, _) in functions.items()}
            return UpdateResult(losses, {}, {}, None, metrics=metrics, made=False)
        # Adam's other settings are the SDK's defaults.
        adam_params = tinker.AdamParams(learning_rate=rate, grad_clip_norm=clip)
        # After an answer that cannot be read, the update may have been made: a retry would apply it twice.
        missing = (
            ". The response cannot be read, so it is unknown whether the update was made; "
            "`rolegraph train --resume` continues from the last checkpoint."
        )
        with self._faults("train on this batch", if_unreadable=missing):
            # Everything is sent before the first await: a hosted service works in cycles and would skip one.
            futures: list[tinker.APIFuture[tinker.ForwardBackwardOutput]] = []
            for loss_pass in loss_passes(batches, self.traits):
                loss = cast("tinker.types.LossFnType", loss_pass.loss)
                future = self.client.forward_backward([*loss_pass.data], loss, {**loss_pass.settings} or None)
                futures.append(future)
                if self.traits.merges_losses:
                    await self.pulse.result(future)
            step = self.client.optim_step(adam_params)
            answers = iter([await self.pulse.result(output) for output in futures])
            step_output = await self.pulse.result(step)
        self.version += 1
        result = UpdateResult(
            {}, {}, {}, (step_output.metrics or {}).get("unclipped_grad_l2:mean"), metrics=metrics
        )
        for batch in batches:
            output = functions[batch.role][1] if batch.role in functions else next(answers)
            if batch.role in functions:
                result.loss[batch.role] = functions[batch.role][0].value
            elif (total := output.metrics.get("loss:sum")) is not None:
                result.loss[batch.role] = total
            if targets := [*_surprisals(batch, output)]:
                result.imitated[batch.role] = targets
            log_ratios: list[float] = []
            for spans, datum_outputs in zip(batch.sampled, output.loss_fn_outputs, strict=True):
                logprobs = datum_outputs["logprobs"].tolist()
                for start, sampled in spans:
                    current_logprobs = logprobs[start : start + len(sampled)]
                    log_ratios += [q - p for q, p in zip(sampled, current_logprobs, strict=True)]
            if log_ratios:
                result.kl[batch.role] = sum(log_ratios) / len(log_ratios)
                result.tokens[batch.role] = len(log_ratios)
        # Weights of an update with a number that is not finite must not be saved.
        numbers = {f"the loss of {role}": value for role, value in result.loss.items()}
        numbers |= {f"the {KL} of {role}": value for role, value in result.kl.items()}
        numbers["the gradient's norm"] = result.grad_norm or 0.0
        for name, value in numbers.items():
            if not math.isfinite(value):
                raise WorldError(
                    f"{name} is not finite at the service at {self.session.url} ({value}), and the update "
                    "was made; `rolegraph train --resume` continues from the last checkpoint"
                )
        return result


def _surprisals(batch: RoleBatch, output: tinker.ForwardBackwardOutput) -> Iterator[float]:
    """Yield -log p of each target token in a batch whose loss is cross-entropy."""
    if batch.loss.name == "cross_entropy":
        for datum, datum_outputs in zip(batch.data, output.loss_fn_outputs, strict=True):
            weights = datum.loss_fn_inputs["weights"].tolist()
            weighted_logprobs = zip(weights, datum_outputs["logprobs"].tolist(), strict=True)
            yield from (-logprob for weight, logprob in weighted_logprobs if weight)


FunctionResults = dict[str, tuple[LossResult, tinker.ForwardBackwardOutput]]
"""Results of the custom losses, and the service's output, by role."""


class Policies(dict[str, PolicyClient]):
    """Open training clients of all policies, by name."""

    @classmethod
    @asynccontextmanager
    async def open(cls, starts: Mapping[str, PolicyStart]) -> AsyncGenerator[Policies, None]:
        """Open a training client for each policy, and close them at the end of the block.

        Args:
            starts: Starting point of each policy, by name.

        Raises:
            UsageError: For a missing key, an unknown model and an unknown checkpoint.
            WorldError: If the service does not answer.
        """
        async with AsyncExitStack() as stack:
            yield cls(
                {name: await stack.enter_async_context(_open(name, start)) for name, start in starts.items()}
            )

    def check(self, plan: Plan) -> None:
        """Raise UsageError for a plan that a policy's service cannot train as the plan says."""
        for name, policy in self.items():
            for checked_plan in (plan, *(plan_at(plan, stage.first) for stage in plan.stages)):
                check_service(checked_plan, name, policy.session.url, policy.traits)

    async def update_all(
        self, batches: Mapping[str, Sequence[RoleBatch]], rates: Mapping[str, float], clip: float
    ) -> Mapping[str, UpdateResult]:
        """Send the batches and one Adam step for each policy that has any; return the results by policy.

        Args:
            batches: Each policy's batches, a batch for each role.
            rates: Learning rate of each policy.
            clip: Maximum norm of the gradient; 0 does not clip.

        Returns:
            The results, by policy; policies without batches are left out.

        Raises:
            WorldError: If the service refuses a batch, fails, or its response cannot be read.
            AdvantageError: A custom loss fails; no policy is updated then.
        """
        updated_names = [name for name in batches if batches[name]]
        function_results = [await self[name].compute_functions(batches[name]) for name in updated_names]
        updates = (
            self[name].update(batches[name], rates[name], clip, functions)
            for name, functions in zip(updated_names, function_results, strict=True)
        )
        if any(self[name].traits.merges_losses for name in updated_names):
            return dict(zip(updated_names, [await update for update in updates], strict=True))
        return dict(zip(updated_names, await asyncio.gather(*updates), strict=True))

    async def save(self, label: str) -> dict[str, SavedPolicy]:
        """Save a checkpoint of each policy; replaces one with the same label."""
        saved_policies = await asyncio.gather(*(policy.save(label) for policy in self.values()))
        return dict(zip(self, saved_policies, strict=True))


@asynccontextmanager
async def _open(policy: str, start: PolicyStart) -> AsyncGenerator[PolicyClient, None]:
    served_model = start.served
    session = await open_session(served_model)
    pulse, service = Pulse(session.url), session.service
    try:
        name = model_of(session, served_model.ref)
        chat = await open_chat(name, served_model.tokenizer_dir)
        try:
            with saying_why(session.url):
                client = await pulse.result(created(partial(_client, service, name, start)))
        except (tinker.APIStatusError, tinker.RequestFailedError) as error:
            path = start.saved.state if start.saved else served_model.ref.checkpoint
            action = f"train {name!r}" if path is None else f"resume from {path}"
            reason = service_message(error)
            if start.saved is not None and isinstance(error, tinker.NotFoundError):
                reason += (
                    "; a service that was started anew needs its checkpoints of before (--state-dir), and "
                    "weights that it has deleted cannot be resumed: train again with another --out"
                )
            elif start.saved is None and path is not None:
                reason += f". {whereabouts(path)}"
            raise UsageError(f"{session.url} cannot {action}: {reason}") from error
        quiet(client)
        traits = start.traits or ServiceTraits.of(session.url, name)
        version = start.saved.version if start.saved else 0
        policy_client = PolicyClient(session, start, client, name, chat, pulse, traits, version)
        async with AsyncExitStack() as stack:
            if start.sample_from is not None:
                server_context = SamplingServer.open(start.sample_from, chat, start.adapters, policy)
                policy_client.server = await stack.enter_async_context(server_context)
            yield policy_client
    except BaseException:
        close(service, "errored")
        raise
    close(service, "success")


def _client(
    service: tinker.ServiceClient, name: str, start: PolicyStart
) -> tinker.APIFuture[tinker.TrainingClient]:
    """Start to create the training client of a policy, from a saved state, a checkpoint, or a new adapter.

    For a state, the SDKs that other services pin make a LoRA client first and load the state into it, since
    those services refuse `load_weights` without a model.
    """
    if start.saved is not None:
        return service.create_training_client_from_state_with_optimizer(start.saved.state)
    if start.served.ref.checkpoint is not None:
        return service.create_training_client_from_state(start.served.ref.checkpoint)
    lora = start.lora
    mlp, attention, unembed = lora.mlp, lora.attention, lora.unembed
    return service.create_lora_training_client(
        name, lora.rank, start.seed, train_mlp=mlp, train_attn=attention, train_unembed=unembed
    )
