"""The probes of a Tinker service, in the order of the table: functions that a decorator adds to `PROBES`."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, cast

import numpy as np
import tinker

from rolegraph.engine.errors import first_line
from rolegraph.engine.models.tinker import NO_RETRIES, said
from rolegraph.engine.models.tinker_sdk import close
from rolegraph.engine.training.probe_findings import (
    TOLERANCE,
    ProbeFinding,
    agreement,
    coefficients,
    compared,
    thresholds,
    tiled,
)
from rolegraph.engine.training.probes import Probe, ServiceProbe
from rolegraph.engine.training.service_meter import ALIKE, LOWER_RANK, RANK, Pass, make_datum, value_of

_SHORT = 8
"""Tokens of the short datum, the beginning of the long one."""
_RATIOS = (0.5, 0.85, 1.0, 1.15, 1.5, 6.0)
_SIGNS = (1.0, 1.0, -1.0, 1.0, -1.0)
_CLIPS = {"ppo": (0.8, 1.2), "cispo": (0.0, 4.0)}
"""Default thresholds of hosted Tinker."""
_OTHER_CLIPS = ((0.8, 1.2), (0.9, 1.1), (0.0, 4.0), (0.0, 5.0), (0.0, np.inf))
_BETA = 0.05
PROBES: list[Probe] = []
_Find = Callable[[ServiceProbe], ProbeFinding]


def _probe(name: str, expected: str, **differing: Any) -> Callable[[_Find], _Find]:
    """Return a decorator that adds a function to the probes, with the traits of a service that differs."""

    def add(find: _Find) -> _Find:
        PROBES.append(Probe(name, expected, find, differing))
        return find

    return add


@_probe("models", "the model is offered, with its context length")
def _models(probe: ServiceProbe) -> ProbeFinding:
    model, lengths = probe.meter.model, probe.session.lengths
    seen = f"{model}, {lengths.get(model) or 'unknown'} tokens, one of {len(lengths)}"
    return ProbeFinding(f"{seen}; SDK {tinker.__version__}", lengths.get(model) is not None)


@_probe("sampled log-probabilities", "those that compute_logprobs gives")
def _recomputed(probe: ServiceProbe) -> ProbeFinding:
    found = np.array(probe.meter.answer.logprobs or ())
    return agreement(found, probe.meter.sampler_scores(probe.meter.base)[-len(probe.meter.answer.tokens) :])


@_probe("leading None", "an entry for each token, None for the first", has_leading_none=False)
def _leading_none(probe: ServiceProbe) -> ProbeFinding:
    found, tokens = probe.meter.entries(probe.meter.base), len(probe.meter.text)
    first = "None" if found[0] is None else f"{found[0]:.3f}"
    seen = f"{len(found)} entries for {tokens} tokens, the first is {first}"
    return ProbeFinding(seen, len(found) == tokens and found[0] is None)


@_probe("seed", "one seed gives the same tokens, another gives others", has_seed=False)
def _seed(probe: ServiceProbe) -> ProbeFinding:
    meter = probe.meter
    one, same, other = ([*meter.sampled(meter.base, seed=seed)[0].tokens] for seed in (7, 7, 8))
    words = {True: "equal", False: "different"}
    return ProbeFinding(
        f"one seed: {words[one == same]}; two seeds: {words[one == other]}", one == same and one != other
    )


@_probe("trainer's log-probabilities", "those of the sampler")
def _trainer_agrees(probe: ServiceProbe) -> ProbeFinding:
    return agreement(probe.meter.now, probe.meter.sampler_scores(probe.meter.base))


@_probe("loss reported", "a pass has the metric loss:sum", reports_loss=False)
def _loss_reported(probe: ServiceProbe) -> ProbeFinding:
    loss, data, _ = probe.meter.on_policy(probe.meter.ones)
    output = value_of(probe.meter.trainer.forward([*data], cast("Any", loss)))
    return ProbeFinding(", ".join(sorted(output.metrics)) or "no metrics", "loss:sum" in output.metrics)


@_probe("optimizer settings", "with a large eps, a step is in proportion to the gradient")
def _settings(probe: ServiceProbe) -> ProbeFinding:
    probe.meter.choose_step()
    once, twice = (probe.meter.measured(factor * probe.meter.ones) for factor in (1, 2))
    found = compared(twice, 2 * once)
    probe.is_plain = found.ok
    return found


@_probe("cross_entropy", "the gradient of -Σ weight · log p")
def _cross_entropy(probe: ServiceProbe) -> ProbeFinding:
    weights = tiled((0.5, 1.0, 2.0), len(probe.unit))
    data = [make_datum(probe.meter.text, weights=weights)]
    change = probe.meter.effect(weights, Pass("cross_entropy", data))
    return compared(change, probe.meter.measured(weights))


def _closed_form(
    probe: ServiceProbe, loss: str, settings: Mapping[str, float] | None, *constants: float
) -> ProbeFinding:
    """Compare a loss off-policy with the measure whose gradient is the formula of the loss."""
    count = len(probe.unit)
    ratios, advantages = tiled(_RATIOS, count), tiled(_SIGNS, count)
    low, high = (*constants, 0.0, 0.0)[:2]
    expected = coefficients(loss, ratios, advantages, low, high)
    inputs = {"sequence_ratio_mask": np.ones(count)} if loss == "gspo" else {}
    data = [probe.meter.rated(advantages, ratios, inputs)]
    found = probe.meter.effect(expected, Pass(loss, data, settings))
    return compared(found, probe.meter.measured(expected))


@_probe("importance_sampling", "the gradient of -Σ p/q · advantage")
def _importance_sampling(probe: ServiceProbe) -> ProbeFinding:
    return _closed_form(probe, "importance_sampling", None)


@_probe("ppo", "the gradient of its formula, thresholds sent")
def _ppo(probe: ServiceProbe) -> ProbeFinding:
    return _closed_form(probe, "ppo", thresholds(0.7, 1.3), 0.7, 1.3)


@_probe("ppo defaults", "0.8 to 1.2")
def _ppo_defaults(probe: ServiceProbe) -> ProbeFinding:
    return _defaults(probe, "ppo")


@_probe("cispo", "the gradient of its formula, thresholds sent")
def _cispo(probe: ServiceProbe) -> ProbeFinding:
    return _closed_form(probe, "cispo", thresholds(0.7, 1.3), 0.7, 1.3)


@_probe("cispo defaults", "0 to 4")
def _cispo_defaults(probe: ServiceProbe) -> ProbeFinding:
    return _defaults(probe, "cispo")


@_probe("gspo", "the gradient of its formula, thresholds sent")
def _gspo(probe: ServiceProbe) -> ProbeFinding:
    return _closed_form(probe, "gspo", thresholds(0.7, 1.2), 0.7, 1.2)


def _defaults(probe: ServiceProbe, loss: str) -> ProbeFinding:
    """Find the thresholds of a loss that explain its gradient without settings."""
    usual = _CLIPS[loss]
    for low, high in (usual, *_OTHER_CLIPS):
        if _closed_form(probe, loss, None, low, high).ok:
            return ProbeFinding(f"{low:g} to {high:g}", (low, high) == usual)
    return ProbeFinding("other thresholds", False)


@_probe("dro", "the gradient of its formula, beta sent")
def _dro(probe: ServiceProbe) -> ProbeFinding:
    return _closed_form(probe, "dro", {"beta": 0.3}, 0.3)


@_probe("dro defaults", f"beta {_BETA}")
def _dro_defaults(probe: ServiceProbe) -> ProbeFinding:
    return _closed_form(probe, "dro", None, _BETA)


@_probe("advantage 0", "a datum of advantage 0 adds nothing", takes_means=True)
def _zero(probe: ServiceProbe) -> ProbeFinding:
    ones = np.ones(len(probe.unit))
    return compared(probe.meter.effect(ones, probe.meter.on_policy(ones, 0 * ones)), probe.unit)


@_probe("datum twice", "a datum twice doubles the gradient", takes_means=True)
def _twice(probe: ServiceProbe) -> ProbeFinding:
    ones = np.ones(len(probe.unit))
    return compared(probe.meter.effect(2 * ones, probe.meter.on_policy(ones, ones)), 2 * probe.unit)


@_probe("long datum", "tokens count as much in a long datum as in a short one", takes_means=True)
def _long(probe: ServiceProbe) -> ProbeFinding:
    ones = np.ones(len(probe.unit))
    rest = np.where(np.arange(len(ones)) < _SHORT, 0.0, ones)
    return compared(probe.unit, probe.meter.measured(ones[:_SHORT]) + probe.meter.measured(rest))


@_probe("two passes", "the gradients of passes before a step are added", accumulates=False)
def _two_passes(probe: ServiceProbe) -> ProbeFinding:
    count = len(probe.unit)
    halves = [np.where((np.arange(count) < count // 2) == first, 1.0, 0.0) for first in (True, False)]
    found = probe.meter.effect(np.ones(count), *(probe.meter.on_policy(half) for half in halves))
    return compared(found, probe.of_two * probe.unit)


@_probe("mixed losses", "each pass has its own loss and settings", merges_losses=True)
def _mixed(probe: ServiceProbe) -> ProbeFinding:
    data = [probe.meter.rated(np.ones(len(probe.unit)), 2.0)]
    # All tokens of the second pass are clipped, so that it adds nothing.
    passes = Pass("importance_sampling", data), Pass("ppo", data, thresholds(0.9, 1.1))
    expected = probe.of_two * 2 * probe.meter.ones
    return compared(probe.meter.effect(expected, *passes), probe.meter.measured(expected))


@_probe("gradient clipping", "grad_clip_norm limits the step", has_clip_norm=False)
def _clipping(probe: ServiceProbe) -> ProbeFinding:
    clipped = probe.meter.plain_adam(1e-6)
    found = probe.meter.change(probe.meter.on_policy(np.ones(len(probe.unit))), adam=clipped)
    ratio = float(np.linalg.norm(found) / np.linalg.norm(probe.unit))
    return ProbeFinding(f"a norm of 1e-6 leaves {ratio:.2f} × the step", ratio < TOLERANCE)


@_probe("ranks", f"a step of Adam moves ranks {LOWER_RANK} and {RANK} alike", has_rank_scaling=True)
def _ranks(probe: ServiceProbe) -> ProbeFinding:
    meter = probe.meter
    one = meter.change(meter.on_policy(meter.ones), adam=ALIKE)
    before = meter.scores(meter.other)
    meter.step(meter.on_policy(meter.ones), client=meter.other, adam=ALIKE)
    ratio = float(np.linalg.norm(one) / np.linalg.norm(meter.scores(meter.other) - before))
    seen = f"rank {RANK} moves {ratio:.2f} × as far as rank {LOWER_RANK}"
    return ProbeFinding(seen, 2 / 3 < ratio < 3 / 2)


@_probe("adapters at once", "a step moves no other adapter", has_several_adapters=False)
def _adapters(probe: ServiceProbe) -> ProbeFinding:
    meter = probe.meter
    before, moved = meter.scores(meter.other), meter.measured(meter.ones)
    apart = float(np.abs(meter.scores(meter.other) - before).max() / np.abs(moved).max())
    return ProbeFinding(f"the other moves {apart:.2f} × as far", apart < TOLERANCE)


@_probe("old samplers", "old weights stay old; training is unmoved", keeps_old_samplers=False)
def _old_samplers(probe: ServiceProbe) -> ProbeFinding:
    meter = probe.meter
    old, before = meter.sampler(), meter.now
    at_first = meter.sampler_scores(old)
    meter.step(meter.on_policy(3 * meter.ones))
    trained, new = meter.scores(), meter.sampler()
    sampled = meter.sampler_scores(new)
    again = meter.sampler_scores(old)
    now = meter.scores()
    step = float(np.abs(trained - before).max())
    figures = {
        "new weights": np.abs(sampled - at_first - (trained - before)),
        "old weights": np.abs(again - at_first),
        "training": np.abs(now - trained),
    }
    shares = {name: float(values.max()) / step for name, values in figures.items()}
    wrong = [name for name, share in shares.items() if share > 3 * TOLERANCE]
    seen = ", ".join(f"{name} {share:.2f}" for name, share in shares.items())
    return ProbeFinding(f"errors relative to the step: {seen}", not wrong)


@_probe("resume", "a client from a saved state goes on with the same step", restores_optimizer=False)
def _resume(probe: ServiceProbe) -> ProbeFinding:
    meter = probe.meter
    adam = tinker.AdamParams(learning_rate=1e-4)
    meter.step(meter.on_policy(meter.ones), adam=adam)
    path = value_of(meter.trainer.save_state("rolegraph-doctor-resume")).path
    saved, signs = meter.scores(), tiled(_SIGNS, len(meter.ones))
    meter.step(meter.on_policy(signs), adam=adam)
    unbroken = meter.scores() - saved
    note = ""
    try:
        client = value_of(probe.session.service.create_training_client_from_state_with_optimizer(path))
    except Exception as error:  # the SDK raises ValueError, RuntimeError and its own family alike
        note = f"only into a client that exists ({first_line(ValueError(said(error)))}): "
        probe.traits = replace(probe.traits, restores_without_client=False)
        client = meter.resumed(path)
    meter.step(meter.on_policy(signs), client=client, adam=adam)
    seen, ok = compared(meter.scores(client) - saved, unbroken)
    return ProbeFinding(note + seen, ok)


@_probe("new session", "a saved sampler can be opened by another session")
def _new_session(probe: ServiceProbe) -> ProbeFinding:
    meter, session = probe.meter, probe.session
    meter.step(meter.on_policy(meter.ones))
    path = value_of(meter.trainer.save_weights_for_sampler("rolegraph-doctor-sampler")).path
    service = tinker.ServiceClient(base_url=session.url, api_key=session.key)
    try:
        client = value_of(service.create_sampling_client(model_path=path, retry_config=NO_RETRIES))
        return agreement(meter.sampler_scores(client), meter.scores())
    finally:
        close(service, "success")


@_probe("speed", "any")
def _speed(probe: ServiceProbe) -> ProbeFinding:
    meter, start = probe.meter, time.monotonic()
    sampled = sum(len(each.tokens) for each in meter.sampled(meter.base, count=16, length=64))
    middle = time.monotonic()
    passed = meter.on_policy(*[meter.ones] * 16)
    meter.step(passed)
    trained, end = 16 * len(meter.ones), time.monotonic()
    sampling, training = sampled / (middle - start), trained / (end - middle)
    return ProbeFinding(f"{sampling:,.0f} tokens/s sampled, {training:,.0f} trained")
