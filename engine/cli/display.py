"""What a person sees of a run: a progress bar with live metrics, and a table per role at the end.

Keeps sums, never episodes. The bar goes to standard error, the table to standard output.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)
from rich.table import Table

from engine.compile import Plan
from engine.records import CallDone, Episode, Event, Trajectory


@dataclass(slots=True)
class _RoleSums:
    trajectories: int = 0
    answered: int = 0
    reward: float = 0.0
    rewarded: int = 0
    correct: int = 0
    prompt_tokens: int = 0
    response_tokens: int = 0
    seconds: float = 0.0
    """Spent in model calls."""
    failures: Counter[str] = field(default_factory=Counter[str])
    first_message: dict[str, str] = field(default_factory=dict[str, str])
    """The first message of each kind of failure."""

    def add(self, trajectory: Trajectory) -> None:
        self.trajectories += 1
        self.answered += bool(trajectory.steps)
        if trajectory.reward is not None:
            self.rewarded += 1
            self.reward += trajectory.reward
            self.correct += trajectory.is_correct
        for step in trajectory.steps:
            self.prompt_tokens += len(step.prompt_ids)
            self.response_tokens += len(step.response_ids)
        if trajectory.failure is not None:
            name = trajectory.failure.name.value
            self.failures[name] += 1
            self.first_message.setdefault(name, trajectory.failure.message)


class Display:
    """Counts episodes while they come in."""

    def __init__(self, plan: Plan, total: int) -> None:
        self._plan = plan
        self._roles = {role.name: _RoleSums() for role in plan.roles}
        self._metrics: defaultdict[str, float] = defaultdict(float)
        self._episodes = self._correct = 0
        self._started = time.monotonic()
        self._console = Console(stderr=True)
        self._progress = Progress(
            TextColumn("[bold]{task.description}"),
            BarColumn(bar_width=12),
            MofNCompleteColumn(),
            TimeRemainingColumn(compact=True),
            TextColumn("{task.fields[live]}"),
            console=self._console,
        )
        self._bar: TaskID = self._progress.add_task(plan.name, total=total, live="")

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def note(self, text: str) -> None:
        """Say what is going on beside the bar."""
        self._progress.update(self._bar, live=text)

    def begin(self) -> None:
        """Start the clock: the model is ready."""
        self._started = time.monotonic()
        self.note("")

    def count(self, episode: Episode) -> None:
        """Add an episode that is safe on disk."""
        self._episodes += 1
        self._correct += episode.is_correct
        for trajectory in episode.trajectories:
            self._roles[trajectory.name].add(trajectory)
        for name, value in episode.metrics.items():
            self._metrics[name] += value
        failures = sum(sums.failures.total() for sums in self._roles.values())
        live = "  ".join(f"{name} {value:.3f}" for name, value in self._means().items())
        self._progress.update(
            self._bar, advance=1, live=live + (f"  failures {failures}" if failures else "")
        )

    def observe(self, event: Event) -> None:
        """Hear of each model call."""
        if isinstance(event, CallDone):
            self._roles[event.id.node.role].seconds += event.seconds

    def end(self, episodes: Path) -> None:
        """Show the closing table."""
        self._progress.stop()
        seconds = time.monotonic() - self._started
        out = Console(soft_wrap=True)
        if self._episodes:
            out.print(self._table())
        tokens = sum(sums.response_tokens for sums in self._roles.values())
        means = "".join(f"   {name} {value:.3f}" for name, value in self._means().items())
        share = f"   correct {self._correct / self._episodes:.1%}" if self._episodes else ""
        rate = f"   {tokens / seconds:,.0f} tokens/s" if tokens and seconds else ""
        out.print(f"{self._episodes} episodes in {seconds:.1f} s{share}{means}{rate}", highlight=False)
        for name, sums in self._roles.items():
            for failure, message in sums.first_message.items():
                out.print(f"{name} {failure}: {message[:300]}", style="yellow", highlight=False, markup=False)
        out.print(str(episodes), highlight=False)

    def exit_code(self) -> int:
        """1 when no model call at all gave an answer: such a run did nothing."""
        asked = sum(sums.trajectories for sums in self._roles.values())
        return 1 if asked and not any(sums.answered for sums in self._roles.values()) else 0

    def _means(self) -> dict[str, float]:
        return {name: self._metrics[name] / max(1, self._episodes) for name in self._plan.metrics}

    def _table(self) -> Table:
        table = Table(box=SIMPLE_HEAD, pad_edge=False)
        table.add_column("role", style="bold")
        for heading in ("runs", "reward", "accuracy", "tokens in", "out", "s/call"):
            table.add_column(heading, justify="right", no_wrap=True)
        table.add_column("failures", overflow="fold")
        for name, sums in self._roles.items():
            asked = max(1, sums.trajectories)
            failures = ", ".join(f"{failure} {count}" for failure, count in sums.failures.most_common())
            table.add_row(
                name,
                f"{sums.trajectories:,}",
                f"{sums.reward / sums.rewarded:.3f}" if sums.rewarded else "–",
                f"{sums.correct / sums.rewarded:.1%}" if sums.rewarded else "–",
                f"{sums.prompt_tokens:,}",
                f"{sums.response_tokens:,}",
                f"{sums.seconds / asked:.2f}",
                failures or "none",
            )
        return table
