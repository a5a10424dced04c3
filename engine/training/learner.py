"""The policy in training, as the Tinker SDK has it: update it, sample from it, save it, take it up again."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import tinker

from engine.errors import UsageError, WorldError
from engine.models.keys import redact
from engine.models.tinker import TinkerModel, said
from engine.models.tinker_open import (
    NO_RETRIES,
    Session,
    model_of,
    open_chat,
    open_session,
    quiet,
    saying_why,
)
from engine.prompts.chat import ChatFormat
from engine.spec.models import Lora, ModelRef
from engine.training.datums import Lesson

BETAS = (0.9, 0.95)
EPSILON = 1e-12
"""Adam's settings, as the Tinker API has them by default."""


@dataclass(frozen=True, slots=True)
class Home:
    """Where the policy lives: a Tinker service, its key, and the tokenizer's folder if it is known."""

    ref: ModelRef
    api_key: str | None = None
    tokenizer_dir: Path | None = None
    trusted_url: str | None = None


@dataclass(frozen=True, slots=True)
class Saved:
    """One checkpoint's paths: weights with the optimizer's state, and weights to sample from."""

    state: str
    sampler: str


@dataclass(frozen=True, slots=True)
class Updated:
    """What one update came to. Losses are means over the batch's trajectories."""

    loss: dict[str, float]
    kl: dict[str, float]
    """Mean of log q - log p over a role's learnt tokens: q sampled them, p is the policy to be updated."""
    grad_norm: float | None


class Learner:
    """A LoRA training client and its chat format. `version` counts updates, from 0 for the base."""

    def __init__(
        self, session: Session, client: tinker.TrainingClient, name: str, chat: ChatFormat, version: int
    ) -> None:
        self._session, self._client, self.name = session, client, name
        self.chat = chat
        self.version = version

    @classmethod
    @asynccontextmanager
    async def open(
        cls, home: Home, lora: Lora, seed: int, *, state: str | None = None, version: int = 0
    ) -> AsyncGenerator[Learner, None]:
        """A new adapter from `seed`, or the one saved at `state` with its optimizer, after `version` updates.

        Raises UsageError (no key, no such model or checkpoint) and WorldError (nothing answers).
        """
        session = await open_session(home.ref, api_key=home.api_key, trusted_url=home.trusted_url)
        try:
            name = model_of(session, home.ref)
            chat = await open_chat(name, home.tokenizer_dir)
            try:
                with saying_why(session.url, session.key):
                    if state is None:
                        client = await session.service.create_lora_training_client(
                            name,
                            lora.rank,
                            seed,
                            train_mlp=lora.mlp,
                            train_attn=lora.attention,
                            train_unembed=lora.unembed,
                        )
                    else:
                        client = await session.service.create_training_client_from_state_with_optimizer(state)
            except tinker.APIStatusError as error:
                what = f"train {name!r}" if state is None else f"go on from {state}"
                raise UsageError(
                    f"{session.url} cannot {what}: {redact(said(error), session.key)}"
                ) from error
            quiet(client)
            yield cls(session, client, name, chat, version)
        except BaseException:
            session.service.close("errored")
            raise
        session.service.close("success")

    async def update(self, lessons: Sequence[Lesson], rate: float, clip: float) -> Updated:
        """One step of Adam on all lessons together; raises WorldError where the service does not take it."""
        beta1, beta2 = BETAS
        adam = tinker.AdamParams(
            learning_rate=rate, beta1=beta1, beta2=beta2, eps=EPSILON, grad_clip_norm=clip
        )
        try:
            # All of it is sent before any of it is awaited, so that a hosted service's clock is not missed.
            passes = [self._client.forward_backward(list(it.data), it.loss) for it in lessons]
            step = self._client.optim_step(adam)
            outputs = [await found for found in passes]
            stepped = await step
        except Exception as error:  # the SDK raises ValueError, RuntimeError and its own family alike
            raise self._fault("learn from this batch", error) from error
        self.version += 1
        loss: dict[str, float] = {}
        kl: dict[str, float] = {}
        for lesson, output in zip(lessons, outputs, strict=True):
            loss[lesson.role] = output.metrics.get("loss:sum", 0.0)
            gaps: list[float] = []
            for sampled, found in zip(lesson.sampled, output.loss_fn_outputs, strict=True):
                now = found["logprobs"].tolist()
                gaps += [q - p for q, p in zip(sampled, now[len(now) - len(sampled) :], strict=True)]
            if gaps:
                kl[lesson.role] = sum(gaps) / len(gaps)
        norm = (stepped.metrics or {}).get("unclipped_grad_l2:mean")
        return Updated(loss, kl, norm)

    async def sampler(self) -> TinkerModel:
        """The policy as it is now, to sample from."""
        try:
            client = await self._client.save_weights_and_get_sampling_client(retry_config=NO_RETRIES)
        except Exception as error:
            raise self._fault("give weights to sample from", error) from error
        session = self._session
        return TinkerModel(
            client,
            self.chat,
            url=session.url,
            context=session.lengths.get(self.name),
            key=session.key,
            weight_version=self.version,
        )

    async def save(self, name: str) -> Saved:
        """Write a checkpoint, in place of one of that name; raises WorldError where it cannot be written."""
        try:
            state = self._client.save_state(name, overwrite=True)
            sampler = self._client.save_weights_for_sampler(name)
            return Saved((await state).path, (await sampler).path)
        except Exception as error:
            raise self._fault(f"write the checkpoint {name}", error) from error

    def _fault(self, what: str, error: Exception) -> WorldError:
        reason = redact(said(error), self._session.key)
        return WorldError(f"the service at {self._session.url} cannot {what}: {reason}")
