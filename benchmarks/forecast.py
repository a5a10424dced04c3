"""Forecasts of a first step from a probe, beside what that step then came to, on shipped specs.

    python benchmarks/forecast.py
    python benchmarks/forecast.py --trials 3 solver_judge debate

A trial is a probe of 32 episodes, and the first step of a training with the same seed, as one types them one
after the other. Calls have to stay under their bound and tokens within 20 %; how far each role's share of
groups that teach is off is shown. With `--apart` the seeds differ: other tasks, other samples, the same
weights.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import click

import rolegraph as rg
from rolegraph.engine.records import RunFolder, read_episodes
from rolegraph.local.launcher import BASE_MODEL, LocalService, running
from rolegraph.outlook.forecast import Forecast

SPECS = ("solver_judge", "solver_judge_validator", "best_of_n", "solver_verifier_loop", "debate")
SIZE = ("train.steps=1", "train.validation={every: 0, tasks: 1, rollouts: 1}")
PROBE = 32
OFF = 0.2
"""How far a step's tokens may be from the forecast."""


@dataclass(frozen=True)
class Trial:
    """A forecast and its step."""

    calls: float
    """Made, over the bound."""
    asked: float
    """Prompt tokens that came, over those that were told."""
    answered: float
    taught: dict[str, tuple[float, float]]
    """By role: the share of groups that teach in the forecast and in the step."""

    @property
    def close(self) -> bool:
        """Whether its tokens were near enough."""
        return max(abs(self.asked - 1), abs(self.answered - 1)) <= OFF


def trial(spec: str, number: int, service: LocalService, out: Path, apart: int) -> Trial:
    """One forecast, and one first step."""
    flow = rg.load(spec, *SIZE, base_url=service.base_url)
    told = rg.forecast(flow, probe=PROBE, seed=apart + number)
    rg.train(flow, out=out, seed=number)
    came = rg.forecast(flow, run=out)
    ((_, file),) = RunFolder(out).episodes_files("train")
    turns = (t for episode in read_episodes(file) for t in episode.trajectories)
    calls = sum(not step.tool for turn in turns for step in turn.steps)
    taught: dict[str, tuple[float, float]] = {}
    for name, row in told.roles.items():
        then = came.roles[name].teaching
        if row.teaching and then:
            taught[name] = (row.teaching.mean, then.mean)
    return Trial(
        calls / told.calls_at_most, _over(came, told, "prompt"), _over(came, told, "response"), taught
    )


def _over(came: Forecast, told: Forecast, kind: str) -> float:
    return (came.tokens(kind) or 0.0) / (told.tokens(kind) or 1.0)


def show(number: int, row: Trial) -> None:
    """Print a trial."""
    taught = "  ".join(
        f"{role} {came:.2f} after {forecast:.2f}" for role, (forecast, came) in row.taught.items()
    )
    click.echo(
        f"  {number:2}  calls {row.calls:.2f}  prompt {row.asked:.2f}  response {row.answered:.2f}  {taught}"
    )


def summary(spec: str, rows: Sequence[Trial]) -> str:
    """A line of the table."""
    trials = len(rows)
    roles = sorted({role for row in rows for role in row.taught})
    pairs = {role: [row.taught[role] for row in rows if role in row.taught] for role in roles}
    errors = {role: [abs(told - came) for told, came in found] for role, found in pairs.items()}
    teaching = [f"{role} {median(found):.2f}" for role, found in errors.items()]
    off = [max(abs(row.asked - 1), abs(row.answered - 1)) for row in rows]
    return (
        f"| {spec} | {max(row.calls for row in rows):.2f} | {sum(row.close for row in rows)}/{trials} "
        f"| {median(off):.0%}, {max(off):.0%} | {', '.join(teaching)} |"
    )


@click.command(help=(__doc__ or "").partition("\n")[0])
@click.argument("specs", nargs=-1)
@click.option("--trials", default=10, show_default=True)
@click.option("--apart", is_flag=True, help="A seed of its own for the probe.")
def main(specs: tuple[str, ...], trials: int, apart: bool) -> None:
    """Make the trials, and print a table."""
    table: list[str] = []
    with TemporaryDirectory() as scratch, running(BASE_MODEL) as service:
        os.environ["TINKER_API_KEY"] = service.api_key
        for spec in specs or SPECS:
            click.echo(spec)
            rows: list[Trial] = []
            for number in range(trials):
                out = Path(scratch) / f"{spec}-{number}"
                rows.append(trial(spec, number, service, out, 1000 * apart))
                show(number, rows[-1])
            table.append(summary(spec, rows))
    click.echo(
        "\n| spec | calls over their bound | tokens within 20 % | off: median, most | teaching off, median |"
    )
    click.echo("| --- | --- | --- | --- | --- |\n" + "\n".join(table))


if __name__ == "__main__":
    main()
