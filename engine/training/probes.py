"""Probes of a Tinker service: each compares one behaviour with that of hosted Tinker.

A probe is a method of `ServiceProbe`; `rolegraph.engine.training.service_meter` has the measurements, and the
method by which gradients are seen.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal, NamedTuple, cast

import numpy as np
import tinker
from tinker.types import RequestErrorCategory

from rolegraph.engine.errors import first_line
from rolegraph.engine.models.keys import redact
from rolegraph.engine.models.service_traits import ServiceTraits
from rolegraph.engine.models.tinker import NO_RETRIES, TinkerSession, said
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
from rolegraph.engine.training.service_meter import (
    LOWER_RANK,
    RANK,
    TIMEOUT_SECONDS,
    Pass,
    ServiceMeter,
    make_datum,
    value_of,
)
from rolegraph.engine.vocabulary import Floats

Status = Literal["ok", "differs", "failed", "not offered"]
_SHORT = 8
"""Tokens of the short datum, the beginning of the long one."""
_RATIOS = (0.5, 0.85, 1.0, 1.15, 1.5, 6.0)
_SIGNS = (1.0, 1.0, -1.0, 1.0, -1.0)
_CLIPS = {"ppo": (0.8, 1.2), "cispo": (0.0, 4.0)}
"""Default thresholds of hosted Tinker."""
_OTHER_CLIPS = ((0.8, 1.2), (0.9, 1.1), (0.0, 4.0), (0.0, 5.0), (0.0, np.inf))
_BETA = 0.05
_ADAM = tinker.AdamParams(learning_rate=1e-4, beta1=0.0, beta2=0.0)
"""A step in which each weight moves alike, whatever its gradient."""


class ProbeRow(NamedTuple):
    """Result of one probe."""

    name: str
    expected: str
    """Behaviour of hosted Tinker."""
    seen: str
    """Behaviour of this service, or its error message."""
    status: Status


class _Unmeasurable(Exception):
    """Raised by a probe that rests on another behaviour, which this service lacks."""


@dataclass(frozen=True, slots=True)
class _Probe:
    name: str
    expected: str
    find: Callable[[ServiceProbe], ProbeFinding]
    differing: Mapping[str, Any]
    """Traits of a service that differs."""


_PROBES: list[_Probe] = []
_Method = Callable[["ServiceProbe"], ProbeFinding]


def _probe(name: str, expected: str, **differing: Any) -> Callable[[_Method], _Method]:
    """Return a decorator that adds a method of ServiceProbe to the probes."""

    def add(find: _Method) -> _Method:
        _PROBES.append(_Probe(name, expected, find, differing))
        return find

    return add


def _is_refusal(error: BaseException | None) -> bool:
    """Return True for an error by which a service says that it does not serve the request."""
    if isinstance(error, tinker.RequestFailedError):
        return error.category is RequestErrorCategory.User
    if isinstance(error, tinker.APIStatusError):
        return 400 <= error.status_code < 500
    return isinstance(error, ValueError) and _is_refusal(error.__cause__)  # by older SDKs


class ServiceProbe:
    """Probes of one model of a service. Blocks."""

    def __init__(self, session: TinkerSession, model: str) -> None:
        self.session, self.meter = session, ServiceMeter(session, model)
        self.traits = ServiceTraits(sdk_version=tinker.__version__)
        """Traits found so far."""
        self._is_plain = False
        """True if a step is in proportion to the gradient."""

    def rows(self) -> Iterator[ProbeRow]:
        """Run the probes and yield the row of each.

        A probe that fails does not stop the others, unless the service no longer answers.
        """
        gone = ""
        for probe in _PROBES:
            seen, status = self._outcome(probe) if not gone else (gone, "failed")
            if status == "failed" and seen.startswith("no answer"):
                gone = seen
            if status == "differs":
                self.traits = replace(self.traits, **probe.differing)
            if status != "ok":
                losses = tuple(loss for loss in self.traits.losses if loss != probe.name)
                self.traits = replace(self.traits, losses=losses)
            yield ProbeRow(probe.name, probe.expected, first_line(ValueError(seen)), status)

    def _outcome(self, probe: _Probe) -> tuple[str, Status]:
        try:
            seen, ok = probe.find(self)
            return seen, "ok" if ok else "differs"
        except _Unmeasurable as error:
            return str(error), "failed"
        except TimeoutError:
            return f"no answer in {TIMEOUT_SECONDS:.0f} s", "failed"
        except Exception as error:  # the SDK raises ValueError, RuntimeError and its own family alike
            self.meter.recover()
            refused = probe.name in ("dro", "dro defaults", "gspo") and _is_refusal(error)
            return redact(said(error), self.session.key), "not offered" if refused else "failed"

    @cached_property
    def _unit(self) -> Floats:
        """Change by advantages of 1."""
        if not self._is_plain:
            raise _Unmeasurable("cannot be measured: a step does not follow the size of the gradient")
        return self.meter.measured(self.meter.ones)

    # probes, in the order of the table

    @_probe("models", "the model is offered, with its context length")
    def _models(self) -> ProbeFinding:
        model, lengths = self.meter.model, self.session.lengths
        seen = f"{model}, {lengths.get(model) or 'unknown'} tokens, one of {len(lengths)}"
        return ProbeFinding(f"{seen}; SDK {tinker.__version__}", lengths.get(model) is not None)

    @_probe("sampled log-probabilities", "those that compute_logprobs gives")
    def _recomputed(self) -> ProbeFinding:
        found = np.array(self.meter.answer.logprobs or ())
        return agreement(found, self.meter.sampler_scores(self.meter.base)[-len(self.meter.answer.tokens) :])

    @_probe("leading None", "an entry for each token, None for the first", has_leading_none=False)
    def _leading_none(self) -> ProbeFinding:
        found, tokens = self.meter.entries(self.meter.base), len(self.meter.text)
        first = "None" if found[0] is None else f"{found[0]:.3f}"
        seen = f"{len(found)} entries for {tokens} tokens, the first is {first}"
        return ProbeFinding(seen, len(found) == tokens and found[0] is None)

    @_probe("seed", "one seed gives the same tokens, another gives others", has_seed=False)
    def _seed(self) -> ProbeFinding:
        meter = self.meter
        one, same, other = ([*meter.sampled(meter.base, seed=seed)[0].tokens] for seed in (7, 7, 8))
        words = {True: "equal", False: "different"}
        return ProbeFinding(
            f"one seed: {words[one == same]}; two seeds: {words[one == other]}", one == same and one != other
        )

    @_probe("trainer's log-probabilities", "those of the sampler")
    def _trainer_agrees(self) -> ProbeFinding:
        return agreement(self.meter.now, self.meter.sampler_scores(self.meter.base))

    @_probe("loss reported", "a pass has the metric loss:sum", reports_loss=False)
    def _loss_reported(self) -> ProbeFinding:
        loss, data, _ = self.meter.on_policy(self.meter.ones)
        output = value_of(self.meter.trainer.forward([*data], cast("Any", loss)))
        return ProbeFinding(", ".join(sorted(output.metrics)) or "no metrics", "loss:sum" in output.metrics)

    @_probe("optimizer settings", "with a large eps, a step is in proportion to the gradient")
    def _settings(self) -> ProbeFinding:
        self.meter.choose_step()
        once, twice = (self.meter.measured(factor * self.meter.ones) for factor in (1, 2))
        found = compared(twice, 2 * once)
        self._is_plain = found.ok
        return found

    @_probe("cross_entropy", "the gradient of -Σ weight · log p")
    def _cross_entropy(self) -> ProbeFinding:
        weights = tiled((0.5, 1.0, 2.0), len(self._unit))
        data = [make_datum(self.meter.text, weights=weights)]
        change = self.meter.effect(weights, Pass("cross_entropy", data))
        return compared(change, self.meter.measured(weights))

    def _closed_form(
        self, loss: str, settings: Mapping[str, float] | None, *constants: float
    ) -> ProbeFinding:
        """Compare a loss off-policy with the measure whose gradient is the formula of the loss."""
        count = len(self._unit)
        ratios, advantages = tiled(_RATIOS, count), tiled(_SIGNS, count)
        low, high = (*constants, 0.0, 0.0)[:2]
        expected = coefficients(loss, ratios, advantages, low, high)
        inputs = {"sequence_ratio_mask": np.ones(count)} if loss == "gspo" else {}
        data = [self.meter.rated(advantages, ratios, inputs)]
        found = self.meter.effect(expected, Pass(loss, data, settings))
        return compared(found, self.meter.measured(expected))

    @_probe("importance_sampling", "the gradient of -Σ p/q · advantage")
    def _importance_sampling(self) -> ProbeFinding:
        return self._closed_form("importance_sampling", None)

    @_probe("ppo", "the gradient of its formula, thresholds sent")
    def _ppo(self) -> ProbeFinding:
        return self._closed_form("ppo", thresholds(0.7, 1.3), 0.7, 1.3)

    @_probe("ppo defaults", "0.8 to 1.2")
    def _ppo_defaults(self) -> ProbeFinding:
        return self._defaults("ppo")

    @_probe("cispo", "the gradient of its formula, thresholds sent")
    def _cispo(self) -> ProbeFinding:
        return self._closed_form("cispo", thresholds(0.7, 1.3), 0.7, 1.3)

    @_probe("cispo defaults", "0 to 4")
    def _cispo_defaults(self) -> ProbeFinding:
        return self._defaults("cispo")

    @_probe("gspo", "the gradient of its formula, thresholds sent")
    def _gspo(self) -> ProbeFinding:
        return self._closed_form("gspo", thresholds(0.7, 1.2), 0.7, 1.2)

    def _defaults(self, loss: str) -> ProbeFinding:
        """Find the thresholds of a loss that explain its gradient without settings."""
        usual = _CLIPS[loss]
        for low, high in (usual, *_OTHER_CLIPS):
            if self._closed_form(loss, None, low, high).ok:
                return ProbeFinding(f"{low:g} to {high:g}", (low, high) == usual)
        return ProbeFinding("other thresholds", False)

    @_probe("dro", "the gradient of its formula, beta sent")
    def _dro(self) -> ProbeFinding:
        return self._closed_form("dro", {"beta": 0.3}, 0.3)

    @_probe("dro defaults", f"beta {_BETA}")
    def _dro_defaults(self) -> ProbeFinding:
        return self._closed_form("dro", None, _BETA)

    @_probe("advantage 0", "a datum of advantage 0 adds nothing", takes_means=True)
    def _zero(self) -> ProbeFinding:
        ones = np.ones(len(self._unit))
        return compared(self.meter.effect(ones, self.meter.on_policy(ones, 0 * ones)), self._unit)

    @_probe("datum twice", "a datum twice doubles the gradient", takes_means=True)
    def _twice(self) -> ProbeFinding:
        ones = np.ones(len(self._unit))
        return compared(self.meter.effect(2 * ones, self.meter.on_policy(ones, ones)), 2 * self._unit)

    @_probe("long datum", "tokens count as much in a long datum as in a short one", takes_means=True)
    def _long(self) -> ProbeFinding:
        ones = np.ones(len(self._unit))
        rest = np.where(np.arange(len(ones)) < _SHORT, 0.0, ones)
        return compared(self._unit, self.meter.measured(ones[:_SHORT]) + self.meter.measured(rest))

    @property
    def _of_two(self) -> float:
        """Part of the sum of two datums' gradients that the service takes, if one trait explains it."""
        return 0.5 if self.traits.takes_means else 1.0

    @_probe("two passes", "the gradients of passes before a step are added", accumulates=False)
    def _two_passes(self) -> ProbeFinding:
        count = len(self._unit)
        halves = [np.where((np.arange(count) < count // 2) == first, 1.0, 0.0) for first in (True, False)]
        found = self.meter.effect(np.ones(count), *(self.meter.on_policy(half) for half in halves))
        return compared(found, self._of_two * self._unit)

    @_probe("mixed losses", "each pass has its own loss and settings", merges_losses=True)
    def _mixed(self) -> ProbeFinding:
        data = [self.meter.rated(np.ones(len(self._unit)), 2.0)]
        # All tokens of the second pass are clipped, so that it adds nothing.
        passes = Pass("importance_sampling", data), Pass("ppo", data, thresholds(0.9, 1.1))
        expected = self._of_two * 2 * self.meter.ones
        return compared(self.meter.effect(expected, *passes), self.meter.measured(expected))

    @_probe("gradient clipping", "grad_clip_norm limits the step", has_clip_norm=False)
    def _clipping(self) -> ProbeFinding:
        clipped = self.meter.plain_adam(1e-6)
        found = self.meter.change(self.meter.on_policy(np.ones(len(self._unit))), adam=clipped)
        ratio = float(np.linalg.norm(found) / np.linalg.norm(self._unit))
        return ProbeFinding(f"a norm of 1e-6 leaves {ratio:.2f} × the step", ratio < TOLERANCE)

    @_probe("ranks", f"a step of Adam moves ranks {LOWER_RANK} and {RANK} alike", has_rank_scaling=True)
    def _ranks(self) -> ProbeFinding:
        meter = self.meter
        one = meter.change(meter.on_policy(meter.ones), adam=_ADAM)
        before = meter.scores(meter.other)
        meter.step(meter.on_policy(meter.ones), client=meter.other, adam=_ADAM)
        ratio = float(np.linalg.norm(one) / np.linalg.norm(meter.scores(meter.other) - before))
        seen = f"rank {RANK} moves {ratio:.2f} × as far as rank {LOWER_RANK}"
        return ProbeFinding(seen, 2 / 3 < ratio < 3 / 2)

    @_probe("adapters at once", "a step moves no other adapter", has_several_adapters=False)
    def _adapters(self) -> ProbeFinding:
        meter = self.meter
        before, moved = meter.scores(meter.other), meter.measured(meter.ones)
        apart = float(np.abs(meter.scores(meter.other) - before).max() / np.abs(moved).max())
        return ProbeFinding(f"the other moves {apart:.2f} × as far", apart < TOLERANCE)

    @_probe("old samplers", "old weights stay old; training is unmoved", keeps_old_samplers=False)
    def _old_samplers(self) -> ProbeFinding:
        meter = self.meter
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
    def _resume(self) -> ProbeFinding:
        meter = self.meter
        adam = tinker.AdamParams(learning_rate=1e-4)
        meter.step(meter.on_policy(meter.ones), adam=adam)
        path = value_of(meter.trainer.save_state("rolegraph-doctor-resume")).path
        saved, signs = meter.scores(), tiled(_SIGNS, len(meter.ones))
        meter.step(meter.on_policy(signs), adam=adam)
        unbroken = meter.scores() - saved
        note = ""
        try:
            client = value_of(self.session.service.create_training_client_from_state_with_optimizer(path))
        except Exception as error:  # the SDK raises ValueError, RuntimeError and its own family alike
            note = f"only into a client that exists ({first_line(ValueError(said(error)))}): "
            self.traits = replace(self.traits, restores_without_client=False)
            client = meter.resumed(path)
        meter.step(meter.on_policy(signs), client=client, adam=adam)
        seen, ok = compared(meter.scores(client) - saved, unbroken)
        return ProbeFinding(note + seen, ok)

    @_probe("new session", "a saved sampler can be opened by another session")
    def _new_session(self) -> ProbeFinding:
        meter, session = self.meter, self.session
        meter.step(meter.on_policy(meter.ones))
        path = value_of(meter.trainer.save_weights_for_sampler("rolegraph-doctor-sampler")).path
        service = tinker.ServiceClient(base_url=session.url, api_key=session.key)
        try:
            client = value_of(service.create_sampling_client(model_path=path, retry_config=NO_RETRIES))
            return agreement(meter.sampler_scores(client), meter.scores())
        finally:
            close(service, "success")

    @_probe("speed", "any")
    def _speed(self) -> ProbeFinding:
        meter, start = self.meter, time.monotonic()
        sampled = sum(len(each.tokens) for each in meter.sampled(meter.base, count=16, length=64))
        middle = time.monotonic()
        passed = meter.on_policy(*[meter.ones] * 16)
        meter.step(passed)
        trained, end = 16 * len(meter.ones), time.monotonic()
        rates = sampled / (middle - start), trained / (end - middle)
        return ProbeFinding(f"{rates[0]:,.0f} tokens/s sampled, {rates[1]:,.0f} trained")
