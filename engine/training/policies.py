"""The policies in training, by name, as the Tinker SDK has them: sample, update, save, take up again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field

import tinker

from rolegraph.engine.errors import UsageError, WorldError
from rolegraph.engine.models import LimitedModel, ServedModel
from rolegraph.engine.models.keys import redact
from rolegraph.engine.models.tinker import Pulse, TinkerModel, said
from rolegraph.engine.models.tinker_open import (
    NO_RETRIES,
    TinkerSession,
    model_of,
    open_chat,
    open_session,
    quiet,
    saying_why,
)
from rolegraph.engine.prompts import ChatFormat
from rolegraph.engine.records import SavedPolicy
from rolegraph.engine.spec import Lora
from rolegraph.engine.training.batches import RoleBatch


@dataclass(frozen=True, slots=True)
class PolicyStart:
    """What a policy starts from: its model, that model's checkpoint, or what was saved of its own."""

    served: ServedModel
    """With a checkpoint, its weights, whose adapter has a shape already, and a new optimizer."""
    lora: Lora
    seed: int
    """Of a new adapter."""
    saved: SavedPolicy | None = None


@dataclass(frozen=True, slots=True)
class UpdateResult:
    """What one update came to. Losses are means over the batch's trajectories."""

    loss: dict[str, float]
    kl: dict[str, float]
    """By role, the mean of log q - log p over its tokens: q sampled them, p is the policy to be updated."""
    tokens: dict[str, int]
    """By role, over how many."""
    grad_norm: float | None


@dataclass(slots=True)
class _Policy:
    """A LoRA training client and its chat format; `version` counts updates, from 0 for the model itself."""

    session: TinkerSession
    client: tinker.TrainingClient
    model: str
    chat: ChatFormat
    concurrency: int
    version: int
    pulse: Pulse
    sampler: tuple[int, LimitedModel] | None = field(default=None)
    """The weights of a version, to sample from."""

    def fault(self, what: str, error: Exception) -> WorldError:
        reason = redact(said(error), self.session.key)
        return WorldError(f"the service at {self.session.url} cannot {what}: {reason}")


_UNREADABLE = (ValueError, tinker.APIResponseValidationError)
"""What the SDK raises where an answer is none, as a gateway under load may send."""


class Policies:
    """A training client for each policy. Everything raises WorldError where a service does not take it."""

    def __init__(self, policies: Mapping[str, _Policy]) -> None:
        self._policies = policies

    @classmethod
    @asynccontextmanager
    async def open(cls, starts: Mapping[str, PolicyStart]) -> AsyncGenerator[Policies, None]:
        """A new adapter for each policy, or the one that was saved with its optimizer.

        Raises UsageError (no key, no such model or checkpoint) and WorldError (nothing answers).
        """
        async with AsyncExitStack() as stack:
            yield cls({name: await stack.enter_async_context(_open(start)) for name, start in starts.items()})

    def version(self, name: str) -> int:
        """How many updates a policy has had."""
        return self._policies[name].version

    def chat(self, name: str) -> ChatFormat:
        """How a policy's model writes a chat."""
        return self._policies[name].chat

    def model(self, name: str) -> str:
        """The service's name for the model that a policy started from."""
        return self._policies[name].model

    async def sampler(self, name: str) -> LimitedModel:
        """A policy as it is now, to sample from; asked for once for each version."""
        policy = self._policies[name]
        if policy.sampler is None or policy.sampler[0] != policy.version:
            try:
                client = await policy.pulse.result(
                    policy.client.save_weights_and_get_sampling_client(retry_config=NO_RETRIES)
                )
            except Exception as error:  # the SDK raises ValueError, RuntimeError and its own family alike
                raise policy.fault("give weights to sample from", error) from error
            session = policy.session
            model = TinkerModel(
                client,
                policy.chat,
                url=session.url,
                context=session.lengths.get(policy.model),
                key=session.key,
                weight_version=policy.version,
            )
            # Of a policy's versions several may answer at a time; its limit is one.
            before = policy.sampler and policy.sampler[1]
            limited = before.instead(model) if before else LimitedModel(model, policy.concurrency)
            policy.sampler = policy.version, limited
        return policy.sampler[1]

    async def update(
        self, batches: Mapping[str, Sequence[RoleBatch]], rates: Mapping[str, float], clip: float
    ) -> Mapping[str, UpdateResult]:
        """One step of Adam for each policy that has something to learn, on all its batches together."""
        learning = {name: theirs for name, theirs in batches.items() if theirs}
        updates = (
            _update(self._policies[name], theirs, rates[name], clip) for name, theirs in learning.items()
        )
        return dict(zip(learning, await asyncio.gather(*updates), strict=True))

    async def save(self, label: str) -> Mapping[str, SavedPolicy]:
        """Write a checkpoint of each policy, in place of one of that label."""
        saved = await asyncio.gather(*(_save(policy, label) for policy in self._policies.values()))
        return dict(zip(self._policies, saved, strict=True))


@asynccontextmanager
async def _open(start: PolicyStart) -> AsyncGenerator[_Policy, None]:
    served = start.served
    session = await open_session(served.ref, api_key=served.api_key, trusted_url=served.trusted_url)
    pulse, service = Pulse(session.url), session.service
    try:
        name = model_of(session, served.ref)
        chat = await open_chat(name, served.tokenizer_dir)
        try:
            with saying_why(session.url, session.key):
                client = await pulse.result(_client(service, name, start))
        except (tinker.APIStatusError, tinker.RequestFailedError) as error:
            path = start.saved.state if start.saved else served.ref.checkpoint
            what = f"train {name!r}" if path is None else f"go on from {path}"
            reason = redact(said(error), session.key)
            raise UsageError(f"{session.url} cannot {what}: {reason}") from error
        quiet(client)
        yield _Policy(
            session=session,
            client=client,
            model=name,
            chat=chat,
            concurrency=served.ref.concurrency,
            version=start.saved.version if start.saved else 0,
            pulse=pulse,
        )
    except BaseException:
        service.close("errored")
        raise
    service.close("success")


def _client(
    service: tinker.ServiceClient, name: str, start: PolicyStart
) -> tinker.APIFuture[tinker.TrainingClient]:
    """A training client with what a policy starts from; `name` is its model's."""
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


async def _update(policy: _Policy, batches: Sequence[RoleBatch], rate: float, clip: float) -> UpdateResult:
    # Adam's other settings are the SDK's.
    adam = tinker.AdamParams(learning_rate=rate, grad_clip_norm=clip)
    try:
        # All of it is sent before any of it is awaited, so that a hosted service's clock is not missed.
        passes = [
            policy.client.forward_backward(list(batch.data), batch.loss.name, {**batch.loss.settings} or None)
            for batch in batches
        ]
        step = policy.client.optim_step(adam)
        outputs = [await policy.pulse.result(output) for output in passes]
        stepped = await policy.pulse.result(step)
    except _UNREADABLE as error:
        # It may have been carried out, and asked for again it would count twice.
        fault = policy.fault("learn from this batch", error)
        raise WorldError(
            f"{fault}. Its answer cannot be read, so whether it has learnt is not known; "
            "`rolegraph train --resume` goes on from the last checkpoint."
        ) from error
    except Exception as error:
        raise policy.fault("learn from this batch", error) from error
    policy.version += 1
    loss: dict[str, float] = {}
    kl: dict[str, float] = {}
    tokens: dict[str, int] = {}
    for batch, output in zip(batches, outputs, strict=True):
        loss[batch.role] = output.metrics.get("loss:sum", 0.0)
        gaps: list[float] = []
        for spans, outputs_of_datum in zip(batch.sampled, output.loss_fn_outputs, strict=True):
            now = outputs_of_datum["logprobs"].tolist()
            for start, sampled in spans:
                answer = now[start : start + len(sampled)]
                gaps += [q - p for q, p in zip(sampled, answer, strict=True)]
        if gaps:
            kl[batch.role] = sum(gaps) / len(gaps)
            tokens[batch.role] = len(gaps)
    return UpdateResult(loss, kl, tokens, (stepped.metrics or {}).get("unclipped_grad_l2:mean"))


async def _save(policy: _Policy, label: str) -> SavedPolicy:
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
