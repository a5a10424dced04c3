"""Passes for services that differ from the hosted one."""

# torch leaves parts of its types unknown.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

import rolegraph as rg

torch = pytest.importorskip("torch")

from rolegraph.engine.errors import UsageError  # noqa: E402
from rolegraph.engine.models.service_traits import ServiceTraits, unmet_needs  # noqa: E402
from rolegraph.engine.records import MAIN, Step  # noqa: E402
from rolegraph.engine.training.policies.batches import (  # noqa: E402
    LossPass,
    RoleBatch,
    StepAdvantages,
    build_datum,
    check_service,
    loss_passes,
)
from rolegraph.engine.vocabulary import ItemCall, losses  # noqa: E402
from rolegraph.local.service.losses import LOSSES, TokenScores  # noqa: E402

MEANS = ServiceTraits(losses=("importance_sampling", "ppo", "cispo"), takes_means=True)
URL = "https://tinker.example"


def batch(role: str, loss: str, *answers: Sequence[float]) -> RoleBatch:
    """Return a batch with a datum for each answer, given as its tokens' sampling log-probabilities."""
    data = []
    for place, logprobs in enumerate(answers):
        advantages = [0.5 - place] * len(logprobs)
        step = Step([3] * (place + 2), [5] * len(logprobs), list(logprobs))
        data.append(build_datum([StepAdvantages(step, advantages, role)], loss, 1.0))
    return RoleBatch(
        role, losses.build(ItemCall(loss)), [d for d, _ in data], [s for _, s in data], steps=len(data)
    )


def gradients(passes: Sequence[LossPass], *, means: bool) -> list[list[float]]:
    """Return the gradient of each datum's log-probabilities at a service that takes sums, or means."""
    found: list[list[float]] = []
    total = sum(len(each.data) for each in passes)
    for each in passes:
        for datum in each.data:
            inputs = {name: torch.tensor(value.tolist()) for name, value in datum.loss_fn_inputs.items()}
            length = len(inputs["target_tokens"])
            logprobs = torch.linspace(-2.0, -0.5, length, requires_grad=True)
            loss = LOSSES[each.loss].compute(TokenScores(logprobs, inputs, [length]), each.settings)
            (loss / (length * total) if means else loss).backward()
            assert logprobs.grad is not None
            found.append(logprobs.grad.tolist())
    return found


@pytest.mark.parametrize("second", ["importance_sampling", "cispo", "cross_entropy"])
def test_a_service_that_takes_means_gets_the_gradient_of_sums(second: str) -> None:
    batches = [
        batch("solver", "ppo", [-1.0, -2.0], [-0.5, -1.5, -1.0]),
        batch("judge", second, [-1.2, -0.7, -0.9, -1.1]),
    ]
    sums = gradients(loss_passes(batches, ServiceTraits()), means=False)
    restored = gradients(loss_passes(batches, MEANS), means=True)
    for one, other in zip(sums, restored, strict=True):
        assert other == pytest.approx(one, abs=1e-6)
    plain = gradients(loss_passes(batches, ServiceTraits()), means=True)
    assert plain[0] != pytest.approx(sums[0], abs=1e-3)


@pytest.mark.parametrize(
    ("traits", "words", "message"),
    [
        (ServiceTraits(keeps_old_samplers=False), ["train.staleness=1"], "set train.staleness to 0"),
        (ServiceTraits(losses=("ppo",)), [], "the loss importance_sampling of judge"),
        (ServiceTraits(accumulates=False), [], "give each of solver, judge a policy of its own"),
    ],
)
def test_a_service_that_would_train_otherwise_is_refused(
    traits: ServiceTraits, words: list[str], message: str
) -> None:
    plan = rg.load("solver_judge", *words).plan
    check_service(plan, MAIN, URL, ServiceTraits())
    check_service(rg.load("solver_judge", "roles.judge.loss=cross_entropy").plan, MAIN, URL, MEANS)
    with pytest.raises(UsageError, match=f"{URL} .*{message}"):
        check_service(plan, MAIN, URL, traits)


@pytest.mark.parametrize(
    ("trait", "words", "message", "severity"),
    [
        ("has_stop", ["sampling.stop=[END]"], "takes no `stop`", "error"),
        ("has_seed", ["sampling.seed=3"], "without a seed", "warning"),
        ("has_clip_norm", ["train.gradient_clip=0.5"], "does not clip gradients, at 0.5", "warning"),
        ("keeps_old_samplers", ["train.staleness=2"], "it is 2", "error"),
    ],
)
def test_a_backend_is_asked_what_a_plan_needs(
    trait: str, words: list[str], message: str, severity: str
) -> None:
    plain, plan = (rg.load("solver_judge", "train.gradient_clip=0", *it).plan for it in ([], words))
    lacking = replace(ServiceTraits(), **{trait: False})
    found = [*unmet_needs(plan, lacking)]
    assert message in found[0].message
    assert {it.severity for it in found} == {severity}
    assert [*unmet_needs(plan, ServiceTraits())] == [*unmet_needs(plain, lacking)] == []


def test_the_record_of_a_service_is_kept_for_later_commands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert ServiceTraits.of(URL, "tiny") == ServiceTraits()
    file = MEANS.save(URL, "tiny")
    assert ServiceTraits.of(f"{URL}/", "tiny") == MEANS
    assert ServiceTraits.of(URL, "other") == ServiceTraits()
    file.write_text("[]")
    with pytest.raises(UsageError, match="is no record of a service"):
        ServiceTraits.of(URL, "tiny")
