"""Commands that are broken and killed at random moments, and the count of what they lost.

    python benchmarks/chaos --minutes 10 --seed 0
    python benchmarks/chaos --only kills --only disks --of optimize --kills 20

`commands.py` lists the commands that write. Each is killed until it has met `--kills` kills, at moments drawn
from the time that an undisturbed one takes, and started on disks that are too small; then it goes on to its
end. Besides, runs ask a model behind a server that fails on purpose; trainings use the local service through
another. Both are killed, and resumed until they are whole; two commands write in one folder; a folder cannot
be written. What a command told as finished is looked for at each kill and after each resumption.
Counted besides: episodes that are missing, there twice or cut; trainings whose figures differ from an
unbroken one's; processes, sockets and temporary files left; tracebacks. The trials take turns, so that a few
minutes reach every kind. A table ends it, exit code 1 where any of those is not 0.
"""

from __future__ import annotations

import random
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import click
from counting import Count, table
from killing import Killed
from trials import Runs, Worlds
from trials_training import Trainings

Trial = Callable[[Count, random.Random], None]
KINDS = (
    "kills",
    "disks",
    "read-only",
    "runs",
    "pairs",
    "trainings",
    "training-pairs",
    "own-services",
    "services",
)


@click.command(help=(__doc__ or "").partition("\n")[0])
@click.option("--minutes", default=10.0, show_default=True, help="No trial begins later.")
@click.option("--seed", default=0, show_default=True)
@click.option("--only", multiple=True, type=click.Choice(KINDS), help="Kinds of trials; all by default.")
@click.option("--of", "names", multiple=True, help="Commands of kills and disks; all by default.")
@click.option("--kills", default=20, show_default=True, help="Kills of each command, and half as many disks.")
@click.option("--first", is_flag=True, help="End with the first trial that finds something.")
def main(
    minutes: float, seed: int, only: tuple[str, ...], names: tuple[str, ...], kills: int, first: bool
) -> None:
    """Break everything, and print what is lost."""
    rng, end = random.Random(seed), time.monotonic() + 60 * minutes
    with tempfile.TemporaryDirectory(prefix="chaos-") as folder, ExitStack() as stack:
        wanted = {*(only or KINDS)}
        trials: list[tuple[str, str, int, Trial]] = []
        if wanted & {"kills", "disks"}:
            killed = stack.enter_context(Killed(Path(folder) / "killed", names, kills))
            for command in killed.commands:
                trials += [
                    ("kills", f"{command.name}, killed", 1, partial(killed.kill, command)),
                    ("disks", f"{command.name}, disk full", 1, partial(killed.fill, command)),
                ]
        if wanted & {"read-only", "runs", "pairs"}:
            worlds = stack.enter_context(Worlds(Path(folder) / "worlds"))
            runs = stack.enter_context(Runs(Path(folder) / "runs", seed))
            trials += [
                ("read-only", "run, folder read-only", 2, worlds.read_only),
                ("runs", "run, server flaky, killed", 100, runs.trial),
                ("pairs", "run, two at once", 100, runs.pair),
            ]
        if wanted & {"trainings", "training-pairs", "services", "own-services"}:
            trainings = stack.enter_context(Trainings(Path(folder) / "trainings", seed))
            trials += [
                ("trainings", "train, service flaky, killed", 100, trainings.trial),
                ("training-pairs", "train, two at once", 100, trainings.pair),
                ("own-services", "run with a service of its own, killed", 3, trainings.own_service),
                ("services", "train, service killed", 3, trainings.without_service),
            ]
        trials = [trial for trial in trials if trial[0] in wanted]
        counts = {name: Count(name) for _, name, _, _ in trials}
        bad = False
        for turn in range(max(most for _, _, most, _ in trials)):
            for _, name, most, trial in trials:
                if turn < most and time.monotonic() < end and not (first and bad):
                    count, began = counts[name], time.monotonic()
                    trial(count, random.Random(rng.getrandbits(64)))
                    click.echo(f"{name}, {time.monotonic() - began:.0f} s: {count}")
                    bad = any(count.bad for count in counts.values())
    click.echo(f"seed {seed}\n{table([*counts.values()])}")
    sys.exit(bad)


if __name__ == "__main__":
    main()
