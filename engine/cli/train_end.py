"""What a training came to, read from its folder: for a person, or as one document."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from rolegraph import MAIN, RunFolder, TrainingJob
from rolegraph.engine.cli.output import OutputOptions, flags
from rolegraph.engine.cli.waiting import clock

VALIDATION = "validation/"


@dataclass(frozen=True, slots=True)
class ValidationFigure:
    """A figure of the validation before training, and when it was last measured since."""

    name: str
    before: float
    now: float


class TrainEnd:
    """The folder of a training that is over, or was stopped."""

    def __init__(self, training: TrainingJob) -> None:
        self._plan, self.folder, self._steps = training.flow.plan, training.folder, training.steps
        lines = self.folder.metrics() if self.folder.metrics_file.exists() else []
        self.done = int(max((line["step"] for line in lines), default=0))
        self.latest = lines[-1] if lines else {}
        validated = [line for line in lines if any(name.startswith(VALIDATION) for name in line)]
        self._first, self._last = (validated[0], validated[-1]) if validated else ({}, {})
        self.measured = int(self._last.get("step", 0))
        """The step of the latest validation."""

    def figures(self) -> list[ValidationFigure]:
        """Nothing where nothing was measured since the beginning: there is no change to show."""
        if self.measured <= 0:
            return []
        keys = [(name, f"{VALIDATION}{name}") for name in ("correct", *self._plan.metrics)]
        return [ValidationFigure(name, self._first[k], self._last[k]) for name, k in keys if k in self._last]

    def next(self) -> list[str]:
        """What a person would do now, as it is typed."""
        folder = shlex.quote(str(self.folder.path))
        commands = [f"rolegraph train --resume --out {folder}"] if self.done < self._steps else []
        if not self.folder.checkpoints():
            return commands
        best, info = self.folder.best(), self.folder.info()
        spec = shlex.quote(info.spec)
        used = [
            f"model.checkpoint={folder}" if name == MAIN else f"policies.{name}.checkpoint={folder}#{name}"
            for name in best.policies
        ]
        used += map(shlex.quote, flags(info.imports, info.allowed))
        taken = [f" --policy {name}" for name in best.policies] if len(best.policies) > 1 else [""]
        return [
            *commands,
            f"rolegraph run {spec} {' '.join(used)}",
            *(f"rolegraph export {folder}{policy}" for policy in taken),
        ]

    def show(self, output: OutputOptions, seconds: float) -> None:
        """The closing tables, where it all is, and what to do with it."""
        out = output.found()
        for table in self._tables():
            out.print(table)
        if not self.folder.info_file.exists():
            return
        out.print(f"{self.done} of {self._steps} steps in {clock(seconds)}")
        if self.folder.checkpoints():
            out.print(f"best weights: those of step {self.folder.best().step}")
        output.next(*self.next())
        out.print(str(_page(self.folder) or self.folder.path), markup=False)

    def document(self, seconds: float) -> dict[str, Any]:
        """The same for a program; docs/command.md says what each key is."""
        best = self.folder.best() if self.folder.checkpoints() else None
        page = _page(self.folder)
        return {
            "folder": str(self.folder.path),
            "steps": self._steps,
            "done": self.done,
            "seconds": round(seconds, 3),
            "metrics": self.latest,
            "validation": {row.name: {"before": row.before, "now": row.now} for row in self.figures()},
            "controls": [row.model_dump() for row in self.folder.controls()],
            "best": best and {"step": best.step, "policies": [*best.policies]},
            "report": page and str(page),
            "log": str(self.folder.log),
            "next": self.next() if self.folder.info_file.exists() else [],
        }

    def _tables(self) -> Iterator[Table]:
        if figures := self.figures():
            table = Table(box=SIMPLE_HEAD, pad_edge=False)
            table.add_column("validation", style="bold")
            for heading in ("before", f"at step {self.measured}", "change"):
                table.add_column(heading, justify="right", no_wrap=True)
            for row in figures:
                table.add_row(row.name, f"{row.before:.3f}", f"{row.now:.3f}", f"{row.now - row.before:+.3f}")
            yield table
        if controls := self.folder.controls():
            table = Table(box=SIMPLE_HEAD, pad_edge=False)
            table.add_column("on the same validation tasks", style="bold")
            table.add_column("figure")
            table.add_column("mean and 95 % interval", justify="right", no_wrap=True)
            for row in controls:
                table.add_row(row.name, row.figure, Text(f"{row.mean:.3f} [{row.low:.3f}, {row.high:.3f}]"))
            yield table


def _page(folder: RunFolder) -> Any:
    return folder.report if folder.report.exists() else None
