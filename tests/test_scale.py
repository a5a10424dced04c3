"""Tests of benchmarks/scale*.py: the simulation's arithmetic, and the pages that show its figures."""

from __future__ import annotations

import json
import random
from collections.abc import Generator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from scale_constants import LONG, ONE, SHORT, Parts, median_of
from scale_plans import (
    CONSTANTS,
    NEMO,
    QWEN3_8B,
    Published,
    RunPlan,
    Shape,
    TrainingPlan,
    episode_of,
    few_gpus_rows,
    part_rows,
    read_constants,
    run_rows,
    table,
    training_rows,
    weight_rows,
)

from rolegraph.integrations.ray.cluster import WorkerSetup

DOCS = Path(__file__).parents[1] / "docs"
NONE = Parts(**dict.fromkeys(Parts.__dataclass_fields__, 0.0))


def test_a_median_is_that_of_each_figure() -> None:
    measured = [replace(NONE, run=run, line=line) for run, line in ((1.0, 9.0), (3.0, 8.0), (2.0, 1.0))]
    assert median_of(measured) == replace(NONE, run=2.0, line=8.0)


def test_an_episode_of_other_lengths_lies_on_the_line_of_the_measured_ones() -> None:
    short, long, one = (replace(NONE, line=line) for line in (100.0, 640.0, 150.0))
    parts = {SHORT.name: short, LONG.name: long, ONE.name: one}
    assert episode_of(parts, 1000) == one
    # Three calls of 900 tokens more take 540 µs more: 0.2 µs a token.
    assert episode_of(parts, 4000).line == pytest.approx(150 + 0.2 * 3000)


def test_the_adapter_of_a_model_has_two_matrices_for_each_linear_layer() -> None:
    layer = Shape("one layer", 1, hidden=8, inner=32, query=16, key=4, parameters=0)
    query, key, value, out, gate, up, down = 8 + 16, 8 + 4, 8 + 4, 16 + 8, 8 + 32, 8 + 32, 32 + 8
    assert layer.adapter(3) == 3 * (query + key + value + out + gate + up + down)
    assert 80e6 < QWEN3_8B.adapter(32) < 90e6


def test_a_run_takes_the_time_of_its_slowest_process() -> None:
    parts = replace(NONE, run=300.0, line=100.0, write=50.0, events=50.0, unpickle=200.0, line_bytes=1e3)
    plan = RunPlan(10_000_000, parts, sending=6e-4, serving=1e-3, calling=1.5e-3)
    assert plan.alone == pytest.approx(1 / 2e-3)
    assert plan.over_ray == pytest.approx(1 / 1e-3)
    assert plan.worker == pytest.approx(1 / 2.8e-3)
    assert plan.hours(plan.over_ray) == pytest.approx(10_000 / 3600)
    assert plan.disk == 1e10


def test_a_training_fills_the_core_of_the_command_at_some_number_of_gpus() -> None:
    parts = replace(NONE, line=500.0, data=500.0, wire_bytes=1e4)
    plan = TrainingPlan(Published("", tokens_per_gpu=1000, tokens=2000), 1000, parts, sending=1e-3)
    assert plan.rate == 500
    assert plan.cores == pytest.approx(1.0)
    assert plan.most_gpus == pytest.approx(1000)
    assert plan.wire == 5e6


def test_the_pages_have_the_tables_of_the_stored_constants() -> None:
    parts, sending = read_constants(CONSTANTS)
    text = "\n".join((DOCS / page).read_text("utf-8") for page in ("scale.md", "measurements.md"))
    tables = part_rows(parts), run_rows(parts, sending), training_rows(parts, sending), weight_rows()
    tables += (few_gpus_rows(parts, sending),)
    for rows in tables:
        assert table(rows) in text, "run benchmarks/scale_plans.py, and write the pages again"
    for published in NEMO:
        assert published.name in text


@pytest.mark.parametrize("slots", [1, 7, 8, 64])
def test_a_simulated_worker_holds_the_jobs_of_a_real_one(slots: int) -> None:
    pytest.importorskip("simpy")
    from scale_simulation import Cluster

    assert Cluster(1, 0.0, 0.0).jobs(slots) == WorkerSetup(b"", {}, "", slots).jobs


def test_a_run_of_one_slot_is_bound_by_latency_and_work() -> None:
    pytest.importorskip("simpy")
    from scale_simulation import Call, Work, constant, simulate_run

    call = Call(constant(0.05), client=0.002, server=0.001, transit=0.003)
    outcome = simulate_run(Work((2, 1), call, 0.004, 0.001), episodes=50, slots=1)
    # Of two calls side by side, the second is sent and read after the first.
    cycle = 0.004 + 2 * (0.05 + 0.003) + 3 * 0.001 + 0.002 + 0.001 + 0.001 + 0.001
    assert outcome.rate() == pytest.approx(1 / cycle, rel=0.01)


def test_a_run_of_many_slots_is_bound_by_the_core_of_the_command() -> None:
    pytest.importorskip("simpy")
    from scale_simulation import Call, Work, constant, simulate_run

    work = Work((1,), Call(constant(0.05), client=0.002), 0.001, 0.001)
    outcome = simulate_run(work, episodes=2000, slots=500)
    assert outcome.rate(0.25) == pytest.approx(1 / 0.004, rel=0.01)
    assert outcome.load == pytest.approx(1.0, abs=0.02)
    assert simulate_run(work, episodes=200, slots=500, calls=1).rate(0.25) < 20


def test_a_cluster_adds_up_until_the_command_is_full() -> None:
    pytest.importorskip("simpy")
    from scale_simulation import Call, Cluster, Work, constant, simulate_run

    work = Work((1,), Call(constant(0.05)), 0.001, 0.001)

    def rate(nodes: int, slots: int) -> float:
        on = Cluster(nodes, send=0.001, serve=0.001)
        return simulate_run(work, episodes=500 * nodes**2, slots=slots, cluster=on).rate(0.25)

    # The next job waits in the worker: its way is no part of the cycle.
    assert rate(1, 1) == pytest.approx(1 / 0.051, rel=0.01)
    assert rate(3, 1) == pytest.approx(3 * rate(1, 1), rel=0.02)
    assert rate(4, 64) == pytest.approx(1 / 0.002, rel=0.02)


@pytest.mark.parametrize(("staleness", "seconds"), [(0, 3.0), (1, 2.0), (2, 2.0)])
def test_a_batch_ahead_is_sampled_during_the_update(staleness: int, seconds: float) -> None:
    pytest.importorskip("simpy")
    from scale_simulation import Call, Learning, Work, constant, simulate_training

    work, learning = Work((1,), Call(constant(1.0)), 0.0), Learning(0.0, 2.0)
    it = simulate_training(work, learning, batch=8, steps=12, slots=100, staleness=staleness)
    assert it.rate == pytest.approx(8 / seconds, rel=0.01)
    assert it.lag == pytest.approx(staleness, abs=0.11)
    assert it.updating == pytest.approx(2 / seconds, rel=0.05)


def test_answers_share_the_speed_of_an_engine_and_none_is_faster_than_its_own() -> None:
    simpy = pytest.importorskip("simpy")
    from scale_simulation import Engine, SharedEngine, constant

    env = simpy.Environment()
    engines = SharedEngine(env, Engine(tokens=100.0, single=80.0, lengths=constant(0)))
    ends: dict[str, float] = {}

    def ask(name: str, begin: float, tokens: float) -> Generator[Any, Any, None]:
        yield env.timeout(begin)
        yield engines.answer(tokens)
        ends[name] = env.now

    for name, begin, tokens in (("first", 0.0, 130.0), ("second", 1.0, 100.0)):
        env.process(ask(name, begin, tokens))
    env.run(until=10)
    # The first has 80 tokens after a second; then both get 50 a second, and the second 80 when it is alone.
    assert ends["first"] == pytest.approx(2.0)
    assert ends["second"] == pytest.approx(2.0 + 50 / 80)


def test_lengths_have_their_mean_and_end_at_the_most() -> None:
    pytest.importorskip("simpy")
    from scale_simulation import answer_lengths

    chance, draw = random.Random(0), answer_lengths(1000, 0.5, 10_000)
    drawn = [draw(chance) for _ in range(5000)]
    assert sum(drawn) / len(drawn) == pytest.approx(1000, rel=0.03)
    assert max(answer_lengths(1000, 1.0, 1500)(chance) for _ in range(1000)) == 1500


def test_the_page_has_the_points_of_the_stored_constants() -> None:
    for library in ("simpy", "ray", "torch"):
        pytest.importorskip(library)
    from scale import Round, points_of, points_table

    kept = json.loads(CONSTANTS.read_text("utf-8"))
    points = points_of([Round.of(each) for each in kept["rounds"]], kept["points"])
    assert points_table(points) in (DOCS / "measurements.md").read_text("utf-8")
