"""Memory and time of `rolegraph run` by the number of episodes: as many bytes for a million as for 10,000?

    python benchmarks/long_run.py                      # a Markdown table, about five minutes
    python benchmarks/long_run.py --episodes 100000

The spec asks no model, so that the run is bound by the engine and the disk. Each run is a process of its own.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from pathlib import Path

import click

SPEC = """\
rolegraph: 2
name: long_run
data: {validation: countdown}
roles:
  solver: {run: {text: "{{ task.target }}"}, reward: countdown}
"""
TASKS = 2000
FEW = 10_000


def measured(spec: Path, episodes: int) -> tuple[float, float, float]:
    """Make episodes, and return the process's peak memory in MB, CPU seconds and file size in MB."""
    out = spec.parent / f"run-{episodes}"
    words = ["run", str(spec), "--limit", str(TASKS), "--rollouts", str(episodes // TASKS)]
    child = os.posix_spawn(
        sys.executable,
        [sys.executable, "-m", "rolegraph", *words, "--out", str(out)],
        os.environ,
        file_actions=[(os.POSIX_SPAWN_OPEN, fd, os.devnull, os.O_WRONLY, 0) for fd in (1, 2)],
    )
    _, status, used = os.wait4(child, 0)
    if status:
        raise SystemExit(f"rolegraph run ended with {os.waitstatus_to_exitcode(status)}")
    peak = used.ru_maxrss / (2**20 if sys.platform == "darwin" else 1024)
    return peak, used.ru_utime + used.ru_stime, (out / "episodes.jsonl").stat().st_size / 1e6


@click.command(help=__doc__)
@click.option("--episodes", default=1_000_000)
def main(episodes: int) -> None:
    print("| episodes | peak memory, MB | relative | CPU, s | episodes.jsonl, MB | wall clock, s |")
    print("| ---: | ---: | ---: | ---: | ---: | ---: |")
    first = 0.0
    with tempfile.TemporaryDirectory() as name:
        spec = Path(name) / "spec.yaml"
        spec.write_text(SPEC, encoding="utf-8")
        for count in (FEW, episodes):
            began = time.monotonic()
            peak, seconds, size = measured(spec, count)
            first = first or peak
            wall = time.monotonic() - began
            print(
                f"| {count:,} | {peak:.1f} | {peak / first:.3f} | {seconds:.0f} | {size:,.0f} | {wall:.0f} |"
            )


if __name__ == "__main__":
    main()
