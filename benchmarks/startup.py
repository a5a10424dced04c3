"""How long things take before the first run: imports, `rolegraph --help`, and a spec from file to plan."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from statistics import median
from time import perf_counter

from scenarios import ROOT

COMPILE = """
import json, sys, time
from engine.compile.compiler import compile_file
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
    return _wall(["-m", "engine.cli", "--help"], repetitions)


def python_s(repetitions: int) -> float:
    """Median wall time of an interpreter that does nothing."""
    return _wall(["-c", "pass"], repetitions)


def compile_s(repetitions: int) -> tuple[float, float]:
    """Median times to load, check and compile solver_judge.yaml: the first of a process, and later ones."""
    command = [sys.executable, "-P", "-c", COMPILE, str(ROOT / "specs" / "solver_judge.yaml")]
    times: list[list[float]] = []
    for _ in range(repetitions):
        done = subprocess.run(command, env=environment(), check=True, stdout=subprocess.PIPE)
        times.append(json.loads(done.stdout))
    return median(first for first, *_ in times), median(median(later) for _, *later in times)


def _wall(arguments: list[str], repetitions: int) -> float:
    times: list[float] = []
    for _ in range(repetitions):
        start = perf_counter()
        subprocess.run(
            [sys.executable, "-P", *arguments], env=environment(), check=True, stdout=subprocess.DEVNULL
        )
        times.append(perf_counter() - start)
    return median(times)
