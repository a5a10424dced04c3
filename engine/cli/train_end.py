"""The results of a training, read from its folder: as tables, or as one document."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.table import Table

import rolegraph as rg
from rolegraph.engine.cli.output import OutputOptions, add_row, make_table
from rolegraph.engine.cli.waiting import clock

VALIDATION = "validation/"


@dataclass(frozen=True, slots=True)
class ValidationFigure:
    """A figure of the validation before training, and of the latest validation."""

    name: str
    before: float
    now: float


class TrainEnd:
    """Results of a training that is finished or was stopped."""

    def __init__(self, training: rg.TrainingJob) -> None:
        self._plan, self.folder, self._steps = training.flow.plan, training.folder, training.steps
        lines = self.folder.metrics() if self.folder.metrics_file.exists() else []
        self.done = int(max((line["step"] for line in lines), default=0))
        self.latest = lines[-1] if lines else {}
        validated = [line for line in lines if any(name.startswith(VALIDATION) for name in line)]
        self._first, self._last = (validated[0], validated[-1]) if validated else ({}, {})
        self.measured = int(self._last.get("step", 0))
        """Step of the latest validation."""

    def figures(self) -> list[ValidationFigure]:
        """Return the figures of the validation; none where there was no validation since the start."""
        if self.measured <= 0:
            return []
        keys = [(name, f"{VALIDATION}{name}") for name in ("correct", *self._plan.metrics)]
        return [ValidationFigure(name, self._first[k], self._last[k]) for name, k in keys if k in self._last]

    def next(self) -> list[str]:
        """Return the commands that a user may want to run next."""
        folder = shlex.quote(str(self.folder.path))
        commands = [f"rolegraph train --resume --out {folder}"] if self.done < self._steps else []
        if not self.folder.checkpoints():
            return commands
        best, source = self.folder.best(), self.folder.info().source
        spec, *options = replace(source, overrides=(), model=None, base_url=None).arguments()
        checkpoints = [
            f"model.checkpoint={folder}" if name == rg.MAIN else f"policies.{name}.checkpoint={folder}#{name}"
            for name in best.policies
        ]
        words = [shlex.quote(spec), *checkpoints, *map(shlex.quote, options)]
        policies = [f" --policy {name}" for name in best.policies] if len(best.policies) > 1 else [""]
        return [
            *commands,
            f"rolegraph run {' '.join(words)}",
            *(f"rolegraph export {folder}{policy}" for policy in policies),
        ]

    def show(self, output: OutputOptions, seconds: float) -> None:
        """Print the closing tables, the report's path and the next commands."""
        out = output.results()
        for table in self._tables():
            out.print(table)
        if not self.folder.info_file.exists():
            return
        out.print(f"{self.done} of {self._steps} steps in {clock(seconds)}")
        if self.folder.checkpoints():
            out.print(f"best weights: step {self.folder.best().step}")
        output.next(*self.next())
        out.print(str(_page(self.folder) or self.folder.path), markup=False)

    def document(self, seconds: float) -> dict[str, Any]:
        """Return the JSON document; docs/command.md describes its keys."""
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
            table = make_table("validation", "before", f"at step {self.measured}", "change")
            for row in figures:
                table.add_row(row.name, f"{row.before:.3f}", f"{row.now:.3f}", f"{row.now - row.before:+.3f}")
            yield table
        if controls := self.folder.controls():
            table = make_table("on the same validation tasks", "figure", "mean and 95 % interval")
            table.columns[1].justify = "left"
            for row in controls:
                add_row(table, row.name, row.figure, f"{row.mean:.3f} [{row.low:.3f}, {row.high:.3f}]")
            yield table


def _page(folder: rg.RunFolder) -> Path | None:
    return folder.report if folder.report.exists() else None
