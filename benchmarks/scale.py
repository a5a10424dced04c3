"""Costs of an episode, part by part, and a simulation that is checked against measured rates.

    python benchmarks/scale.py --json scale.json    # twenty minutes; extras bench, local, ray; Linux
    python benchmarks/scale.py --check              # exit code 1 if a point is off by more than 10 %
    python benchmarks/scale.py --from scale.json    # simulate anew from a file, in seconds

The constants are measured (`scale_constants`, `scale_live`), each alone and as CPU time. The simulation
(`scale_simulation`) takes them as they are: no constant is fitted to a point. Points are measured in rounds,
and each round measures again the constants that its points depend on, just before them, so that a machine
which slows down slows both. A ratio is the median of the rounds' ratios.
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
from scale_constants import (
    LOADS,
    NO_MODEL,
    ONE_TEXT,
    Parts,
    core_share,
    measure_parts,
    median_of,
    timer_lateness,
    waiting_call,
)
from scale_live import Client, Transport, Update
from scale_plans import number, part_rows, table
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
    alone: Client
    """A call of 50 ms, one in flight: the caches are cold after each pause."""
    eight: Client
    """The same, eight in flight."""
    together: Client
    """A call of 150 ms, 64 in flight, which leaves the core some time."""
    ray_alone: Transport
    """An episode of 50 ms, one in flight."""
    ray_eight: Transport
    """The same, eight in flight."""
    update: Update
    peer: float
    """A run of `overhead.py` whose calls are answered at once."""
    waiting: float
    """What a call that waits costs more than one that is answered at once."""
    start: float
    """`rolegraph run` of one episode for each of 1,000 tasks."""
    late: float
    """Lateness of a timer of 20 ms, in seconds of the clock."""
    share: float
    """Fraction of a core that a computing process gets."""

    @classmethod
    def of(cls, fields: Mapping[str, Any]) -> Round:
        """Return the round of a JSON file."""
        kinds = {
            **dict.fromkeys(("no_model", "one_text"), Parts),
            **dict.fromkeys(("alone", "eight", "together"), Client),
            **dict.fromkeys(("ray_alone", "ray_eight"), Transport),
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


def measure_round(one: str, three: str) -> tuple[Round, dict[str, float]]:
    """Measure constants, each group just before the points that depend on it.

    Args:
        one: Address of a Ray cluster of one node.
        three: Address of one of three nodes.

    Returns:
        The constants, and the points.
    """
    points: dict[str, float] = {}
    start, before = live.long_run_cpu(live.LONG_TASKS), measure_parts(NO_MODEL)
    points["long run"] = live.long_run_cpu(EPISODES) / EPISODES * 1e6
    no_model = median_of([before, measure_parts(NO_MODEL)])
    share, lates = core_share(), [timer_lateness(live.WAIT)]
    peer, waiting = live.overhead_run(0.0)[1], waiting_call()
    points["one process, 20 ms a call"] = 1 / live.overhead_run(live.WAIT)[0]
    late = statistics.mean([*lates, timer_lateness(live.WAIT)])
    one_text, together = measure_parts(ONE_TEXT), live.measure_client(3 * live.LATENCY, SLOTS, 1500)
    points["one process over HTTP, 64 in flight"] = live.http_rate(SLOTS, 2500)
    alone = live.measure_client(live.LATENCY, 1, 60)
    ray_alone = live.measure_transport(one, live.LATENCY, 1, 60)
    points["Ray, 1 node"] = live.cluster_rate(one, 1, 160)
    points["Ray, 3 nodes"] = live.cluster_rate(three, 1, 480)
    eight = live.measure_client(live.LATENCY, 8, 400)
    ray_eight = live.measure_transport(one, live.LATENCY, 8, 400)
    points["Ray, 1 node, 8 slots"] = live.cluster_rate(one, 8, 800)
    update = live.measure_update()
    constants = (alone, eight, together, ray_alone, ray_eight, update, peer, waiting, start, late, share)
    return Round(no_model, one_text, *constants), points


def measure_trainings(seed: int) -> dict[str, float]:
    """Measure the trainings of `overlap.py`."""
    rates = live.overlap_rates(STEPS, seed)
    return {f"training, staleness {ahead}": rate for ahead, (rate, _) in rates.items()}


def simulate_points(it: Round) -> dict[str, float]:
    """Simulate all points from the constants of one round."""
    # A burst of work takes longer on the clock where other work has a part of the core.
    slow, own = 1 / it.share, it.one_text

    def call(client: Client, latency: float = live.LATENCY) -> Call:
        used = max(0.0, client.episode - own.run / 1e6) * slow
        # With 64 in flight, the time of the clock has waits of the calls for one another in it.
        transit = it.alone.transit if client is it.together else client.transit
        return Call(constant(latency), used, client.server * slow, transit)

    def cluster(client: Client, transport: Transport, nodes: int, slots: int, episodes: int) -> float:
        work = Work((1,), call(client), own.run / 1e6 * slow, own.keep / 1e6 * slow)
        on = Cluster(nodes, transport.command * slow, transport.worker * slow, transport.transit)
        return simulate_run(work, episodes=episodes, slots=slots, cluster=on, cores=CORES).rate(0.25)

    waits = Call(constant(live.WAIT + it.late), it.waiting * slow)
    peer = Work((2, 1), waits, it.peer * slow)
    asks = Work((1,), call(it.together), own.run / 1e6 * slow)
    return {
        "long run": (it.start * 1e6 + (EPISODES - live.LONG_TASKS) * it.no_model.make) / EPISODES,
        "one process, 20 ms a call": simulate_run(peer, episodes=live.RUNS, slots=live.IN_FLIGHT).rate(),
        "one process over HTTP, 64 in flight": simulate_run(
            asks, episodes=2500, slots=SLOTS, cores=CORES
        ).rate(),
        "Ray, 1 node": cluster(it.alone, it.ray_alone, 1, 1, 200),
        "Ray, 3 nodes": cluster(it.alone, it.ray_alone, 3, 1, 600),
        "Ray, 1 node, 8 slots": cluster(it.eight, it.ray_eight, 1, 8, 800),
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
    """Return the points, each with the rounds that measured it."""
    simulated = [simulate_points(each) for each in rounds]
    points: list[Point] = []
    for name, unit in UNITS.items():
        both = zip(measured, simulated, strict=True)
        pairs = [(here[name], there[name]) for here, there in both if name in here]
        if pairs:
            points.append(Point(name, unit, [pair[0] for pair in pairs], [pair[1] for pair in pairs]))
    return points


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


def measure(rounds: int, trainings: int, file: Path | None) -> dict[str, Any]:
    """Measure the rounds and the parts of all loads; write them to a file after each round."""
    os.environ.setdefault("OPENAI_API_KEY", live.KEY)
    kept: dict[str, Any] = {"rounds": [], "points": [], "parts": {}}
    with live.nodes_of(1) as one, live.nodes_of(3) as three:
        for turn in range(rounds):
            click.echo(f"round {turn + 1} of {rounds}", err=True)
            constants, points = measure_round(one, three)
            points |= measure_trainings(turn) if turn < trainings else {}
            kept["rounds"].append(asdict(constants))
            kept["points"].append(points)
            write(file, kept)
    kept["sdk"] = live.measure_sdk()
    for load in LOADS:
        click.echo(load.name, err=True)
        kept["parts"][load.name] = asdict(measure_parts(load))
    write(file, kept)
    return kept


def write(file: Path | None, kept: Mapping[str, Any]) -> None:
    """Write the constants and points to a file, where one is named."""
    if file is not None:
        file.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")


@click.command(help=__doc__)
@click.option("--rounds", default=5, show_default=True, help="Rounds of points.")
@click.option("--trainings", default=1, show_default=True, help="Rounds with trainings, four minutes each.")
@click.option("--check", is_flag=True, help="Exit with 1 if a point is off by more than 10 %.")
@click.option("--json", "file", type=click.Path(path_type=Path), help="Write constants and points.")
@click.option("--from", "given", type=click.Path(path_type=Path, exists=True), help="Read them from a file.")
def main(rounds: int, trainings: int, check: bool, file: Path | None, given: Path | None) -> None:
    kept = json.loads(given.read_text(encoding="utf-8")) if given else measure(rounds, trainings, file)
    points = points_of([Round.of(each) for each in kept["rounds"]], kept["points"])
    click.echo(table(part_rows({name: Parts(**each) for name, each in kept["parts"].items()})) + "\n")
    click.echo(points_table(points))
    if check and not all(point.holds for point in points):
        sys.exit(1)


if __name__ == "__main__":
    main()
