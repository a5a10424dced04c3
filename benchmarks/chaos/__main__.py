"""Breaks the world around runs and trainings, kills them at random moments, and counts what they lost.

    python benchmarks/chaos --minutes 10 --seed 0

Runs ask a model behind a server that fails on purpose; trainings use the local service through another. Both
are killed, and taken up with `--resume` until they are whole. A disk fills up, a folder cannot be written.
What is counted after each: episodes that are missing, there twice or cut; trainings whose figures differ from
an unbroken one's; processes, sockets and temporary files left; tracebacks. A table ends it, exit code 1 where
any of those is not 0.
"""

from __future__ import annotations

import random
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import click
from counting import Count, table
from trials import Runs, Worlds
from trials_training import Trainings


@click.command(help=(__doc__ or "").partition("\n")[0])
@click.option("--minutes", default=10.0, show_default=True, help="No trial begins later.")
@click.option("--seed", default=0, show_default=True)
@click.option("--worlds", default=2, show_default=True, help="Full disks, and read-only folders.")
@click.option("--runs", default=18, show_default=True, help="Runs that are killed, five times each.")
@click.option(
    "--trainings", default=5, show_default=True, help="Trainings that are killed, three times each."
)
@click.option("--services", default=2, show_default=True, help="Trainings whose service is killed.")
def main(minutes: float, seed: int, worlds: int, runs: int, trainings: int, services: int) -> None:
    """Break everything, and print what is lost."""
    rng, end = random.Random(seed), time.monotonic() + 60 * minutes
    counts: list[Count] = []

    def trials(name: str, many: int, trial: Callable[[Count, random.Random], None]) -> None:
        count = Count(name)
        counts.append(count)
        for number in range(many):
            if time.monotonic() > end:
                click.echo(f"{name}: no time for {many - number} more")
                return
            trial(count, random.Random(rng.getrandbits(64)))
            click.echo(f"{name}: {count}")

    with tempfile.TemporaryDirectory(prefix="chaos-") as folder:
        with Worlds(Path(folder) / "worlds") as broken:
            trials("run, disk full", worlds, broken.full)
            trials("run, folder read-only", worlds, broken.read_only)
        with Runs(Path(folder) / "runs", seed) as ours:
            trials("run, server flaky, killed", runs, ours.trial)
        if trainings or services:
            with Trainings(Path(folder) / "trainings", seed) as ours:
                trials("train, service flaky, killed", trainings, ours.trial)
                trials("train, service killed", services, ours.without_service)
                trials("run with a service of its own, killed", services, ours.own_service)
    click.echo(f"seed {seed}\n{table(counts)}")
    sys.exit(any(count.bad for count in counts))


if __name__ == "__main__":
    main()
