"""Losses, steps and checkpoints through the Tinker SDK's own client."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="needs the extra `local`")
tinker = pytest.importorskip("tinker")

from tinker import types  # noqa: E402

from rolegraph.local.launcher import LocalService  # noqa: E402
from tests.local.client import ADAM, PROMPT, datum, plain_logprobs, prompt, sampler, trainer  # noqa: E402

pytestmark = pytest.mark.service


def test_the_three_losses_are_the_formulas_of_the_api(
    client: tinker.ServiceClient, service: LocalService, model_dir: Path
) -> None:
    training = trainer(client, service)
    logprobs = plain_logprobs(model_dir, PROMPT)
    ratios = [math.exp(logprob + 2.0) for logprob in logprobs]
    clipped = [min(r, 1.2) for r in ratios]
    expected = {
        "cross_entropy": -sum(logprobs),
        "importance_sampling": -sum(ratios),
        "ppo": -sum(min(r, c) for r, c in zip(ratios, clipped, strict=True)),
    }
    for loss, value in expected.items():
        out = training.forward_backward([datum(loss, PROMPT)], loss).result()
        assert out.metrics["loss:sum"] == pytest.approx(value, rel=1e-4)
        assert out.loss_fn_outputs[0]["logprobs"].tolist() == pytest.approx(logprobs, abs=1e-4)


@pytest.mark.parametrize("loss", ["importance_sampling", "ppo"])
def test_a_positive_advantage_makes_its_tokens_likelier_and_a_negative_one_less_likely(
    client: tinker.ServiceClient, service: LocalService, loss: str
) -> None:
    for advantage in (1.0, -1.0):
        training = trainer(client, service)
        before = (
            training.forward([datum("cross_entropy", PROMPT)], "cross_entropy").result().metrics["loss:sum"]
        )
        on_policy = datum(loss, PROMPT, advantage)
        logprobs = training.forward([datum("cross_entropy", PROMPT)], "cross_entropy").result()
        on_policy.loss_fn_inputs["logprobs"] = logprobs.loss_fn_outputs[0]["logprobs"]
        training.forward_backward([on_policy], loss).result()
        training.optim_step(ADAM).result()
        after = (
            training.forward([datum("cross_entropy", PROMPT)], "cross_entropy").result().metrics["loss:sum"]
        )
        assert (after < before) == (advantage > 0)


def test_a_cross_entropy_fit_on_one_example_drives_its_loss_towards_zero(
    client: tinker.ServiceClient, service: LocalService
) -> None:
    training = trainer(client, service, rank=16)
    losses: list[float] = []
    for _ in range(25):
        step = training.forward_backward([datum("cross_entropy", PROMPT)], "cross_entropy")
        training.optim_step(types.AdamParams(learning_rate=1e-2)).result()
        losses.append(step.result().metrics["loss:sum"])
    assert losses[-1] < 0.05 < 1.0 < losses[0]


def test_gradients_gather_until_the_step_and_a_batch_is_the_sum_of_its_parts(
    client: tinker.ServiceClient, service: LocalService
) -> None:
    first, second = datum("cross_entropy", PROMPT), datum("cross_entropy", [7, 8, 9, 10, 11, 12, 13])
    norms: list[float] = []
    for batches in ([[first, second]], [[first], [second]]):
        training = trainer(client, service)
        for batch in batches:
            training.forward_backward(batch, "cross_entropy").result()
        norms.append(training.optim_step(ADAM).result().metrics["unclipped_grad_l2:mean"])
    assert norms[0] == pytest.approx(norms[1], rel=1e-4)


@pytest.mark.parametrize("weight", [math.nan, math.inf])
def test_a_loss_that_is_not_finite_drops_the_gradients_gathered_so_far(
    client: tinker.ServiceClient, service: LocalService, weight: float
) -> None:
    training, good = trainer(client, service), datum("cross_entropy", PROMPT)
    before = training.forward_backward([good], "cross_entropy").result().metrics["loss:sum"]
    with pytest.raises(tinker.TinkerError, match="the loss is not finite"):
        # The SDK would ask for a result that is no JSON again and again.
        training.forward_backward([datum("cross_entropy", PROMPT, weight)], "cross_entropy").result(60)
    assert training.optim_step(ADAM).result().metrics == {"unclipped_grad_l2:mean": 0.0}
    assert training.forward([good], "cross_entropy").result().metrics["loss:sum"] == before


@pytest.mark.parametrize("clip", [0.0, 1.0])
def test_a_gradient_that_is_not_finite_is_dropped_and_the_weights_stay(
    client: tinker.ServiceClient, service: LocalService, clip: float
) -> None:
    training, good = trainer(client, service), datum("cross_entropy", PROMPT)
    before = training.forward([good], "cross_entropy").result().metrics["loss:sum"]
    # 1e37 fits a 32-bit float, and its square in the gradient's norm does not.
    out = training.forward_backward([datum("cross_entropy", PROMPT, 1e37)], "cross_entropy").result()
    assert math.isfinite(out.metrics["loss:sum"])
    with pytest.raises(tinker.TinkerError, match="the gradient is not finite"):
        training.optim_step(types.AdamParams(learning_rate=1e-2, grad_clip_norm=clip)).result(60)
    assert training.forward([good], "cross_entropy").result().metrics["loss:sum"] == before
    training.forward_backward([good], "cross_entropy").result()
    assert 0 < training.optim_step(ADAM).result().metrics["unclipped_grad_l2:mean"] < math.inf


def test_two_training_clients_side_by_side_do_not_disturb_each_other(
    client: tinker.ServiceClient, service: LocalService
) -> None:
    def fit(training: tinker.TrainingClient, tokens: list[int]) -> float:
        step = training.forward_backward([datum("cross_entropy", tokens)], "cross_entropy")
        training.optim_step(ADAM).result()
        return step.result().metrics["loss:sum"]

    alone = trainer(client, service)
    expected = [fit(alone, PROMPT) for _ in range(4)]
    one, other = trainer(client, service), trainer(client, service, rank=4, seed=9)
    found: list[float] = []
    for _ in range(4):
        found.append(fit(one, PROMPT))
        fit(other, [20, 21, 22, 23])
    assert found == pytest.approx(expected, rel=1e-4)


def test_a_saved_state_brings_back_weights_and_optimizer(
    client: tinker.ServiceClient, service: LocalService
) -> None:
    def step(training: tinker.TrainingClient) -> float:
        out = training.forward_backward([datum("cross_entropy", PROMPT)], "cross_entropy")
        training.optim_step(ADAM).result()
        return out.result().metrics["loss:sum"]

    training = trainer(client, service)
    for _ in range(3):
        step(training)
    path = training.save_state("third").result().path
    straight_on = [step(training) for _ in range(3)]

    again = trainer(client, service, seed=77)
    again.load_state_with_optimizer(path).result()
    assert [step(again) for _ in range(3)] == pytest.approx(straight_on, rel=1e-4)

    created = client.create_training_client_from_state_with_optimizer(path).result()
    assert step(created) == pytest.approx(straight_on[0], rel=1e-4)


def test_fresh_sampling_weights_are_those_of_the_training_run_at_that_moment(
    client: tinker.ServiceClient, service: LocalService
) -> None:
    training = trainer(client, service, rank=16)
    for _ in range(6):
        training.forward_backward([datum("cross_entropy", PROMPT)], "cross_entropy")
        training.optim_step(types.AdamParams(learning_rate=3e-2)).result()
    fitted = training.save_weights_and_get_sampling_client().result()
    named = training.save_weights_for_sampler("fitted").result().path
    forward = training.forward([datum("cross_entropy", PROMPT)], "cross_entropy").result()
    expected = forward.loss_fn_outputs[0]["logprobs"].tolist()

    for _ in range(3):
        training.forward_backward([datum("cross_entropy", PROMPT, -1.0)], "cross_entropy")
        training.optim_step(types.AdamParams(learning_rate=3e-2)).result()
    assert fitted.compute_logprobs(prompt()).result()[1:] == pytest.approx(expected, abs=1e-4)
    from_disk = client.create_sampling_client(model_path=named).result()
    assert from_disk.compute_logprobs(prompt()).result()[1:] == pytest.approx(expected, abs=1e-4)
    base = sampler(client, service).compute_logprobs(prompt()).result()[1:]
    assert base != pytest.approx(expected, abs=0.5)


def test_an_update_of_one_policy_leaves_the_other_s_numbers_as_they_were_to_the_bit(
    service: LocalService,
) -> None:
    """Use one base model in two sessions; one samples while the other trains."""

    def train(policy: tinker.TrainingClient, tokens: list[int]) -> None:
        policy.forward_backward([datum("cross_entropy", tokens)], "cross_entropy").result()
        policy.optim_step(types.AdamParams(learning_rate=1e-2)).result()

    def numbers(policy: tinker.TrainingClient, weights: tinker.SamplingClient) -> list[list[float | None]]:
        forward = policy.forward([datum("cross_entropy", PROMPT)], "cross_entropy").result()
        fresh = policy.save_weights_and_get_sampling_client().result()
        drawn = fresh.sample(prompt(), 1, types.SamplingParams(max_tokens=8, seed=3)).result().sequences[0]
        return [
            forward.loss_fn_outputs[0]["logprobs"].tolist(),
            weights.compute_logprobs(prompt()).result(),
            fresh.compute_logprobs(prompt()).result(),
            [*map(float, drawn.tokens)],
            drawn.logprobs or [],
        ]

    clients = [tinker.ServiceClient(base_url=service.base_url, api_key=service.api_key) for _ in range(2)]
    one, other = (trainer(client, service, rank, rank) for client, rank in zip(clients, (8, 4), strict=True))
    for policy in (one, other):
        train(policy, PROMPT)
    weights = other.save_weights_and_get_sampling_client().result()
    before, ones = numbers(other, weights), numbers(one, weights)
    meanwhile = [weights.sample(prompt(), 4, types.SamplingParams(max_tokens=64, seed=n)) for n in range(4)]
    for tokens in ([20, 21, 22, 23], PROMPT, [7, 8, 9]):
        train(one, tokens)
    drawn = [[sequence.tokens for sequence in future.result().sequences] for future in meanwhile]
    alone = [weights.sample(prompt(), 4, types.SamplingParams(max_tokens=64, seed=n)) for n in range(4)]
    assert drawn == [[sequence.tokens for sequence in future.result().sequences] for future in alone]
    assert numbers(other, weights) == before
    assert numbers(one, weights)[0] != ones[0]
