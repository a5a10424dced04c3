"""Figures to tables: medians, shares of bare asyncio, how many times faster Rolegraph is, old against new."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table
from scenarios import BARE, ROLEGRAPH, Scenario, System


@dataclass(slots=True)
class Cell:
    """One system under one load: what each repetition measured (see `worker.py`), or why there is nothing."""

    samples: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    problem: str = ""

    @property
    def failed(self) -> bool:
        return self.problem not in ("", "not installed")

    @property
    def prompts(self) -> str | None:
        return self.samples[0]["prompts"] if self.samples else None

    def median(self, key: str) -> float | None:
        """The median of one figure; None where it was not measured."""
        values = [sample[key] for sample in self.samples if key in sample]
        return median(values) if values and not self.problem else None

    def rate(self, scenario: Scenario, key: str = "seconds") -> float | None:
        """Runs per second; with `cpu_s`, of the processor, which a busy machine hardly changes."""
        seconds = self.median(key)
        return scenario.runs / seconds if seconds else None

    def held_kb(self, scenario: Scenario) -> float | None:
        """kB that one run takes while all of them wait."""
        grown = [_held_mb(sample) for sample in self.samples if "held_mb" in sample]
        return median(grown) * 1024 / scenario.runs if grown and not self.problem else None


@dataclass(frozen=True, slots=True)
class Startup:
    """Seconds: each import by the system's title, and medians of the rest."""

    imports: dict[str, list[float]]
    help_s: float
    python_s: float
    compile_first_s: float
    compile_later_s: float


@dataclass(slots=True)
class Results:
    """All that was measured."""

    machine: dict[str, Any]
    systems: Sequence[System]
    scenarios: Sequence[Scenario]
    startup: Startup
    cells: dict[tuple[Scenario, System], Cell] = field(default_factory=dict[tuple[Scenario, System], Cell])

    def cell(self, scenario: Scenario, system: System) -> Cell:
        return self.cells.get((scenario, system), Cell())

    @property
    def other(self) -> System | None:
        """The other checkout of Rolegraph, where one is compared with."""
        return next((s for s in self.systems if s.module == ROLEGRAPH.module and s != ROLEGRAPH), None)

    def to_dict(self) -> dict[str, Any]:
        """For `--json`: every repetition, and the medians."""
        return {
            "machine": self.machine,
            "startup": asdict(self.startup),
            "systems": {system.title: system.label for system in self.systems},
            "scenarios": {
                scenario.name: {
                    **asdict(scenario),
                    "ideal_runs_per_s": scenario.ideal,
                    "systems": {
                        system.title: {
                            "runs_per_s": cell.rate(scenario),
                            "runs_per_cpu_s": cell.rate(scenario, "cpu_s"),
                            "held_kb_per_run": cell.held_kb(scenario),
                            **asdict(cell),
                        }
                        for system in self.systems
                        for cell in [self.cell(scenario, system)]
                    },
                }
                for scenario in self.scenarios
            },
        }


_NOTES = "(share of bare asyncio; Rolegraph is so many times as fast)"


@dataclass(frozen=True, slots=True)
class Grid:
    """A table before it takes a form."""

    title: str
    head: list[str]
    rows: list[list[str]]


def grids(results: Results) -> list[Grid]:
    """Speed; imports and memory; memory by what is in flight."""
    timed = [scenario for scenario in results.scenarios if scenario.speed]
    held = sorted((s for s in results.scenarios if s.held), key=lambda scenario: scenario.runs)
    titles = [scenario.title for scenario in timed]
    speed = [[s.label, *(_speed(results, scenario, s) for scenario in timed)] for s in results.systems]
    if any(scenario.ideal for scenario in timed):
        speed.append(["ideal", *(_number(scenario.ideal) for scenario in timed)])
    memory = [
        [s.label, _import_ms(results, s), *(_peak(results.cell(scenario, s)) for scenario in timed)]
        for s in results.systems
    ]
    growth = [
        [s.label, *(_number(results.cell(scenario, s).held_kb(scenario), 1) for scenario in held)]
        for s in results.systems
    ]
    title = f"Runs per second {_NOTES}"
    tables = [
        Grid(title, ["", *titles], speed),
        Grid("Import in ms, and peak memory of the process in MB", ["", "import", *titles], memory),
    ]
    if held:
        head = ["", *(f"{scenario.runs:,} runs" for scenario in held)]
        tables.append(Grid("Memory in kB for each run, with all of them in flight at once", head, growth))
    return [*tables, *ratios(results, results.scenarios)]


def of_scenario(results: Results, scenario: Scenario) -> list[Grid]:
    """The figures of one load."""
    cells = [(system.label, results.cell(scenario, system), system) for system in results.systems]
    head = ["", "runs/s", "runs/CPU s", "peak MB"]
    rows = [
        [label, _speed(results, scenario, system), _number(cell.rate(scenario, "cpu_s")), _peak(cell)]
        for label, cell, system in cells
    ]
    if scenario.held:
        head.append("kB a run")
        for row, (_, cell, _) in zip(rows, cells, strict=True):
            row.append(_number(cell.held_kb(scenario), 1))
    return [
        Grid(f"{scenario.title}: {_rounds([scenario])} {_NOTES}", head, rows),
        *ratios(results, [scenario]),
    ]


def ratios(results: Results, scenarios: Sequence[Scenario]) -> list[Grid]:
    """This checkout over the other, measurement by measurement: the median, the least and the most."""
    if results.other is None:
        return []
    rows: list[list[str]] = []
    for name, figure in _COMPARED.items():
        row = [name]
        for scenario in scenarios:
            new, old = results.cell(scenario, ROLEGRAPH), results.cell(scenario, results.other)
            pairs = [] if new.problem or old.problem else zip(new.samples, old.samples, strict=True)
            row.append(_spread([figure(a) / figure(b) for a, b in pairs if figure(a) and figure(b)]))
        if any(cell != "–" for cell in row[1:]):
            rows.append(row)
    title = f"{ROLEGRAPH.title} here / {results.other.title}: median (least to most)"
    return [Grid(title, ["", *(scenario.title for scenario in scenarios)], rows)]


def _held_mb(sample: dict[str, Any]) -> float:
    return sample["held_mb"] - sample["rss_mb"] if "held_mb" in sample else 0.0


_COMPARED: dict[str, Callable[[dict[str, Any]], float]] = {
    "runs/s": lambda sample: 1 / sample["seconds"],
    "runs per processor second": lambda sample: 1 / sample["cpu_s"],
    "peak memory of the process": lambda sample: sample["peak_mb"],
    "memory for each run in flight": _held_mb,
}
"""Figures of a sample; where one is 0, it was not measured."""


def _spread(values: Sequence[float]) -> str:
    return f"{median(values):.3f} ({min(values):.3f} to {max(values):.3f})" if values else "–"


def _rounds(scenarios: Sequence[Scenario]) -> str:
    counts = sorted({scenario.repetitions for scenario in scenarios})
    return f"medians of {' to '.join(map(str, dict.fromkeys((counts[0], counts[-1]))))} repetitions"


def _speed(results: Results, scenario: Scenario, system: System) -> str:
    cell = results.cell(scenario, system)
    rate = cell.rate(scenario)
    if rate is None:
        return cell.problem or "–"
    bare = results.cell(scenario, BARE).rate(scenario)
    ours = results.cell(scenario, ROLEGRAPH).rate(scenario)
    notes = [f"{rate / bare:.2f}"] if bare else []
    if ours and system != ROLEGRAPH:
        notes.append(f"{ours / rate:.1f}×" if ours >= rate else f"{ours / rate:.2f}×")
    return f"{_number(rate)} ({'; '.join(notes)})" if notes else _number(rate)


def _import_ms(results: Results, system: System) -> str:
    times = results.startup.imports.get(system.title)
    return _number(median(times) * 1000) if times else "not installed"


def _peak(cell: Cell) -> str:
    return cell.problem or _number(cell.median("peak_mb"))


def _number(value: float | None, digits: int = 0) -> str:
    if value is None:
        return "–"
    return f"{value:,.{digits if value >= 10 or digits else 1}f}"


def sentences(results: Results) -> list[str]:
    """What the tables do not say."""
    at, s = results.machine, results.startup
    return [
        f"Python {at['python']}, {at['system']}, {at['cores']} cores, load {at['load']} at the start. "
        f"{_rounds(results.scenarios).capitalize()}.",
        f"rolegraph --help: {s.help_s * 1000:.0f} ms, of which Python {s.python_s * 1000:.0f} ms. "
        f"Load, check and compile of specs/solver_judge.yaml: {s.compile_later_s * 1000:.1f} ms "
        f"({s.compile_first_s * 1000:.1f} ms the first time in a process).",
    ]


def as_markdown(results: Results) -> str:
    """For the README."""
    parts: list[str] = []
    for grid in grids(results):
        rule = ["---", *["---:"] * (len(grid.head) - 1)]
        lines = [f"| {' | '.join(row)} |" for row in (grid.head, rule, *grid.rows)]
        parts.append("\n".join([f"{grid.title}:", "", *lines]))
    return "\n\n".join([*parts, *sentences(results)])


def show_startup(results: Results, console: Console) -> None:
    """For the terminal, before the first load."""
    rows = [[system.label, _import_ms(results, system)] for system in results.systems]
    _show([Grid("Import in ms", ["", "import"], rows)], console)
    for sentence in sentences(results):
        console.print(sentence, highlight=False, soft_wrap=True)


def show_scenario(results: Results, scenario: Scenario, console: Console) -> None:
    """For the terminal, after each load."""
    _show(of_scenario(results, scenario), console)


def _show(tables: Sequence[Grid], console: Console) -> None:
    for grid in tables:
        console.print(f"\n{grid.title}", style="bold", highlight=False, soft_wrap=True)
        table = Table()
        for position, title in enumerate(grid.head):
            table.add_column(title, justify="right" if position else "left")
        for row in grid.rows:
            table.add_row(*row)
        console.print(table)
