"""What orchestration costs: one workflow on a stub model, in Rolegraph, plain asyncio and other systems.

    python benchmarks/overhead.py                                  # tables on the terminal
    python benchmarks/overhead.py --markdown --json overhead.json  # the same for the README; all figures

Each measurement is a process of its own (`worker.py`); the systems take turns, so that a busy machine slows
them alike, and the median counts. All render the same prompts (checked), ask the same stub, read its answers
and reward them in the same way (`stub.py`); what differs is in `peers/`. Setting a workflow up is not timed.
The other systems come with `pip install -e '.[bench]'`; one that is missing is shown as not installed.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
from report import Cell, Results, Startup, as_markdown, show
from rich.console import Console
from scenarios import BARE, SCENARIOS, SYSTEMS, Scenario, System
from startup import ENVIRONMENT, HERE, compile_s, help_s, python_s

LIMIT_S = 300
"""The longest that one measurement may take."""
STARTUP_REPETITIONS = 7

errors = Console(stderr=True, highlight=False)


@click.command(help=(__doc__ or "").partition("\n")[0])
@click.option("--repetitions", type=click.IntRange(min=1), default=5, show_default=True)
@click.option("--scenario", "names", type=click.Choice([s.name for s in SCENARIOS]), multiple=True)
@click.option("--system", "modules", type=click.Choice([s.module for s in SYSTEMS]), multiple=True)
@click.option("--markdown", is_flag=True, help="Print Markdown.")
@click.option(
    "--json", "file", type=click.Path(path_type=Path), help="Write every figure here, after each scenario."
)
def main(
    repetitions: int, names: tuple[str, ...], modules: tuple[str, ...], markdown: bool, file: Path | None
) -> None:
    scenarios = [scenario for scenario in SCENARIOS if not names or scenario.name in names]
    systems = [system for system in SYSTEMS if not modules or system.module in modules]
    results = Results(machine(), repetitions, systems, scenarios, startup(systems))
    for scenario in scenarios:
        results.cells.update(compare(scenario, systems, repetitions))
        if file is not None:
            file.write_text(json.dumps(results.to_dict(), indent=2) + "\n", encoding="utf-8")
    if markdown:
        click.echo(as_markdown(results))
    else:
        show(results, Console())
    faults = different_prompts(results)
    for fault in faults:
        errors.print(fault, style="red")
    sys.exit(1 if faults or any(cell.failed for cell in results.cells.values()) else 0)


def compare(scenario: Scenario, systems: Sequence[System], repetitions: int) -> dict[tuple[str, str], Cell]:
    """A cell for each system: all of them once, then all again."""
    cells = {(scenario.name, system.module): Cell() for system in systems}
    rounds = min(repetitions, scenario.repetitions)
    for turn in range(rounds):
        for system in systems:
            cell = cells[scenario.name, system.module]
            if system.version is None:
                cell.problem = "not installed"
            if not cell.problem:
                errors.print(f"{scenario.title} ({turn + 1} of {rounds}): {system.title}", style="dim")
                measured = measure(system, scenario)
                if isinstance(measured, str):
                    cell.problem = measured
                else:
                    cell.samples.append(measured)
    return cells


def measure(system: System, scenario: Scenario | None) -> dict[str, Any] | str:
    """What the worker says, or in a word what went wrong. Without a scenario it only imports."""
    load = ["0", "0", "0", "0", "-"]
    if scenario is not None:
        held = "held" if scenario.held else "-"
        numbers = (scenario.runs, scenario.in_flight, scenario.solvers, scenario.latency)
        load = [*map(str, numbers), held]
    command = [sys.executable, str(HERE / "worker.py"), system.module, *load]
    try:
        done = subprocess.run(
            command, env=ENVIRONMENT, capture_output=True, text=True, timeout=LIMIT_S, check=False
        )
    except subprocess.TimeoutExpired:
        return f"over {LIMIT_S} s"
    if done.returncode:
        errors.print(f"{system.title}: {done.stderr[-2000:].strip()}", style="red", markup=False)
        return "failed"
    return json.loads(done.stdout.splitlines()[-1])


def startup(systems: Sequence[System]) -> Startup:
    """Everything that happens before a run."""
    imports: dict[str, list[float]] = {system.module: [] for system in systems}
    for _ in range(STARTUP_REPETITIONS):
        for system in systems:
            measured = measure(system, None) if system.version is not None else ""
            if not isinstance(measured, str):
                imports[system.module].append(measured["import_s"])
    first, later = compile_s(STARTUP_REPETITIONS)
    return Startup(imports, help_s(STARTUP_REPETITIONS), python_s(STARTUP_REPETITIONS), first, later)


def different_prompts(results: Results) -> list[str]:
    """Systems that were not asked the same: a comparison with them means nothing."""
    faults: list[str] = []
    for scenario in results.scenarios:
        asked = {system: results.cell(scenario, system).prompts for system in results.systems}
        expected = asked.get(BARE) or next((digest for digest in asked.values() if digest), None)
        faults += [
            f"{scenario.title}: {system.title} renders other prompts than {BARE.title}; "
            "bring solver_prompt and judge_prompt in benchmarks/stub.py in line with prompts/*.j2"
            for system, digest in asked.items()
            if digest and digest != expected
        ]
    return faults


def machine() -> dict[str, Any]:
    """Where the figures come from."""
    return {
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "cores": os.cpu_count(),
        "load": round(os.getloadavg()[0], 1) if hasattr(os, "getloadavg") else None,
    }


if __name__ == "__main__":
    main()
