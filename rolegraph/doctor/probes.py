"""Probe of a Tinker service: a row for each behaviour, compared with that of hosted Tinker.

The probes are functions that a decorator adds to `PROBES`, in the order of the table;
`rolegraph.doctor.meter` has the measurements and the method of measuring gradients.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, Literal, NamedTuple, cast

import numpy as np

from rolegraph.doctor.fields import CHECKPOINTS, OPTIONAL, SAMPLING
from rolegraph.doctor.meter import (
    ALIKE,
    LOWER_RANK,
    RANK,
    TIMEOUT_SECONDS,
    TOLERANCE,
    Pass,
    Probe,
    ProbeFinding,
    ServiceMeter,
    agreement,
    compared,
    is_refusal,
    make_datum,
    value_of,
)
from rolegraph.engine.errors import first_line
from rolegraph.engine.models.service_traits import ServiceTraits
from rolegraph.engine.models.tinker import NO_RETRIES, TinkerSession, service_message
from rolegraph.engine.models.tinker_sdk import close, tinker
from rolegraph.engine.vocabulary import Floats

Status = Literal["ok", "differs", "failed", "not offered"]
_OPTIONAL = ("dro", "dro defaults", "gspo", *OPTIONAL)
"""Names of probes whose behaviour a service may refuse."""
_SHORT = 8
"""Number of tokens of the short datum, which is the beginning of the long datum."""
_RATIOS = (0.5, 0.85, 1.0, 1.15, 1.5, 6.0)
_SIGNS = (1.0, 1.0, -1.0, 1.0, -1.0)
_CLIPS = ((0.8, 1.2), (0.9, 1.1), (0.0, 4.0), (0.0, 5.0), (0.0, np.inf))
"""(low, high) clip thresholds that services use by default."""


class ProbeRow(NamedTuple):
    """Result of one probe of a service: behaviour expected and found, for the table of `doctor`."""

    name: str
    expected: str
    """Behaviour of hosted Tinker."""
    seen: str
    """Behaviour of this service, or its error message."""
    status: Status


@dataclass(frozen=True, slots=True)
class ProbeReport:
    """Findings of the probes of a Tinker service, or of an endpoint of OpenAI's API."""

    url: str
    model: str
    rows: tuple[ProbeRow, ...]
    seconds: float
    traits: ServiceTraits | None = None
    """Traits of a Tinker service; None for an endpoint."""
    left_out: tuple[str, ...] = ()
    """Fields that a run at an endpoint will leave out."""
    recorded: bool = False
    """True if the traits were written for `train`, as they are where the service still samples at the end."""

    @property
    def ok(self) -> bool:
        """True if no probe failed, and none of a Tinker service differs."""
        bad_statuses = ("failed",) if self.traits is None else ("failed", "differs")
        return all(row.status not in bad_statuses for row in self.rows)


class ServiceProbe(ServiceMeter):
    """Measurements of one model of a service, and the traits found so far. The methods block."""

    def __init__(self, session: TinkerSession, model: str) -> None:
        super().__init__(session, model)
        self.traits = ServiceTraits(sdk_version=tinker.__version__)
        """Traits found so far."""
        self.is_plain = False
        """True if a step is proportional to the gradient."""

    def rows(self) -> Iterator[ProbeRow]:
        """Run all probes and yield the row of each.

        A probe that fails does not stop the others, unless the service no longer answers.
        """
        failure = ""
        for probe in PROBES:
            observation, status = self._outcome(probe) if not failure else (failure, "failed")
            if status == "failed" and observation.startswith("no answer"):
                failure = observation
            if status == "differs":
                self.traits = replace(self.traits, **probe.differing)
            if status != "ok":
                losses = tuple(loss for loss in self.traits.losses if loss != probe.name)
                self.traits = replace(self.traits, losses=losses)
            yield ProbeRow(probe.name, probe.expected, first_line(ValueError(observation)), status)

    def still_samples(self) -> bool:
        """Return True if the service still answers a request, because the traits of a broken service are
        unknown."""
        try:
            self.sampled(self.base, seed=0)
        except Exception:  # the SDK raises ValueError, RuntimeError and its own family alike
            return False
        return True

    def _outcome(self, probe: Probe) -> tuple[str, Status]:
        try:
            observation, ok = probe.find(self)
            return observation, "ok" if ok else "differs"
        except TimeoutError:
            return f"no answer in {TIMEOUT_SECONDS:.0f} s", "failed"
        except Exception as error:  # the SDK raises ValueError, RuntimeError and its own family alike
            self.recover()
            is_refused = probe.name in _OPTIONAL and is_refusal(error)
            return service_message(error), "not offered" if is_refused else "failed"

    @cached_property
    def unit(self) -> Floats:
        """Change of the text's log-probabilities [T] by a step with all advantages 1, the unit of other
        probes.

        Raises:
            RuntimeError: A step is not proportional to the gradient.
        """
        if not self.is_plain:
            raise RuntimeError("cannot be measured: a step does not follow the size of the gradient")
        return self.measured(self.ones)

    @property
    def of_two(self) -> float:
        """Factor of a step with two datums, relative to their summed gradients: 0.5 if the service averages,
        else 1."""
        return 0.5 if self.traits.takes_means else 1.0


PROBES: list[Probe] = []
_Find = Callable[[ServiceProbe], ProbeFinding]


def _probe(name: str, expected: str, **differing: Any) -> Callable[[_Find], _Find]:
    """Return a decorator that registers a probe function.

    Args:
        name: Name of the probe.
        expected: Behaviour of hosted Tinker.
        differing: Traits to record if the behaviour differs.
    """

    def add(find: _Find) -> _Find:
        PROBES.append(Probe(name, expected, find, differing))
        return find

    return add


@_probe("models", "the model is offered, with its context length")
def _models(probe: ServiceProbe) -> ProbeFinding:
    model, lengths = probe.model, probe.session.lengths
    description = f"{model}, {lengths.get(model) or 'unknown'} tokens, one of {len(lengths)}"
    return ProbeFinding(f"{description}; SDK {tinker.__version__}", lengths.get(model) is not None)


@_probe("sampled log-probabilities", "those that compute_logprobs gives")
def _recomputed(probe: ServiceProbe) -> ProbeFinding:
    logprobs = np.array(probe.answer.logprobs or ())
    return agreement(logprobs, probe.sampler_scores(probe.base)[-len(probe.answer.tokens) :])


@_probe("leading None", "an entry for each token, None for the first", has_leading_none=False)
def _leading_none(probe: ServiceProbe) -> ProbeFinding:
    entries, token_count = probe.entries(probe.base), len(probe.text)
    first_entry = "None" if entries[0] is None else f"{entries[0]:.3f}"
    description = f"{len(entries)} entries for {token_count} tokens, the first is {first_entry}"
    return ProbeFinding(description, len(entries) == token_count and entries[0] is None)


@_probe("seed", "one seed gives the same tokens, another gives others", has_seed=False)
def _seed(probe: ServiceProbe) -> ProbeFinding:
    tokens_7, repeated, tokens_8 = ([*probe.sampled(probe.base, seed=seed)[0].tokens] for seed in (7, 7, 8))
    words = {True: "equal", False: "different"}
    description = f"one seed: {words[tokens_7 == repeated]}; two seeds: {words[tokens_7 == tokens_8]}"
    return ProbeFinding(description, tokens_7 == repeated and tokens_7 != tokens_8)


PROBES.extend(SAMPLING)


@_probe("trainer's log-probabilities", "those of the sampler")
def _trainer_agrees(probe: ServiceProbe) -> ProbeFinding:
    return agreement(probe.now, probe.sampler_scores(probe.base))


@_probe("loss reported", "a pass has the metric loss:sum", reports_loss=False)
def _loss_reported(probe: ServiceProbe) -> ProbeFinding:
    loss, data, _ = probe.on_policy(probe.ones)
    output = value_of(probe.trainer.forward([*data], cast("Any", loss)))
    return ProbeFinding(", ".join(sorted(output.metrics)) or "no metrics", "loss:sum" in output.metrics)


@_probe("optimizer settings", "with a large eps, a step is in proportion to the gradient")
def _settings(probe: ServiceProbe) -> ProbeFinding:
    probe.choose_step()
    single_effect, double_effect = (probe.measured(factor * probe.ones) for factor in (1, 2))
    finding = compared(double_effect, 2 * single_effect)
    probe.is_plain = finding.ok
    return finding


@_probe("cross_entropy", "the gradient of -Σ weight · log p")
def _cross_entropy(probe: ServiceProbe) -> ProbeFinding:
    weights = np.resize((0.5, 1.0, 2.0), len(probe.unit))
    change = probe.effect(weights, Pass("cross_entropy", [make_datum(probe.text, weights=weights)]))
    return compared(change, probe.measured(weights))


def _coefficients(loss: str, ratios: Floats, advantages: Floats, low: float, high: float) -> Floats:
    """Return the expected coefficient [T] of each token in the gradient of a loss.

    Args:
        loss: Name of the loss.
        ratios: P / q of each token.
        advantages: Advantage of each token.
        low: Lower clip threshold; for `dro`, beta.
        high: Upper clip threshold.
    """
    match loss:
        case "ppo":
            is_clipped = (advantages > 0) & (ratios > high) | (advantages < 0) & (ratios < low)
            return np.where(is_clipped, 0.0, ratios * advantages)
        case "gspo":
            sequence_ratio = np.full(len(ratios), np.exp(np.log(ratios).mean()))
            return _coefficients("ppo", sequence_ratio, advantages, low, high)
        case "cispo":
            return np.clip(ratios, low, high) * advantages
        case "dro":
            return advantages - low * np.log(ratios)
        case _:
            return ratios * advantages


def _thresholds(low: float, high: float) -> Mapping[str, float]:
    return {"clip_low_threshold": low, "clip_high_threshold": high}


def _closed_form(
    probe: ServiceProbe,
    loss: str,
    settings: Mapping[str, float] | None = None,
    low: float = 0.0,
    high: float = 0.0,
) -> ProbeFinding:
    """Measure a loss on off-policy data and compare its effect with that of the loss's formula."""
    ratios, advantages = np.resize(_RATIOS, len(probe.unit)), np.resize(_SIGNS, len(probe.unit))
    expected = _coefficients(loss, ratios, advantages, low, high)
    inputs = {"sequence_ratio_mask": probe.ones} if loss == "gspo" else {}
    change = probe.effect(expected, Pass(loss, [probe.rated(advantages, ratios, **inputs)], settings))
    return compared(change, probe.measured(expected))


def _defaults(probe: ServiceProbe, loss: str, usual: tuple[float, float]) -> ProbeFinding:
    """Find the clip thresholds that a service uses for a loss if none are sent; ok if they are the usual
    thresholds."""
    for low, high in (usual, *_CLIPS):
        if _closed_form(probe, loss, None, low, high).ok:
            return ProbeFinding(f"{low:g} to {high:g}", (low, high) == usual)
    return ProbeFinding("other thresholds", False)


def _probe_losses() -> None:
    """Register the probes of losses with a probability ratio, once with thresholds sent and once with the
    defaults."""
    formula = "the gradient of its formula, thresholds sent"

    def sent(loss: str, low: float, high: float) -> _Find:
        return partial(_closed_form, loss=loss, settings=_thresholds(low, high), low=low, high=high)

    _probe("importance_sampling", "the gradient of -Σ p/q · advantage")(
        partial(_closed_form, loss="importance_sampling")
    )
    _probe("ppo", formula)(sent("ppo", 0.7, 1.3))
    _probe("ppo defaults", "0.8 to 1.2")(partial(_defaults, loss="ppo", usual=(0.8, 1.2)))
    _probe("cispo", formula)(sent("cispo", 0.7, 1.3))
    _probe("cispo defaults", "0 to 4")(partial(_defaults, loss="cispo", usual=(0.0, 4.0)))
    _probe("gspo", formula)(sent("gspo", 0.7, 1.2))
    _probe("dro", "the gradient of its formula, beta sent")(
        partial(_closed_form, loss="dro", settings={"beta": 0.3}, low=0.3)
    )
    _probe("dro defaults", "beta 0.05")(partial(_closed_form, loss="dro", low=0.05))


_probe_losses()


@_probe("advantage 0", "a datum of advantage 0 adds nothing", takes_means=True)
def _zero(probe: ServiceProbe) -> ProbeFinding:
    unit, ones = probe.unit, probe.ones
    return compared(probe.effect(ones, probe.on_policy(ones, 0 * ones)), unit)


@_probe("datum twice", "a datum twice doubles the gradient", takes_means=True)
def _twice(probe: ServiceProbe) -> ProbeFinding:
    unit, ones = probe.unit, probe.ones
    return compared(probe.effect(2 * ones, probe.on_policy(ones, ones)), 2 * unit)


@_probe("long datum", "tokens count as much in a long datum as in a short one", takes_means=True)
def _long(probe: ServiceProbe) -> ProbeFinding:
    unit, ones = probe.unit, probe.ones
    rest_ones = np.where(np.arange(len(ones)) < _SHORT, 0.0, ones)
    return compared(unit, probe.measured(ones[:_SHORT]) + probe.measured(rest_ones))


@_probe("two passes", "the gradients of passes before a step are added", accumulates=False)
def _two_passes(probe: ServiceProbe) -> ProbeFinding:
    unit, in_first_half = probe.unit, np.arange(len(probe.ones)) < len(probe.ones) // 2
    halves = (probe.on_policy(np.where(half, 1.0, 0.0)) for half in (in_first_half, ~in_first_half))
    return compared(probe.effect(probe.ones, *halves), probe.of_two * unit)


@_probe("mixed losses", "each pass has its own loss and settings", merges_losses=True)
def _mixed(probe: ServiceProbe) -> ProbeFinding:
    data = [probe.rated(np.ones(len(probe.unit)), 2.0)]
    # All tokens of the second pass are clipped, so that it adds nothing.
    passes = Pass("importance_sampling", data), Pass("ppo", data, _thresholds(0.9, 1.1))
    expected = probe.of_two * 2 * probe.ones
    return compared(probe.effect(expected, *passes), probe.measured(expected))


@_probe("gradient clipping", "grad_clip_norm limits the step", has_clip_norm=False)
def _clipping(probe: ServiceProbe) -> ProbeFinding:
    size = np.linalg.norm(probe.unit)
    change = probe.change(probe.on_policy(probe.ones), adam=probe.plain_adam(1e-6))
    ratio = float(np.linalg.norm(change) / size)
    return ProbeFinding(f"a norm of 1e-6 leaves {ratio:.2f} × the step", ratio < TOLERANCE)


@_probe("ranks", f"a step of Adam moves ranks {LOWER_RANK} and {RANK} alike", has_rank_scaling=True)
def _ranks(probe: ServiceProbe) -> ProbeFinding:
    change = probe.change(probe.on_policy(probe.ones), adam=ALIKE)
    old_logprobs = probe.scores(probe.other)
    probe.step(probe.on_policy(probe.ones), client=probe.other, adam=ALIKE)
    ratio = float(np.linalg.norm(change) / np.linalg.norm(probe.scores(probe.other) - old_logprobs))
    description = f"rank {RANK} moves {ratio:.2f} × as far as rank {LOWER_RANK}"
    return ProbeFinding(description, 2 / 3 < ratio < 3 / 2)


@_probe("adapters at once", "a step moves no other adapter", has_several_adapters=False)
def _adapters(probe: ServiceProbe) -> ProbeFinding:
    old_scores, own_change = probe.scores(probe.other), probe.measured(probe.ones)
    relative_change = float(np.abs(probe.scores(probe.other) - old_scores).max() / np.abs(own_change).max())
    return ProbeFinding(f"the other moves {relative_change:.2f} × as far", relative_change < TOLERANCE)


@_probe("old samplers", "samplers of old weights and the training are unaffected", keeps_old_samplers=False)
def _old_samplers(probe: ServiceProbe) -> ProbeFinding:
    old_sampler, old_scores = probe.sampler(), probe.now
    first_scores = probe.sampler_scores(old_sampler)
    probe.step(probe.on_policy(3 * probe.ones))
    trained_scores = probe.scores()
    new_scores, old_again = probe.sampler_scores(probe.sampler()), probe.sampler_scores(old_sampler)
    errors = {
        "new weights": new_scores - first_scores - (trained_scores - old_scores),
        "old weights": old_again - first_scores,
        "training": probe.scores() - trained_scores,
    }
    step = np.abs(trained_scores - old_scores).max()
    ratios = {name: float(np.abs(values).max() / step) for name, values in errors.items()}
    description = ", ".join(f"{name} {share:.2f}" for name, share in ratios.items())
    return ProbeFinding(f"errors relative to the step: {description}", max(ratios.values()) <= 3 * TOLERANCE)


@_probe("resume", "a client from a saved state makes the same next step", restores_optimizer=False)
def _resume(probe: ServiceProbe) -> ProbeFinding:
    adam = tinker.AdamParams(learning_rate=1e-4)
    probe.step(probe.on_policy(probe.ones), adam=adam)
    path = value_of(probe.trainer.save_state("rolegraph-doctor-resume")).path
    saved_scores, signs = probe.scores(), np.resize(_SIGNS, len(probe.ones))
    probe.step(probe.on_policy(signs), adam=adam)
    expected_change = probe.scores() - saved_scores
    note = ""
    try:
        client = value_of(probe.session.service.create_training_client_from_state_with_optimizer(path))
    except Exception as error:  # the SDK raises ValueError, RuntimeError and its own family alike
        note = f"only into a client that exists ({first_line(ValueError(service_message(error)))}): "
        probe.traits = replace(probe.traits, restores_without_client=False)
        client = probe.resumed(path)
    probe.step(probe.on_policy(signs), client=client, adam=adam)
    observation, ok = compared(probe.scores(client) - saved_scores, expected_change)
    return ProbeFinding(note + observation, ok)


PROBES.extend(CHECKPOINTS)


@_probe("new session", "a saved sampler can be opened by another session")
def _new_session(probe: ServiceProbe) -> ProbeFinding:
    session = probe.session
    probe.step(probe.on_policy(probe.ones))
    path = value_of(probe.trainer.save_weights_for_sampler("rolegraph-doctor-sampler")).path
    service = tinker.ServiceClient(base_url=session.url, api_key=session.key)
    try:
        client = value_of(service.create_sampling_client(model_path=path, retry_config=NO_RETRIES))
        return agreement(probe.sampler_scores(client), probe.scores())
    finally:
        close(service, "success")


@_probe("speed", "any")
def _speed(probe: ServiceProbe) -> ProbeFinding:
    start = time.monotonic()
    sampled_count = sum(len(sequence.tokens) for sequence in probe.sampled(probe.base, count=16, length=64))
    training_start = time.monotonic()
    probe.step(probe.on_policy(*[probe.ones] * 16))
    trained_tokens, end = 16 * len(probe.ones), time.monotonic()
    sampling, training = sampled_count / (training_start - start), trained_tokens / (end - training_start)
    return ProbeFinding(f"{sampling:,.0f} tokens/s sampled, {training:,.0f} trained")
