"""Display of a run: a progress bar with live metrics, and a table of the roles at the end.

The display keeps sums, never episodes. The bar goes to standard error, the table to standard output.
"""

from __future__ import annotations

import shlex
import time
from collections import Counter
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Column

import rolegraph as rg
from rolegraph.engine.cli.output import OutputOptions, make_table
from rolegraph.engine.cli.waiting import SPEED_SECONDS


@dataclass(slots=True)
class _RoleSums:
    asks: bool
    """True for a role that asks a model, False for one that runs a tool."""
    judged: bool
    """True for a role whose reward tells right from wrong."""
    trajectories: int = 0
    answered: int = 0
    """Number of trajectories that a model answered."""
    total_reward: float = 0.0
    rewarded: int = 0
    total_right: int = 0
    unrated: int = 0
    """Number of trajectories that are masked because nobody rated them."""
    prompt_tokens: int = 0
    response_tokens: int = 0
    calls: int = 0
    """Number of model calls, each attempt counted."""
    seconds: float = 0.0
    """Seconds in calls."""
    failures: Counter[str] = field(default_factory=Counter[str])
    first_failure: dict[str, str] = field(default_factory=dict[str, str])
    """The first failure of each name, in one line with the answer."""

    @property
    def reward(self) -> float | None:
        """Mean reward; None without a reward."""
        return self.total_reward / self.rewarded if self.rewarded else None

    @property
    def right(self) -> float | None:
        """Share of the rewarded trajectories that are right; None where the reward cannot tell."""
        return self.total_right / self.rewarded if self.rewarded and self.judged else None

    def add(self, trajectory: rg.Trajectory) -> None:
        self.trajectories += 1
        self.answered += trajectory.by_model
        if trajectory.reward is not None:
            self.rewarded += 1
            self.total_reward += trajectory.reward
            self.total_right += trajectory.is_correct
        self.unrated += trajectory.is_unrated
        for step in trajectory.steps:
            if not self.asks:
                self.calls += 1
                self.seconds += step.metadata.get("seconds", 0.0)
            self.prompt_tokens += step.prompt_tokens
            self.response_tokens += step.response_tokens
        if trajectory.failure is not None:
            name = trajectory.failure.name.value
            self.failures[name] += 1
            self.first_failure.setdefault(name, trajectory.failure_line)


class Display:
    """Progress bar of a run while it is `shown`, and its figures at the end.

    `floors` maps figures to their lowest accepted values: `answered` (the share of trajectories that a model
    answered), `correct`, the spec's metrics and `reward/{role}`.
    """

    def __init__(
        self, run: rg.RunJob, *, floors: Mapping[str, float], output: OutputOptions | None = None
    ) -> None:
        flow, self._folder, self._run = run.flow, run.folder, run
        self._output = output or OutputOptions()
        self._floors, self._metric_names = floors, [*flow.plan.metrics]
        self._roles = {
            role.name: _RoleSums(role.run is None, role.name in flow.plan.judged) for role in flow.plan.roles
        }
        rewards = [f"reward/{role.name}" for role in flow.plan.roles if role.reward is not None]
        known = ["answered", "correct", *self._metric_names, *rewards]
        for name in floors:
            if name not in known:
                hint = rg.did_you_mean(name, known) or f"expected one of {', '.join(known)}"
                raise rg.UsageError(f"--fail-under: no figure {name!r}; {hint}")
        self._metrics = rg.Means()
        self._episodes = self._correct = 0
        self._started: float | None = None
        """Time at which the model was ready; None before."""
        self._progress = Progress(
            TextColumn("[bold]{task.description}"),
            BarColumn(bar_width=12),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(compact=True),
            # Folded where the line is too narrow, so that count and times stay whole.
            TextColumn("{task.fields[live]}", table_column=Column(overflow="fold")),
            console=self._output.progress(),
            speed_estimate_period=SPEED_SECONDS,
        )
        self._bar = self._progress.add_task(flow.name, total=run.episodes, live="")
        self._before = 0
        """Number of episodes that the folder held already."""
        if run.resumed and self._folder.episodes.exists():
            for episode in rg.read_episodes(self._folder.episodes):
                self._count(episode)
                self._before += 1
        self._tokens_before = sum(sums.response_tokens for sums in self._roles.values())

    @contextmanager
    def shown(self) -> Generator[None]:
        """Show the bar for the time of a block, and print the figures when the block ends."""
        try:
            with self._progress:
                yield
        finally:
            seconds = 0.0 if self._started is None else time.monotonic() - self._started
            if self._started is not None:
                self._end(seconds)
            self._output.document(self._document(seconds))

    def observe(self, event: rg.Event) -> None:
        """Update the bar and the counts for an event of the run; print the text of a note."""
        if isinstance(event, rg.CallDone):
            role = self._roles[event.id.node.role]
            role.calls += 1
            role.seconds += event.seconds
        elif isinstance(event, rg.EpisodeDone):
            self._count(event.episode)
        elif isinstance(event, rg.Note) and event.kind == "warning":
            self._output.warn(event.text)
        elif isinstance(event, rg.Note) and event.kind == "notice":
            self._progress.console.print(rg.printable(event.text), markup=False, highlight=False)
        elif isinstance(event, rg.Note):
            if not event.text:
                self._started = time.monotonic()
            self._progress.update(self._bar, live=rg.printable(event.text))

    def exit_code(self) -> int:
        """Return 1 where no model call gave an answer, or a figure is lower than its floor; else 0."""
        answered, asked = self._answered()
        return 1 if (asked and not answered) or any(self._low()) else 0

    def _count(self, episode: rg.Episode) -> None:
        self._episodes += 1
        self._correct += episode.is_correct
        for trajectory in episode.trajectories:
            self._roles[trajectory.name].add(trajectory)
        self._metrics.add(episode.metrics)
        failures = sum(sums.failures.total() for sums in self._roles.values())
        live = "  ".join(self._shown_means())
        self._progress.update(
            self._bar, advance=1, live=live + (f"  failures {failures}" if failures else "")
        )

    def _end(self, seconds: float) -> None:
        """Print the closing table, the failures and the next commands."""
        out, warnings = self._output.results(), self._output.warnings()
        if self._episodes:
            self._print_table()
        tokens = sum(sums.response_tokens for sums in self._roles.values()) - self._tokens_before
        means = "".join(f"   {mean}" for mean in self._shown_means())
        plan = self._run.flow.plan
        can_be = self._episodes and plan.can_be_correct
        share = f"   correct {self._correct / self._episodes:.1%}" if can_be else ""
        rate = f"   {tokens / seconds:,.0f} tokens/s" if tokens and seconds else ""
        made = f"{self._episodes - self._before} episodes in {seconds:.1f} s"
        made += f", {self._episodes} in all" if self._before else ""
        out.print(f"{made}{share}{means}{rate}")
        for role in plan.roles:
            sums = self._roles[role.name]
            unrated = [f"unrated: {role.why_unrated}"] if sums.unrated else []
            for line in (*sums.first_failure.values(), *unrated):
                out.print(rg.printable(f"{role.name} {line}"), style="yellow", markup=False)
        answered, asked = self._answered()
        if answered < asked:
            text = f"{asked - answered} of {asked} trajectories got no answer"
            if "answered" not in self._floors:
                text += "; --fail-under answered=1 makes that an error"
            self._output.warn(text)
        for name, value, floor in self._low():
            found = "measured in no episode" if value is None else f"{value:.3f}, under {floor:g}"
            warnings.print(f"error: {name} is {found}", style="red")
        self._output.next(*self._next())
        out.print(str(self._folder.episodes), markup=False)

    def _next(self) -> list[str]:
        """Return the commands that a user may want to run next."""
        folder = shlex.quote(str(self._folder.path))
        if self._episodes < self._run.episodes:
            return [f"rolegraph run --resume --out {folder}"]
        if any(sums.failures["model_error"] for sums in self._roles.values()):
            return [f"rolegraph run --resume --retry-failed --out {folder}"]
        source = self._run.flow.source
        if self._run.flow.is_trainable and not source.model:
            return [f"rolegraph train {shlex.join(source.arguments())}"]
        words = shlex.join(replace(source, model=None, base_url=None).arguments())
        return [f"rolegraph run {words} --model replay:{folder}"]

    def _document(self, seconds: float) -> dict[str, Any]:
        """Return the JSON document; docs/command.md describes its keys."""
        return {
            "folder": str(self._folder.path),
            "episodes": self._episodes,
            "wanted": self._run.episodes,
            "seconds": round(seconds, 3),
            "figures": self._figures(),
            "n": self._partial(),
            "roles": {
                name: {
                    "trajectories": sums.trajectories,
                    "reward": sums.reward,
                    "right": sums.right,
                    "prompt_tokens": sums.prompt_tokens,
                    "response_tokens": sums.response_tokens,
                    "calls": sums.calls,
                    "call_seconds": round(sums.seconds, 3),
                    "failures": dict(sums.failures),
                    "unrated": sums.unrated,
                }
                for name, sums in self._roles.items()
            },
            "under": {name: {"is": value, "floor": floor} for name, value, floor in self._low()},
            "log": str(self._folder.log),
            "next": self._next(),
        }

    def _low(self) -> Iterator[tuple[str, float | None, float]]:
        """Yield each figure that is lower than its floor or was not measured, with value and floor."""
        figures = self._figures()
        for name, floor in self._floors.items():
            value = figures.get(name)
            if value is None or value < floor:
                yield name, value, floor

    def _figures(self) -> dict[str, float]:
        answered, asked = self._answered()
        figures = {"answered": answered / max(1, asked), "correct": self._correct / max(1, self._episodes)}
        rewards = {f"reward/{name}": sums.reward for name, sums in self._roles.items()}
        given = {name: reward for name, reward in rewards.items() if reward is not None}
        return figures | self._metrics.means() | given

    def _answered(self) -> tuple[int, int]:
        """Return the numbers of trajectories that a model answered, and of those that asked one."""
        sums = [sums for sums in self._roles.values() if sums.asks]
        return sum(role.answered for role in sums), sum(role.trajectories for role in sums)

    def _partial(self) -> dict[str, int]:
        """Return n of each metric that fewer than all episodes have."""
        counts = {name: self._metrics.counts[name] for name in self._metric_names}
        return {name: n for name, n in counts.items() if n < self._episodes}

    def _shown_means(self) -> Iterator[str]:
        """Yield each metric with its mean, and with n where it differs from the number of episodes."""
        means, partial = self._metrics.means(), self._partial()
        for name in self._metric_names:
            n = f" (n {partial[name]})" if name in partial else ""
            yield f"{name} {means[name]:.3f}{n}" if name in means else f"{name} –"

    def _print_table(self) -> None:
        table = make_table("role", "runs", "reward", "right", "tokens in", "out", "s/call", "failures")
        table.columns[-1].justify, table.columns[-1].no_wrap = "left", False
        for name, sums in self._roles.items():
            failed = [*sums.failures.most_common(), *([("unrated", sums.unrated)] if sums.unrated else [])]
            failures = "\n".join(f"{failure} {count}" for failure, count in failed)
            table.add_row(
                name,
                f"{sums.trajectories:,}",
                "–" if sums.reward is None else f"{sums.reward:.3f}",
                "–" if sums.right is None else f"{sums.right:.1%}",
                f"{sums.prompt_tokens:,}" if sums.asks else "–",
                f"{sums.response_tokens:,}" if sums.asks else "–",
                f"{sums.seconds / max(1, sums.calls):.2f}",
                failures or "none",
            )
        self._output.results().print(table)
