"""What is compared: the systems, and the loads that they run."""

from __future__ import annotations

import math
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
"""This checkout."""


@dataclass(frozen=True, slots=True)
class System:
    """One way to run the workflow: a module of `peers`, and the distribution that it needs. Titles differ."""

    module: str
    title: str
    distribution: str | None = None
    checkout: Path = ROOT
    """Whose `engine`, `roles` and `peers` its process imports."""

    @property
    def version(self) -> str | None:
        """The distribution's version; None where it is not installed."""
        try:
            return version(self.distribution) if self.distribution else ""
        except PackageNotFoundError:
            return None

    @property
    def label(self) -> str:
        """The title, with the version where there is one."""
        return f"{self.title} {self.version or ''}".strip()


@dataclass(frozen=True, slots=True)
class Scenario:
    """A load: `solvers` in parallel and a judge, `runs` times, `in_flight` at a time."""

    name: str
    title: str
    runs: int
    in_flight: int
    solvers: int = 2
    latency: float = 0.0
    """Seconds that each call takes."""
    held: bool = False
    """The model answers nobody before the solvers of all runs have asked: all are in flight at once."""
    repetitions: int = 5
    """Unless the command line says otherwise."""
    speed: bool = True
    """Whether the runs per second are of interest, or the memory alone."""

    @property
    def ideal(self) -> float | None:
        """Runs per second of a system that costs nothing: two calls, one after the other, in full waves."""
        if not self.latency:
            return None
        return self.runs / (math.ceil(self.runs / self.in_flight) * 2 * self.latency)


BARE = System("bare", "bare asyncio")
ROLEGRAPH = System("rolegraph_peer", "Rolegraph")
SYSTEMS = (
    BARE,
    System("bare_workers", "bare asyncio, worker pool"),
    ROLEGRAPH,
    System("haystack_peer", "Haystack", "haystack-ai"),
    System("langgraph_peer", "LangGraph", "langgraph"),
    System("llama_index_peer", "llama-index workflows", "llama-index-workflows"),
)

SCENARIOS = (
    Scenario("zero", "2,000 runs, 128 in flight", 2_000, 128),
    Scenario("latency", "the same, 20 ms a call", 2_000, 128, latency=0.02),
    Scenario("wide", "20 runs of 256 solvers", 20, 20, solvers=256),
    Scenario("held", "10,000 in flight at once", 10_000, 10_000, held=True, repetitions=3),
    Scenario("held_1000", "1,000 in flight at once", 1_000, 1_000, held=True, repetitions=1, speed=False),
    Scenario("held_5000", "5,000 in flight at once", 5_000, 5_000, held=True, repetitions=1, speed=False),
)
