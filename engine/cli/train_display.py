"""What a person sees of training: a live table, or a line a step where there is no terminal.

Everything it shows is in the run's folder too.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import Self

from rich.box import SIMPLE_HEAD
from rich.console import Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table

from rolegraph import EpisodeDone, Event, Note, StepLogged, TrainingJob, printable
from rolegraph.engine.cli.output import OutputOptions
from rolegraph.engine.cli.train_end import VALIDATION, TrainEnd
from rolegraph.engine.cli.waiting import REMEMBERED_SECONDS, TimeLeftColumn, clock

Metrics = Mapping[str, float]


class TrainDisplay:
    """Looks on: a table on a terminal, lines elsewhere."""

    def __init__(self, training: TrainingJob, output: OutputOptions | None = None) -> None:
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
            speed_estimate_period=REMEMBERED_SECONDS,
        )
        """What goes on just now: a batch of episodes, an update."""
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

    def observe(self, event: Event) -> None:
        """Show what the training says."""
        match event:
            case StepLogged():
                self.log(event.step, event.metrics)
            case Note(kind="warning"):
                self.warn(event.text)
            case Note():
                self.note(event.text, event.episodes)
            case EpisodeDone():
                self._part.advance(self._now)
            case _:
                pass

    def note(self, text: str, episodes: int = 0) -> None:
        """What is going on just now, and how many episodes it takes."""
        self._part.remove_task(self._now)
        self._now = self._part.add_task(printable(text), total=episodes or None)
        self._live.update(self._view())

    def warn(self, text: str) -> None:
        """Something that the person should know."""
        self._warnings.print(printable(f"warning: {text}"), style="yellow", markup=False)

    def log(self, step: int, metrics: Metrics) -> None:
        """A step's metrics, which are safe on disk."""
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
        latest = self._latest
        table = Table(box=SIMPLE_HEAD, pad_edge=False)
        table.add_column("role", style="bold")
        # Only workflows that skip or fail have groups that are too small.
        small = any(latest.get(f"outcome/{role.name}/too_small") for role in self._plan.roles)
        columns = [
            ("reward", "reward/{}/mean", "{:.3f}"),
            ("advantage ±", "advantage/{}/std", "{:.3f}"),
            ("taught", "outcome/{}/taught", "{:.0%}"),
            ("too easy", "outcome/{}/too_easy", "{:.0%}"),
            ("too hard", "outcome/{}/too_hard", "{:.0%}"),
            *([("too small", "outcome/{}/too_small", "{:.0%}")] if small else []),
            ("KL", "kl/{}", "{:.4f}"),
        ]
        for heading in ("estimator", *(heading for heading, _, _ in columns)):
            table.add_column(heading, justify="right", no_wrap=True)
        for role in self._plan.roles:
            name = role.name
            estimator = role.estimator.name if role.estimator and role.spec.is_trained else "–"
            table.add_row(
                name,
                estimator,
                *(
                    shown.format(latest[key.format(name)]) if key.format(name) in latest else "–"
                    for _, key, shown in columns
                ),
            )
        figures = Table(box=SIMPLE_HEAD, pad_edge=False)
        figures.add_column("figure", style="bold")
        for heading in ("this step", "validation", "before training"):
            figures.add_column(heading, justify="right", no_wrap=True)
        for name in ("correct", *self._plan.metrics):
            row = (
                latest.get(f"episode/{name}"),
                latest.get(f"validation/{name}"),
                self._first.get(f"validation/{name}"),
            )
            figures.add_row(name, *("–" if value is None else f"{value:.3f}" for value in row))
        tables = [table, *self._policies(), figures]
        speed = f"{latest['tokens/per_second']:,.0f} tokens/s" if "tokens/per_second" in latest else ""
        return Group(self._progress, self._part, *tables, speed)

    def _policies(self) -> Iterator[Table]:
        """What became of each policy, where there are several."""
        if len(self._plan.policies) < 2:
            return
        table = Table(box=SIMPLE_HEAD, pad_edge=False)
        table.add_column("policy", style="bold")
        headings = {"loss": "{:.4f}", "kl": "{:.4f}", "grad_norm": "{:.3f}", "learning_rate": "{:.2g}"}
        for heading in headings:
            name = "KL" if heading == "kl" else heading.replace("_", " ")
            table.add_column(name, justify="right", no_wrap=True)
        for policy in self._plan.policies:
            values = ((form, self._latest.get(f"optim/{name}/{policy}")) for name, form in headings.items())
            table.add_row(policy, *("–" if value is None else form.format(value) for form, value in values))
        yield table
