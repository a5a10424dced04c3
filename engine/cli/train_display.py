"""Display of a training: a live table on a terminal, one line for each step elsewhere.

Everything that is shown is in the training's folder, too.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from types import TracebackType
from typing import Self

from rich.console import Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table

import rolegraph as rg
from rolegraph.engine.cli.output import OutputOptions, make_table
from rolegraph.engine.cli.train_end import VALIDATION, TrainEnd
from rolegraph.engine.cli.waiting import SPEED_SECONDS, TimeLeftColumn, clock

Metrics = Mapping[str, float]


class TrainDisplay:
    """Live display of a training, as a context manager that prints the results when its block ends."""

    def __init__(self, training: rg.TrainingJob, output: OutputOptions | None = None) -> None:
        self._training, self._plan = training, training.flow.plan
        self._output = output or OutputOptions()
        self._steps, self._done = training.steps, training.done
        self._latest: dict[str, float] = {}
        before = [line for line in training.folder.metrics() if line["step"] == 0]
        self._first = {name: line[name] for line in before for name in line if name.startswith(VALIDATION)}
        self._began = self._opened = time.monotonic()
        self._console, self._warnings = self._output.progress(), self._output.warnings()
        self._progress = Progress(
            TextColumn("[bold]{task.description}"),
            BarColumn(bar_width=20),
            MofNCompleteColumn(),
            TextColumn("{task.fields[left]}"),
        )
        self._bar = self._progress.add_task(self._plan.name, total=self._steps, completed=self._done, left="")
        self._part = Progress(
            TextColumn("[dim]{task.description}"),
            BarColumn(bar_width=12),
            TimeLeftColumn(),
            speed_estimate_period=SPEED_SECONDS,
        )
        """Progress of the current part of a step: a batch of episodes, an update."""
        self._now = self._part.add_task("", total=None, visible=False)
        self._live = Live(self._view(), console=self._console, refresh_per_second=4, transient=True)

    def __enter__(self) -> Self:
        if self._console.is_terminal and not self._console.quiet:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()
        end, seconds = TrainEnd(self._training), time.monotonic() - self._opened
        end.show(self._output, seconds)
        self._output.document(end.document(seconds))

    def observe(self, event: rg.Event) -> None:
        """Show an event of the training."""
        match event:
            case rg.StepLogged():
                self._log(event.step, event.metrics)
            case rg.Note(kind="warning"):
                text = rg.printable(f"warning: {event.text}")
                self._warnings.print(text, style="yellow", markup=False)
            case rg.Note():
                self._part.remove_task(self._now)
                self._now = self._part.add_task(rg.printable(event.text), total=event.episodes or None)
                self._live.update(self._view())
            case rg.EpisodeDone():
                self._part.advance(self._now)
            case _:
                pass

    def _log(self, step: int, metrics: Metrics) -> None:
        """Show the metrics of a step, which are on disk."""
        validated = {name: value for name, value in metrics.items() if name.startswith(VALIDATION)}
        self._first = self._first or validated
        self._latest |= metrics
        if step > self._done:
            each = (time.monotonic() - self._began) / (step - self._done)
            self._progress.update(
                self._bar, completed=step, left=f"{clock(each * (self._steps - step))} left"
            )
        else:
            self._began = time.monotonic()
        if self._console.is_terminal:
            self._live.update(self._view())
        else:
            self._console.print(self._line(step, metrics), soft_wrap=True, highlight=False)

    def _line(self, step: int, metrics: Metrics) -> str:
        parts = [f"step {step}/{self._steps}"]
        for role in self._plan.roles:
            if f"reward/{role.name}/mean" in metrics:
                parts.append(f"{role.name} {metrics[f'reward/{role.name}/mean']:.3f}")
        for prefix, word in (("episode/", ""), ("validation/", "validation ")):
            parts += [
                f"{word}{name} {metrics[prefix + name]:.3f}"
                for name in self._plan.metrics
                if prefix + name in metrics
            ]
        if "tokens/per_second" in metrics:
            parts.append(f"{metrics['tokens/per_second']:,.0f} tokens/s")
        if "time/step" in metrics:
            parts.append(f"{metrics['time/step']:.1f} s")
        return "  ".join(parts)

    def _view(self) -> Group:
        tables = [self._role_table()]
        if len(self._plan.policies) > 1:
            tables.append(self._policy_table())
        figures = make_table("figure", "this step", "validation", "before training")
        for name in ("correct", *self._plan.metrics):
            row = (
                self._latest.get(f"episode/{name}"),
                self._latest.get(f"validation/{name}"),
                self._first.get(f"validation/{name}"),
            )
            figures.add_row(name, *(_cell(value, ".3f") for value in row))
        rate = self._latest.get("tokens/per_second")
        speed = "" if rate is None else f"{rate:,.0f} tokens/s"
        return Group(self._progress, self._part, *tables, figures, speed)

    def _role_table(self) -> Table:
        columns = {
            "reward": ("reward/{}/mean", ".3f"),
            "advantage ±": ("advantage/{}/std", ".3f"),
            "taught": ("outcome/{}/taught", ".0%"),
            "too easy": ("outcome/{}/too_easy", ".0%"),
            "too hard": ("outcome/{}/too_hard", ".0%"),
            "too small": ("outcome/{}/too_small", ".0%"),
            "KL": ("kl/{}", ".4f"),
        }
        # Only workflows that skip or fail have groups that are too small.
        if not any(self._latest.get(f"outcome/{role.name}/too_small") for role in self._plan.roles):
            del columns["too small"]
        table = make_table("role", "estimator", *columns)
        for role in self._plan.roles:
            estimator = role.estimator.name if role.estimator and role.spec.is_trained else "–"
            values = ((self._latest.get(key.format(role.name)), form) for key, form in columns.values())
            table.add_row(role.name, estimator, *(_cell(value, form) for value, form in values))
        return table

    def _policy_table(self) -> Table:
        columns = {
            "loss": ("loss", ".4f"),
            "KL": ("kl", ".4f"),
            "grad norm": ("grad_norm", ".3f"),
            "learning rate": ("learning_rate", ".2g"),
        }
        table = make_table("policy", *columns)
        for policy in self._plan.policies:
            values = ((self._latest.get(f"optim/{key}/{policy}"), form) for key, form in columns.values())
            table.add_row(policy, *(_cell(value, form) for value, form in values))
        return table


def _cell(value: float | None, form: str) -> str:
    return "–" if value is None else format(value, form)
