"""What a person sees of training: a live table, or a line a step where there is no terminal.

Everything it shows is in the run's folder too.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import Self

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table
from rich.text import Text

from rolegraph import MAIN, Event, Note, StepLogged, Training, printable

Metrics = Mapping[str, float]
_VALIDATION = "validation/"


class TrainDisplay:
    """Looks on: a table on a terminal, lines elsewhere."""

    def __init__(self, training: Training) -> None:
        self._plan, self._folder = training.flow.plan, training.folder
        self._steps, self._done = training.steps, training.done
        self._latest: dict[str, float] = {}
        before = [line for line in training.folder.metrics() if line["step"] == 0]
        self._first = {name: line[name] for line in before for name in line if name.startswith(_VALIDATION)}
        self._measured = 0
        """The step of the latest validation."""
        self._began = time.monotonic()
        self._console = Console(stderr=True)
        self._progress = Progress(
            TextColumn("[bold]{task.description}"),
            BarColumn(bar_width=20),
            MofNCompleteColumn(),
            TextColumn("{task.fields[left]}"),
            TextColumn("[dim]{task.fields[note]}"),
        )
        self._bar = self._progress.add_task(
            self._plan.name, total=self._steps, completed=self._done, note="", left=""
        )
        self._live = Live(self._view(), console=self._console, refresh_per_second=4, transient=True)

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()
        self._close()

    def observe(self, event: Event) -> None:
        """Show what the training says."""
        match event:
            case StepLogged():
                self.log(event.step, event.metrics)
            case Note(kind="warning"):
                self.warn(event.text)
            case Note():
                self.note(event.text)
            case _:
                pass

    def note(self, text: str) -> None:
        """What is going on just now."""
        self._progress.update(self._bar, note=printable(text))
        self._live.update(self._view())

    def warn(self, text: str) -> None:
        """Something that the person should know."""
        text = printable(f"warning: {text}")
        self._console.print(text, style="yellow", highlight=False, markup=False, soft_wrap=True)

    def log(self, step: int, metrics: Metrics) -> None:
        """A step's metrics, which are safe on disk."""
        validated = {name: value for name, value in metrics.items() if name.startswith(_VALIDATION)}
        if validated:
            self._first = self._first or validated
            self._measured = step
        self._latest |= metrics
        if step > self._done:
            each = (time.monotonic() - self._began) / (step - self._done)
            self._progress.update(
                self._bar, completed=step, left=f"{_clock(each * (self._steps - step))} left"
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
            estimator = role.estimator.name if role.estimator and role.trainable else "–"
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
        return Group(self._progress, *tables, speed)

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

    def _close(self) -> None:
        out = Console(soft_wrap=True)
        figures = [name for name in ("correct", *self._plan.metrics) if _VALIDATION + name in self._latest]
        # Where nothing was measured since, there is no change to show.
        if figures and self._measured > 0:
            table = Table(box=SIMPLE_HEAD, pad_edge=False)
            table.add_column("validation", style="bold")
            for heading in ("before", f"at step {self._measured}", "change"):
                table.add_column(heading, justify="right", no_wrap=True)
            for name in figures:
                now, before = self._latest[_VALIDATION + name], self._first[_VALIDATION + name]
                table.add_row(name, f"{before:.3f}", f"{now:.3f}", f"{now - before:+.3f}")
            out.print(table)
        if controls := self._folder.controls():
            table = Table(box=SIMPLE_HEAD, pad_edge=False)
            table.add_column("on the same validation tasks", style="bold")
            table.add_column("figure")
            table.add_column("mean and 95 % interval", justify="right", no_wrap=True)
            for row in controls:
                table.add_row(row.name, row.figure, Text(f"{row.mean:.3f} [{row.low:.3f}, {row.high:.3f}]"))
            out.print(table)
        if not self._folder.info_file.exists():
            return
        done = int(self._latest.get("step", self._done))
        out.print(
            f"{done} of {self._steps} steps in {_clock(time.monotonic() - self._began)}", highlight=False
        )
        if done < self._steps:
            out.print(f"go on with: rolegraph train --resume --out {self._folder.path}", highlight=False)
        self._say_where(out)
        report = self._folder.report
        out.print(str(report if report.exists() else self._folder.path), highlight=False)

    def _say_where(self, out: Console) -> None:
        """Where the best weights are, and how to use them."""
        if not self._folder.checkpoints():
            return
        folder, best, info = self._folder.path, self._folder.best(), self._folder.info()
        used = [
            f"model.checkpoint={folder}" if name == MAIN else f"policies.{name}.checkpoint={folder}#{name}"
            for name in best.policies
        ]
        used += [f"--import {file}" for file in info.imports] + [f"--allow {it}" for it in info.allowed]
        taken = [f" --policy {name}" for name in best.policies] if len(best.policies) > 1 else [""]
        lines = [
            f"best weights: those of step {best.step}",
            f"  use them:   rolegraph run {info.spec} {' '.join(used)}",
            *(f"  take them:  rolegraph export {folder}{policy}" for policy in taken),
        ]
        out.print("\n".join(lines), highlight=False, markup=False, soft_wrap=True)


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
