"""Probe of a Tinker service: a row for each behaviour, compared with that of hosted Tinker.

`rolegraph.engine.training.probe_checks` has the probes, and `rolegraph.engine.training.service_meter` the
measurements and the method by which gradients are seen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal, NamedTuple

import tinker
from tinker.types import RequestErrorCategory

from rolegraph.engine.errors import first_line
from rolegraph.engine.models.keys import redact
from rolegraph.engine.models.service_traits import ServiceTraits
from rolegraph.engine.models.tinker import TinkerSession, said
from rolegraph.engine.training.probe_findings import (
    ProbeFinding,
)
from rolegraph.engine.training.service_meter import (
    TIMEOUT_SECONDS,
    ServiceMeter,
)
from rolegraph.engine.vocabulary import Floats

Status = Literal["ok", "differs", "failed", "not offered"]


class ProbeRow(NamedTuple):
    """Result of one probe."""

    name: str
    expected: str
    """Behaviour of hosted Tinker."""
    seen: str
    """Behaviour of this service, or its error message."""
    status: Status


class UnmeasurableError(Exception):
    """Raised by a probe that rests on another behaviour, which this service lacks."""


@dataclass(frozen=True, slots=True)
class Probe:
    """One behaviour of a service, and how it is found."""

    name: str
    expected: str
    """Behaviour of hosted Tinker."""
    find: Callable[[ServiceProbe], ProbeFinding]
    differing: Mapping[str, Any]
    """Traits of a service that differs."""


def _is_refusal(error: BaseException | None) -> bool:
    """Return True for an error by which a service says that it does not serve the request."""
    if isinstance(error, tinker.RequestFailedError):
        return error.category is RequestErrorCategory.User
    if isinstance(error, tinker.APIStatusError):
        return 400 <= error.status_code < 500
    return isinstance(error, ValueError) and _is_refusal(error.__cause__)  # by older SDKs


class ServiceProbe:
    """Measurements of one model of a service, and what they have shown so far. Blocks."""

    def __init__(self, session: TinkerSession, model: str) -> None:
        self.session, self.meter = session, ServiceMeter(session, model)
        self.traits = ServiceTraits(sdk_version=tinker.__version__)
        """Traits found so far."""
        self.is_plain = False
        """True if a step is in proportion to the gradient."""

    def rows(self, probes: Sequence[Probe]) -> Iterator[ProbeRow]:
        """Run probes and yield the row of each.

        A probe that fails does not stop the others, unless the service no longer answers.
        """
        gone = ""
        for probe in probes:
            seen, status = self._outcome(probe) if not gone else (gone, "failed")
            if status == "failed" and seen.startswith("no answer"):
                gone = seen
            if status == "differs":
                self.traits = replace(self.traits, **probe.differing)
            if status != "ok":
                losses = tuple(loss for loss in self.traits.losses if loss != probe.name)
                self.traits = replace(self.traits, losses=losses)
            yield ProbeRow(probe.name, probe.expected, first_line(ValueError(seen)), status)

    def _outcome(self, probe: Probe) -> tuple[str, Status]:
        try:
            seen, ok = probe.find(self)
            return seen, "ok" if ok else "differs"
        except UnmeasurableError as error:
            return str(error), "failed"
        except TimeoutError:
            return f"no answer in {TIMEOUT_SECONDS:.0f} s", "failed"
        except Exception as error:  # the SDK raises ValueError, RuntimeError and its own family alike
            self.meter.recover()
            refused = probe.name in ("dro", "dro defaults", "gspo") and _is_refusal(error)
            return redact(said(error), self.session.key), "not offered" if refused else "failed"

    @cached_property
    def unit(self) -> Floats:
        """Change by advantages of 1."""
        if not self.is_plain:
            raise UnmeasurableError("cannot be measured: a step does not follow the size of the gradient")
        return self.meter.measured(self.meter.ones)

    @property
    def of_two(self) -> float:
        """Part of the sum of two datums' gradients that the service takes, if one trait explains it."""
        return 0.5 if self.traits.takes_means else 1.0
