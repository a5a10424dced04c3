"""Tests of signals beside an estimator on the local service, through the Tinker SDK's own client."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="needs the extra `local`")

import tinker

from rolegraph.engine.compile import compile_file
from rolegraph.engine.models import Completion, Request
from rolegraph.engine.training.advantages.ledger import Ledger
from rolegraph.engine.training.advantages.signals import SignalResult
from rolegraph.engine.training.policies.batches import policy_batches
from rolegraph.local.launcher import LocalService
from tests.training.test_signals import stepped

pytestmark = pytest.mark.service

PENALTY = "roles.solver.signal={reverse_kl: {teacher: base, coefficient: 0.3, clip: null, center: true}}"


class Base:
    """Base model of a service; it computes a text once, since its rounding follows the texts beside it."""

    def __init__(self, client: tinker.ServiceClient, service: LocalService) -> None:
        self.sampler = client.create_sampling_client(base_model=service.model_name).result()
        self.known: dict[tuple[int, ...], list[float | None]] = {}

    async def logprobs(self, prompt_ids: Sequence[int], response_ids: Sequence[int]) -> list[float]:
        ids = (*prompt_ids, *response_ids)
        if ids not in self.known:
            tokens = tinker.ModelInput.from_ints([*ids])
            self.known[ids] = await self.sampler.compute_logprobs_async(tokens)
        return [value for value in self.known[ids][len(prompt_ids) :] if value is not None]

    async def complete(self, request: Request) -> Completion:
        raise AssertionError("a teacher is not asked for answers")

    async def aclose(self) -> None: ...


@pytest.fixture
def client(service: LocalService, monkeypatch: pytest.MonkeyPatch) -> tinker.ServiceClient:
    monkeypatch.setenv("TINKER_TELEMETRY", "0")
    return tinker.ServiceClient(base_url=service.base_url, api_key=service.api_key)


def data(ledger: Ledger, part: str = "both") -> list[Any]:
    """Return the solver's datums, with both parts of the advantages, or one."""
    if part == "reward":
        ledger = replace(ledger, signals=SignalResult())
    if part == "signal":
        ledger = replace(ledger, partial_sums=dict.fromkeys(ledger.partial_sums, 0.0))
    (solver,) = policy_batches(ledger)["main"]
    return [*solver.data]


@pytest.mark.parametrize("loss", ["ppo", "importance_sampling"])
def test_the_gradient_of_the_sum_is_the_sum_of_the_gradients(
    loss: str, client: tinker.ServiceClient, service: LocalService
) -> None:
    plan = compile_file("solver_judge", [PENALTY, f"roles.solver.loss={loss}"])
    base = Base(client, service)

    def norm(*of: str) -> tuple[float, list[list[float]]]:
        """Return the gradient's norm of some parts together, and the log-probabilities after the update."""
        training = client.create_lora_training_client(service.model_name, rank=8, seed=1).result()
        first = data(stepped(plan, base))
        for _ in range(3):  # away from the start, so that the penalty is of some size
            training.forward_backward(first, "importance_sampling").result()
            training.optim_step(tinker.AdamParams(learning_rate=1e-2)).result()
        out = training.forward(first, "importance_sampling").result().loss_fn_outputs
        sampled = [own["logprobs"].tolist()[1:] for own in out]
        assert [len(own) for own in sampled] == [3, 4, 5, 6]
        ledger = stepped(plan, base, sampled)
        for name in of:
            training.forward_backward(data(ledger, name), loss).result()
        updated = training.optim_step(tinker.AdamParams(learning_rate=1e-3)).result()
        after = training.forward(first, "importance_sampling").result().loss_fn_outputs
        return updated.metrics["unclipped_grad_l2:mean"], [own["logprobs"].tolist() for own in after]

    (both, then), (apart, also), (reward, without) = norm("both"), norm("reward", "signal"), norm("reward")
    # Each entry of the gradient sums over the tokens of all sequences, in either order, in float32.
    summands = 2 * sum(map(len, then))
    assert both == pytest.approx(apart, rel=summands * float(np.finfo(np.float32).eps))
    assert both != pytest.approx(reward, rel=1e-3), "the penalty has a gradient"
    # Adam divides an entry near 0 by its own size, so that its rounding moves weights.
    for one, other in zip(then, also, strict=True):
        assert one == pytest.approx(other, abs=1e-4)
    assert then[-1] != pytest.approx(without[-1], abs=1e-3), "the penalty moves the weights"


def test_centered_and_not_clipped_is_the_package_tinker_cookbook(
    client: tinker.ServiceClient, service: LocalService
) -> None:
    metrics = pytest.importorskip("tinker_cookbook.rl.metrics", exc_type=ImportError)
    import torch

    plan = compile_file("solver_judge", [PENALTY])
    ledger = stepped(plan, Base(client, service))
    estimated = [ledger.partial_sums[learner.number, 0] for learner in ledger.learners]
    episodes = [*ledger.filled_episodes()]
    given: list[Any] = []
    for step, advantage in zip(
        (episode["solver"][0].steps[0] for episode in episodes), estimated, strict=True
    ):
        tokens, length = [*step.prompt_ids, *step.response_ids], len(step.response_ids)
        own = {
            "logprobs": step.logprobs,
            "advantages": [advantage] * length,
            "mask": [1.0] * length,
        }
        before = [0.0] * (len(step.prompt_ids) - 1)
        tensors = {name: torch.tensor([*before, *values]) for name, values in own.items()}
        tensors["target_tokens"] = torch.tensor(tokens[1:])
        inputs = {name: tinker.TensorData.from_torch(tensor) for name, tensor in tensors.items()}
        given.append(
            tinker.Datum(model_input=tinker.ModelInput.from_ints(tokens[:-1]), loss_fn_inputs=inputs)
        )
    asyncio.run(metrics.incorporate_kl_penalty(given, Base(client, service).sampler, 0.3, 0.0))
    for datum, episode in zip(given, episodes, strict=True):
        step = episode["solver"][0].steps[0]
        theirs = datum.loss_fn_inputs["advantages"].to_torch()[-len(step.response_ids) :]
        assert theirs.tolist() == pytest.approx([*step.advantages], abs=2e-6)
