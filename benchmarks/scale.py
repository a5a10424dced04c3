"""Costs of an episode, part by part, and a simulation of runs and trainings that is checked against measured rates.

    python benchmarks/scale.py --json scale.json    # about ten minutes; needs the extras bench, local and ray
    python benchmarks/scale.py --check              # the same; exit code 1 if a point is off by more than 10 %
    python benchmarks/scale.py --from scale.json    # constants and points of a file: simulated anew, in seconds

The constants are measured first (`scale_constants`, `scale_live`), each alone and as CPU time. The simulation
(`scale_simulation`) takes them as they are: no constant is fitted to a point. Points are measured in rounds,
and each round measures again the constants that its points depend on, so that a machine which slows down slows
both. A ratio is the median of the rounds' ratios.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click
import scale_live as live
from scale_constants import LOADS, NO_MODEL, ONE_TEXT, TEXTS, Parts, core_share, measure_parts, timer_lateness
from scale_live import Client, Transport, Update
from scale_simulation import (
    Call,
    Cluster,
    Learning,
    Work,
    constant,
    simulate_run,
    simulate_training,
    uniform,
)

TOLERANCE = 0.1
CORES = 2
"""Cores of the machine of the points with several processes."""
SLOTS = 64
EPISODES = 50_000
"""Episodes of the long run."""
BATCH, SOLVERS, STEPS = 16, 2, 10
"""Batch of `overlap.py`, and its steps."""


@dataclass(frozen=True)
class Round:
    """Constants of one round, in CPU seconds of the named process where nothing else is said."""

    no_model: Parts
    one_text: Parts
    texts: Parts
    alone: Client
    """A call where one is in flight, each after a pause: caches are cold."""
    together: Client
    """A call where 64 are in flight."""
    ray_alone: Transport
    ray_together: Transport
    update: Update
    start: float
    """`rolegraph run` of one episode."""
    late: float
    """Lateness of a timer of 20 ms, in seconds of the clock."""
    share: float
    """Fraction of a core that a computing process gets."""

    @classmethod
    def of(cls, fields: Mapping[str, Any]) -> Round:
        """Return the round of a JSON file."""
        kinds = {
            **dict.fromkeys(("no_model", "one_text", "texts"), Parts),
            **dict.fromkeys(("alone", "together"), Client),
            **dict.fromkeys(("ray_alone", "ray_together"), Transport),
            "update": Update,
        }
        return cls(**{key: kinds[key](**value) if key in kinds else value for key, value in fields.items()})


@dataclass(frozen=True)
class Point:
    """A measured rate beside its simulation."""

    name: str
    unit: str
    measured: Sequence[float]
    """Values of the rounds."""
    simulated: Sequence[float]

    @property
    def ratio(self) -> float:
        """Median over the rounds of simulated / measured."""
        pairs = zip(self.simulated, self.measured, strict=True)
        return statistics.median(simulated / measured for simulated, measured in pairs)

    @property
    def holds(self) -> bool:
        """True where the ratio is within the tolerance."""
        return abs(self.ratio - 1) <= TOLERANCE


UNITS: Mapping[str, str] = {
    "long run": "CPU µs an episode",
    "one process, 20 ms a call": "runs/s",
    "one process over HTTP, 64 in flight": "episodes/s",
    "Ray, 1 node": "episodes/s",
    "Ray, 3 nodes": "episodes/s",
    "Ray, 1 node, 8 slots": "episodes/s",
    "training, staleness 0": "episodes/s",
    "training, staleness 1": "episodes/s",
    "training, staleness 2": "episodes/s",
}


def measure_round() -> Round:
    """Measure the constants that the points depend on."""
    return Round(
        no_model=measure_parts(NO_MODEL),
        one_text=measure_parts(ONE_TEXT),
        texts=measure_parts(TEXTS),
        alone=live.measure_client(live.LATENCY, 1, 60),
        together=live.measure_client(0.0, SLOTS, 1000),
        ray_alone=live.measure_transport(1, 60, live.LATENCY),
        ray_together=live.measure_transport(16, 600),
        update=live.measure_update(),
        start=live.long_run_cpu(1),
        late=timer_lateness(live.WAIT),
        share=core_share(),
    )


def measure_points(number: int, trainings: bool) -> dict[str, float]:
    """Measure the points of one round."""
    points = {
        "long run": live.long_run_cpu(EPISODES) / EPISODES * 1e6,
        "one process, 20 ms a call": live.overhead_rate(),
        "one process over HTTP, 64 in flight": live.http_rate(SLOTS, 2500),
        "Ray, 1 node": live.cluster_rate(1, 1, 200),
        "Ray, 3 nodes": live.cluster_rate(3, 1, 600),
        "Ray, 1 node, 8 slots": live.cluster_rate(1, 8, 800),
    }
    if trainings:
        rates = live.overlap_rates(STEPS, number)
        points |= {f"training, staleness {ahead}": rate for ahead, (rate, _) in rates.items()}
    return points


def simulate_points(it: Round) -> dict[str, float]:
    """Simulate all points from the constants of one round."""
    slow = 1 / it.share

    def seconds(us: float) -> float:
        return us / 1e6 * slow

    own = it.one_text
    alone = Call(
        constant(live.LATENCY),
        client=max(0.0, it.alone.episode - own.run / 1e6),
        server=it.alone.server,
        transit=it.alone.transit,
    )
    together = Call(
        constant(live.LATENCY + it.late),
        client=max(0.0, it.together.episode - own.run / 1e6) * slow,
        server=it.together.server * slow,
    )
    few = Work((1,), alone, own.run / 1e6, own.keep / 1e6)
    many = Work((1,), together, seconds(own.run), seconds(own.keep))
    own_run = it.no_model.run / 1e6

    def on_ray(nodes: int, transport: Transport) -> Cluster:
        return Cluster(nodes, transport.command, max(0.0, transport.worker - own_run), transport.transit)

    def cluster(work: Work, nodes: int, slots: int, transport: Transport, episodes: int) -> float:
        on = on_ray(nodes, transport)
        return simulate_run(work, episodes=episodes, slots=slots, cluster=on, cores=CORES).rate(0.25)

    wait = Work((2, 1), Call(constant(live.WAIT + it.late)), seconds(it.texts.run))
    asked = Work((1,), together, seconds(own.run))
    long_run = it.no_model.make + it.start / EPISODES * 1e6
    return {
        "long run": long_run,
        "one process, 20 ms a call": simulate_run(wait, episodes=live.RUNS, slots=live.IN_FLIGHT).rate(),
        "one process over HTTP, 64 in flight": simulate_run(
            asked, episodes=2500, slots=SLOTS, cores=CORES
        ).rate(),
        "Ray, 1 node": cluster(few, 1, 1, it.ray_alone, 200),
        "Ray, 3 nodes": cluster(few, 3, 1, it.ray_alone, 600),
        "Ray, 1 node, 8 slots": cluster(many, 1, 8, it.ray_together, 800),
        **{f"training, staleness {ahead}": training_rate(it.update, ahead) for ahead in (0, 1, 2)},
    }


def training_rate(update: Update, staleness: int) -> float:
    """Simulate the trainings of `overlap.py`, and return the median of their episodes a second."""
    calls = BATCH * SOLVERS
    call = Call(uniform(1.0, 10.0), client=update.rollout / calls)
    work = Work((SOLVERS,), call, 0.0)
    learning = Learning(prepare=update.update / BATCH, update=0.0)
    outcomes = [
        simulate_training(
            work, learning, batch=BATCH, steps=STEPS, slots=calls, staleness=staleness, seed=seed
        )
        for seed in range(9)
    ]
    return statistics.median(outcome.rate for outcome in outcomes)


def points_of(rounds: Sequence[Round], measured: Sequence[Mapping[str, float]]) -> list[Point]:
    """Return the points of all rounds that measured them."""
    simulated = [simulate_points(each) for each in rounds]
    points: list[Point] = []
    for name, unit in UNITS.items():
        places = [place for place, each in enumerate(measured) if name in each]
        if places:
            values = [[each[name] for each in (measured[place], simulated[place])] for place in places]
            points.append(Point(name, unit, *map(list, zip(*values, strict=True))))
    return points


def table(rows: Sequence[Sequence[str]]) -> str:
    """Return rows as a Markdown table; the first row is the head, and numbers are at the right."""
    head, *body = rows
    rule = ["---", *["---:"] * (len(head) - 1)]
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, rule, *body))


def points_table(points: Sequence[Point]) -> str:
    """Return a row for each point: medians of the rounds, and their ratio."""
    head = ("point", "unit", "measured", "simulated", "simulated / measured")
    rows = [
        (
            point.name,
            point.unit,
            number(statistics.median(point.measured)),
            number(statistics.median(point.simulated)),
            f"{point.ratio:.2f}{'' if point.holds else ' (beyond 10 %)'}",
        )
        for point in points
    ]
    return table([head, *rows])


def number(value: float) -> str:
    """Return a number with three significant digits, and thousands apart."""
    if value == 0:
        return "0"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def parts_table(parts: Mapping[str, Parts]) -> str:
    """Return a row for each part of an episode, and a column for each load."""
    fields = [*asdict(next(iter(parts.values())))]
    head = ("", *parts)
    return table(
        [head, *([field, *(number(getattr(it, field)) for it in parts.values())] for field in fields)]
    )


@click.command(help=__doc__)
@click.option("--rounds", default=3, show_default=True, help="Rounds of points.")
@click.option("--trainings/--no-trainings", default=True, help="Measure the trainings, four minutes a round.")
@click.option("--check", is_flag=True, help="Exit with 1 if a point is off by more than 10 %.")
@click.option("--json", "file", type=click.Path(path_type=Path), help="Write constants and points.")
@click.option("--from", "given", type=click.Path(path_type=Path, exists=True), help="Read them from a file.")
def main(rounds: int, trainings: bool, check: bool, file: Path | None, given: Path | None) -> None:
    if given is not None:
        kept = json.loads(given.read_text(encoding="utf-8"))
    else:
        os.environ.setdefault("OPENAI_API_KEY", live.KEY)
        kept: dict[str, Any] = {"rounds": [], "points": [], "parts": {}}
        for turn in range(rounds):
            click.echo(f"round {turn + 1} of {rounds}", err=True)
            kept["rounds"].append(asdict(measure_round()))
            kept["points"].append(measure_points(turn, trainings))
            if file is not None:
                file.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
        for load in LOADS:
            click.echo(load.name, err=True)
            kept["parts"][load.name] = asdict(measure_parts(load))
        if file is not None:
            file.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
    points = points_of([Round.of(each) for each in kept["rounds"]], kept["points"])
    if kept["parts"]:
        click.echo(parts_table({name: Parts(**each) for name, each in kept["parts"].items()}) + "\n")
    click.echo(points_table(points))
    if check and not all(point.holds for point in points):
        sys.exit(1)


if __name__ == "__main__":
    main()
