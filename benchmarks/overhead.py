"""What orchestration costs: one workflow on a stub model, in Rolegraph, plain asyncio and other systems.

    python benchmarks/overhead.py                                  # tables on the terminal
    python benchmarks/overhead.py --markdown --json overhead.json  # the same for the README; all figures
    python benchmarks/overhead.py --system rolegraph_peer --against DIR --repetitions 7

Each measurement is a process of its own (`worker.py`); the systems take turns, so that a busy machine slows
them alike, and the median counts. All render the same prompts (checked), ask the same stub, read its answers
and reward them in the same way (`stub.py`); what differs is in `peers/`. Setting a workflow up is not timed.
The other systems come with `pip install -e '.[bench]'`; one that is missing is shown as not installed.
`--against` measures another checkout of Rolegraph beside this one, through its own
`benchmarks/peers/rolegraph_peer.py`, and gives their ratios, round by round.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
from report import Cell, Results, Startup, as_markdown, show_scenario, show_startup
from rich.console import Console
from scenarios import BARE, ROLEGRAPH, ROOT, SCENARIOS, SYSTEMS, Scenario, System
from startup import compile_s, environment, help_s, python_s

LIMIT_S = 300
"""The longest that one measurement may take."""
STARTUP_REPETITIONS = 7

errors = Console(stderr=True, highlight=False)


@click.command(help=(__doc__ or "").partition("\n")[0])
@click.option("--repetitions", type=click.IntRange(min=1), help="Rounds of each scenario.")
@click.option("--scenario", "names", type=click.Choice([s.name for s in SCENARIOS]), multiple=True)
@click.option("--system", "modules", type=click.Choice([s.module for s in SYSTEMS]), multiple=True)
@click.option(
    "--against",
    type=click.Path(exists=True, file_okay=False, resolve_path=True, path_type=Path),
    metavar="DIR",
    help="Another checkout of Rolegraph, to compare with this one.",
)
@click.option("--markdown", is_flag=True, help="Print Markdown in the end.")
@click.option(
    "--json", "file", type=click.Path(path_type=Path), help="Write every figure here, after each scenario."
)
def main(
    repetitions: int | None,
    names: tuple[str, ...],
    modules: tuple[str, ...],
    against: Path | None,
    markdown: bool,
    file: Path | None,
) -> None:
    console = Console(stderr=markdown)
    scenarios = [
        replace(scenario, repetitions=repetitions or scenario.repetitions)
        for scenario in SCENARIOS
        if not names or scenario.name in names
    ]
    systems = chosen(modules, against)
    results = Results(machine(), systems=systems, scenarios=scenarios, startup=startup(systems))
    show_startup(results, console)
    for scenario in scenarios:
        results.cells.update(compare(scenario, systems))
        show_scenario(results, scenario, console)
        if file is not None:
            file.write_text(json.dumps(results.to_dict(), indent=2) + "\n", encoding="utf-8")
    if markdown:
        click.echo(as_markdown(results))
    faults = different_prompts(results)
    for fault in faults:
        errors.print(fault, style="red")
    sys.exit(1 if faults or any(cell.failed for cell in results.cells.values()) else 0)


def chosen(modules: Sequence[str], against: Path | None) -> list[System]:
    """The systems to measure; another checkout comes right after this one."""
    systems: list[System] = []
    for system in SYSTEMS:
        if not modules or system.module in modules or (against and system == ROLEGRAPH):
            systems.append(system)
        if against and system == ROLEGRAPH:
            systems.append(replace(system, title=f"{system.title} in {against.name}", checkout=against))
    return systems


def compare(scenario: Scenario, systems: Sequence[System]) -> dict[tuple[Scenario, System], Cell]:
    """A cell for each system: all of them once, then all again in the opposite order."""
    cells = {(scenario, system): Cell() for system in systems}
    for turn in range(scenario.repetitions):
        for system in systems[:: -1 if turn % 2 else 1]:
            cell = cells[scenario, system]
            if system.version is None:
                cell.problem = "not installed"
            if not cell.problem:
                turns = f"{turn + 1} of {scenario.repetitions}"
                errors.print(f"{scenario.title} ({turns}): {system.title}", style="dim")
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
    # -P: what the worker imports is the system's checkout's, not what lies beside the worker.
    command = [sys.executable, "-P", str(ROOT / "benchmarks" / "worker.py"), system.module, *load]
    try:
        done = subprocess.run(
            command,
            cwd=system.checkout,
            env=environment(system.checkout),
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"over {LIMIT_S} s"
    if done.returncode:
        errors.print(f"{system.title}: {done.stderr[-2000:].strip()}", style="red", markup=False)
        return "failed"
    return json.loads(done.stdout.splitlines()[-1])


def startup(systems: Sequence[System]) -> Startup:
    """Everything that happens before a run."""
    imports: dict[str, list[float]] = {system.title: [] for system in systems}
    for turn in range(STARTUP_REPETITIONS):
        errors.print(f"imports ({turn + 1} of {STARTUP_REPETITIONS})", style="dim")
        for system in systems:
            measured = measure(system, None) if system.version is not None else ""
            if not isinstance(measured, str):
                imports[system.title].append(measured["import_s"])
    first, later = compile_s(STARTUP_REPETITIONS)
    return Startup(
        imports,
        help_s=help_s(STARTUP_REPETITIONS),
        python_s=python_s(STARTUP_REPETITIONS),
        compile_first_s=first,
        compile_later_s=later,
    )


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
