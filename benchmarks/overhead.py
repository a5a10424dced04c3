"""What orchestration costs: one workflow (solvers, then a judge) on a stub model, in five systems.

    python benchmarks/overhead.py                         # a table on the terminal
    python benchmarks/overhead.py --markdown --json results.json

Each measurement is a process of its own; repetitions take turns among the systems, and the median counts. All
systems build the same prompts, ask the same stub, read its answers and score them with the same function
(peers/common.py), and each worker checks that every run ended in the right answer. Setting the workflow up is
not timed. Rolegraph comes from the checkout; the others from `pip install '.[bench]'`, and one that is not
there is shown as not installed.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import platform
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

HERE = Path(__file__).resolve().parent
SECONDS = 600
"""The longest that one measurement may take."""
SMALL_REPEATS = 5
"""Of imports, `--help` and compiling."""


@dataclass(frozen=True)
class System:
    """One of those compared: its module in peers/, the import and the distribution it needs."""

    module: str
    title: str
    needs: str | None = None
    distribution: str | None = None

    @property
    def installed(self) -> bool:
        return self.needs is None or importlib.util.find_spec(self.needs) is not None

    @property
    def label(self) -> str:
        try:
            return f"{self.title} {version(self.distribution)}" if self.distribution else self.title
        except PackageNotFoundError:
            return self.title


@dataclass(frozen=True)
class Scenario:
    """How many runs, how many at a time, of how many solvers, on a model how slow (seconds)."""

    title: str
    runs: int
    in_flight: int
    solvers: int = 2
    latency: float = 0.0

    @property
    def arguments(self) -> list[str]:
        return [str(value) for value in (self.runs, self.in_flight, self.solvers, self.latency)]


SYSTEMS = (
    System("bare", "bare asyncio"),
    System("rolegraph", "Rolegraph"),
    System("haystack", "Haystack", "haystack", "haystack-ai"),
    System("langgraph", "LangGraph", "langgraph", "langgraph"),
    System("llamaindex", "llama-index workflows", "workflows", "llama-index-workflows"),
)
SCENARIOS = (
    Scenario("zero latency, 128 in flight", 2_000, 128),
    Scenario("20 ms latency, 128 in flight", 2_000, 128, latency=0.02),
    Scenario("256 solvers, 20 runs", 20, 20, solvers=256),
    Scenario("10,000 in flight", 10_000, 10_000),
)
MEMORY = tuple(Scenario(f"{n:,} in flight, 1 s latency", n, n, latency=1.0) for n in (1_000, 5_000, 10_000))
"""A model slow enough that all runs wait for it at once."""
NOTHING = Scenario("import", 0, 0)


@dataclass
class Cell:
    """One system in one scenario: what each repetition measured, or why there is nothing."""

    rates: list[float] = field(default_factory=list)
    peaks_mb: list[float] = field(default_factory=list)
    grown_mb: list[float] = field(default_factory=list)
    problem: str = ""

    @property
    def rate(self) -> float | None:
        return median(self.rates) if self.rates else None


def environment() -> dict[str, str]:
    """This process's, with the checkout and the peers importable."""
    paths = [str(HERE.parent), str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}


def measure(system: System, scenario: Scenario) -> dict[str, float] | str:
    """What worker.py measured in a fresh process, or what went wrong."""
    command = [sys.executable, str(HERE / "worker.py"), system.module, *scenario.arguments]
    try:
        done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=SECONDS)
    except subprocess.TimeoutExpired:
        return f"over {SECONDS} s"
    if done.returncode:
        print(done.stderr[-2000:], file=sys.stderr)
        return "failed"
    return json.loads(done.stdout.splitlines()[-1])


def measure_all(
    systems: Sequence[System], scenarios: Sequence[Scenario], repeats: int
) -> dict[str, dict[str, Cell]]:
    """Cells by scenario, then system; the systems take turns, so that a slow minute hits them all."""
    cells = {scenario.title: {system.module: Cell() for system in systems} for scenario in scenarios}
    for scenario in scenarios:
        for repeat in range(repeats):
            for system in systems:
                cell = cells[scenario.title][system.module]
                if not system.installed:
                    cell.problem = "not installed"
                if cell.problem:
                    continue
                note(f"{scenario.title}, {repeat + 1} of {repeats}: {system.title}")
                found = measure(system, scenario)
                if isinstance(found, str):
                    cell.problem = found
                else:
                    cell.rates.append(found["rate"])
                    cell.peaks_mb.append(found["peak_mb"])
                    cell.grown_mb.append(found["peak_mb"] - found["before_mb"])
    return cells


def import_seconds(system: System) -> float | None:
    """Median time to import what a program in that system imports."""
    if not system.installed:
        return None
    found = [measure(system, NOTHING) for _ in range(SMALL_REPEATS)]
    times = [one["import_s"] for one in found if not isinstance(one, str)]
    return median(times) if times else None


def help_seconds() -> float:
    """Median wall time of `rolegraph --help`, the interpreter's start counted."""
    times: list[float] = []
    for _ in range(SMALL_REPEATS):
        start = perf_counter()
        command = [sys.executable, "-m", "engine.cli", "--help"]
        subprocess.run(command, env=environment(), check=True, capture_output=True)
        times.append(perf_counter() - start)
    return median(times)


def compile_seconds() -> dict[str, float]:
    """Load + check + compile of solver_judge.yaml: the first in a process, and the median of later ones."""
    code = f"""
import json, statistics, time
from engine.compiler import compile_file
times = []
for _ in range({SMALL_REPEATS} + 1):
    start = time.perf_counter()
    compile_file({str(HERE.parent / "specs" / "solver_judge.yaml")!r})
    times.append(time.perf_counter() - start)
print(json.dumps([times[0], statistics.median(times[1:])]))
"""
    found: list[list[float]] = []
    for _ in range(SMALL_REPEATS):
        done = subprocess.run(
            [sys.executable, "-c", code], env=environment(), check=True, capture_output=True, text=True
        )
        found.append(json.loads(done.stdout))
    return {"first": median(one[0] for one in found), "later": median(one[1] for one in found)}


# what is shown


def table(head: Sequence[str], rows: Sequence[Sequence[str]], markdown: bool) -> str:
    """Rows under a head, the first column to the left and the others to the right."""
    if markdown:
        rule = ["---", *["---:"] * (len(head) - 1)]
        return "\n".join(f"| {' | '.join(row)} |" for row in (head, rule, *rows))
    widths = [max(len(row[i]) for row in (head, *rows)) for i in range(len(head))]
    lines = [
        "  ".join(
            [
                row[0].ljust(widths[0]),
                *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)),
            ]
        )
        for row in (head, *rows)
    ]
    return "\n".join([lines[0], "-" * len(lines[0]), *lines[1:]])


def number(value: float | None, unit: str = "", digits: int = 0) -> str:
    """A figure for people; a dash where there is none. Small figures keep two digits."""
    if value is None:
        return "–"
    return f"{value:,.{digits if abs(value) >= 10 or digits else 1}f}{unit}"


def speed_rows(cells: dict[str, dict[str, Cell]], systems: Sequence[System]) -> list[list[str]]:
    """Per system: runs/s in each scenario, as a share of bare asyncio's, and how Rolegraph compares."""
    rows: list[list[str]] = []
    for system in systems:
        row = [system.label]
        for by_system in cells.values():
            cell, bare, ours = by_system[system.module], by_system["bare"].rate, by_system["rolegraph"].rate
            if cell.rate is None:
                row.append(cell.problem)
                continue
            details = (
                [f"{cell.rate / bare:.0%}" if cell.rate / bare >= 0.1 else f"{cell.rate / bare:.1%}"]
                if bare
                else []
            )
            if ours and system.module not in ("bare", "rolegraph"):
                details.append(f"{ours / cell.rate:.1f}× slower")
            row.append(f"{number(cell.rate)} ({', '.join(details)})")
        rows.append(row)
    return rows


def memory_rows(
    cells: dict[str, dict[str, Cell]], imports: dict[str, float | None], systems: Sequence[System]
) -> list[list[str]]:
    """Per system: time to import, and peak memory in each scenario."""
    return [
        [
            system.label,
            number(seconds * 1000, " ms")
            if (seconds := imports[system.module]) is not None
            else "not installed",
            *(
                number(max(cell.peaks_mb), " MB") if cell.peaks_mb else cell.problem
                for cell in (by_system[system.module] for by_system in cells.values())
            ),
        ]
        for system in systems
    ]


def growth_rows(cells: dict[str, dict[str, Cell]], systems: Sequence[System]) -> list[list[str]]:
    """Per system: what memory grew by, in all and for each run, as more runs wait for the model at once."""
    rows: list[list[str]] = []
    for system in systems:
        row = [system.label]
        for scenario in MEMORY:
            cell = cells[scenario.title][system.module]
            if not cell.grown_mb:
                row.append(cell.problem)
                continue
            grown = median(cell.grown_mb)
            row.append(f"+{number(grown, ' MB')} ({number(grown * 1024 / scenario.runs, ' kB', 1)} a run)")
        rows.append(row)
    return rows


def report(results: dict[str, Any], systems: Sequence[System], markdown: bool) -> str:
    cells, memory = results["cells"], results["memory"]
    compiled = results["compile_s"]
    parts = [
        f"{results['machine']}; median of {results['repeats']} repetitions, each system in its own process."
        + (f" A quick look, at {results['scale']:g} of the runs." if results["scale"] != 1 else ""),
        "Runs per second (share of bare asyncio; how much slower than Rolegraph):",
        table(["", *cells], speed_rows(cells, systems), markdown),
        "Time to import, and peak memory:",
        table(["", "import", *cells], memory_rows(cells, results["import_s"], systems), markdown),
        "Memory gained as more runs wait for a slow model at once:",
        table(["", *(f"{s.runs:,} in flight" for s in MEMORY)], growth_rows(memory, systems[:2]), markdown),
        f"`rolegraph --help` takes {results['help_s'] * 1000:.0f} ms; loading, checking and compiling "
        f"solver_judge.yaml {compiled['first'] * 1000:.1f} ms the first time in a process, "
        f"{compiled['later'] * 1000:.1f} ms later.",
    ]
    return "\n\n".join(parts)


def note(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def machine() -> str:
    system = f"{platform.system()} {platform.machine()}"
    return f"{os.cpu_count()} cores, {system}, Python {platform.python_version()}"


def main() -> None:
    parser = argparse.ArgumentParser(description="Compare what orchestration costs in five systems.")
    parser.add_argument("--markdown", action="store_true", help="print Markdown tables")
    parser.add_argument("--json", type=Path, metavar="FILE", help="save every figure here")
    parser.add_argument("--repeats", type=int, default=3, help="repetitions of each measurement (3)")
    parser.add_argument(
        "--scale", type=float, default=1.0, help="do this share of the runs, for a quick look"
    )
    options = parser.parse_args()

    scenarios = [
        Scenario(s.title, max(1, int(s.runs * options.scale)), s.in_flight, s.solvers, s.latency)
        for s in SCENARIOS
    ]
    results = {
        "machine": machine(),
        "repeats": options.repeats,
        "scale": options.scale,
        "import_s": {system.module: import_seconds(system) for system in SYSTEMS},
        "help_s": help_seconds(),
        "compile_s": compile_seconds(),
        "cells": measure_all(SYSTEMS, scenarios, options.repeats),
        "memory": measure_all(SYSTEMS[:2], MEMORY, options.repeats),
    }
    if options.json:
        results_json = {**results, "systems": {s.module: s.label for s in SYSTEMS}}
        options.json.write_text(json.dumps(results_json, indent=2, default=asdict) + "\n", encoding="utf-8")
    print(report(results, SYSTEMS, options.markdown))


if __name__ == "__main__":
    main()
