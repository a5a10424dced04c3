"""How long things take before the first run: imports, `rolegraph --help`, and a spec from file to plan.

    python benchmarks/startup.py                              # what a person waits for
    python benchmarks/startup.py --against DIR --repetitions 7   # beside another checkout of Rolegraph

Each measurement is a process of its own; with `--against` the two checkouts take turns, and the median of the
ratios, round by round, counts. The last row is what no `validate` can go below: the packages that it cannot
do without, and nothing of this project.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from time import perf_counter

import click
from scenarios import ROOT

COMPILE = """
import json, sys, time
from rolegraph.engine.compile.compiler import compile_file
times = []
for _ in range(11):
    start = time.perf_counter()
    compile_file(sys.argv[1])
    times.append(time.perf_counter() - start)
print(json.dumps(times))
"""


def environment(checkout: Path = ROOT) -> dict[str, str]:
    """That of a process which imports a checkout's Rolegraph and benchmarks, whatever is installed."""
    path = [str(checkout), str(checkout / "benchmarks"), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path)}


def help_s(repetitions: int) -> float:
    """Median wall time of `rolegraph --help`, with the interpreter's own start."""
    return median(_wall(["-m", "rolegraph", *WAITS["rolegraph --help"]]) for _ in range(repetitions))


def python_s(repetitions: int) -> float:
    """Median wall time of an interpreter that does nothing."""
    return median(_wall(["-c", "pass"]) for _ in range(repetitions))


def compile_s(repetitions: int) -> tuple[float, float]:
    """Median times to load, check and compile solver_judge.yaml: the first of a process, and later ones."""
    command = [sys.executable, "-P", "-c", COMPILE, str(ROOT / "specs" / "solver_judge.yaml")]
    times: list[list[float]] = []
    for _ in range(repetitions):
        done = subprocess.run(command, env=environment(), check=True, stdout=subprocess.PIPE)
        times.append(json.loads(done.stdout))
    return median(first for first, *_ in times), median(median(later) for _, *later in times)


def _wall(arguments: list[str], checkout: Path = ROOT) -> float:
    """Seconds that one process takes; it must end well."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "roles.yaml").write_text("roles: {solver: {count: 2}, judge: {needs: solver}}")
        start = perf_counter()
        subprocess.run(
            [sys.executable, "-P", *arguments],
            cwd=folder,
            env=environment(checkout),
            check=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        return perf_counter() - start


PACKAGES = """
import click, jinja2.sandbox, yaml
from importlib.metadata import Distribution
from pydantic import BaseModel
class Model(BaseModel):
    count: int = 1
Model.model_validate({"count": 2})
yaml.safe_load(open("roles.yaml"))
jinja2.sandbox.SandboxedEnvironment().from_string("{{ task.question }}")
Distribution.from_name("rolegraph").entry_points
"""
VALIDATE = "rolegraph validate solver_judge"
WAITS = {
    "rolegraph --help": ["--help"],
    VALIDATE: ["validate", "solver_judge"],
    "rolegraph run solver_judge --limit 1": ["run", "solver_judge", "--limit", "1"],
}
"""What a person waits for before anything has been done."""


@click.command(help=(__doc__ or "").partition("\n")[0])
@click.option("--repetitions", type=click.IntRange(min=1), default=5, show_default=True)
@click.option(
    "--against",
    type=click.Path(exists=True, file_okay=False, resolve_path=True, path_type=Path),
    metavar="DIR",
    help="Another checkout of Rolegraph, to compare with this one.",
)
def main(repetitions: int, against: Path | None) -> None:
    measured = {title: ["-m", "rolegraph", *words] for title, words in WAITS.items()}
    measured["click, pyyaml, jinja2 and pydantic alone, beside validate"] = ["-c", PACKAGES]
    for title, arguments in measured.items():
        click.echo(title)
        theirs = arguments if title in WAITS else measured[VALIDATE]
        ours: list[float] = []
        ratios: list[float] = []
        for turn in range(1, repetitions + 1):
            # By turns the first, so that a warm disk favours neither.
            order = [ROOT, *([against] if against else [])][:: 1 if turn % 2 else -1]
            took = {one: _wall(arguments if one == ROOT else theirs, one) for one in order}
            ours.append(took[ROOT])
            line = f"  {turn}: {ours[-1]:.2f} s"
            if against is not None:
                ratios.append(ours[-1] / took[against])
                line += f", {against.name} {took[against]:.2f} s, {ratios[-1]:.2f} of it"
            click.echo(line)
        click.echo(f"  median {median(ours):.2f} s" + (f", {median(ratios):.2f}" if ratios else ""))


if __name__ == "__main__":
    main()
