"""Forecast of a training's first step, from the spec, a probe or an earlier run: `rolegraph forecast`."""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path

from rolegraph.api.jobs import blocking, ignore_event
from rolegraph.api.workflow import Workflow
from rolegraph.engine.compile import Plan
from rolegraph.engine.errors import UsageError
from rolegraph.engine.records import Note, Observer, RunFolder, derive_seed, read_episodes
from rolegraph.engine.run.streaming import jobs, missing, run_jobs
from rolegraph.engine.spec import Price
from rolegraph.engine.training.loop.schedule import shuffled
from rolegraph.outlook.forecast import Forecast, ObservedEpisodes
from rolegraph.outlook.forecast import forecast as forecast_of


async def forecast_async(
    flow: Workflow,
    *,
    probe: int | None = None,
    run: str | Path | None = None,
    price: Price | None = None,
    seed: int = 0,
    observe: Observer | None = None,
) -> Forecast:
    """Forecast the first step of a workflow's training: calls, tokens, time, groups that teach, cost.

    Without `probe` and `run`, the forecast has only the bounds that follow from the spec.

    Args:
        flow: The workflow.
        probe: Number of episodes to run now, at least the size of a group; it is rounded to whole groups plus
            single episodes of other tasks. A training with the same `seed` begins with the same episodes.
        run: Folder of a run of the same roles, or of a training, whose first step is read.
        price: Price of a million tokens of every role; None for the prices of the spec's models. The cost is
            left out if they have no prices and the endpoint counts no cost.
        seed: Seed of the task order and of the probe's sampling.
        observe: Function called with each event of the probe.

    Returns:
        The forecast; its token, time and share fields are None without episodes.

    Raises:
        UsageError: For a spec without training data, for both `probe` and `run`, and for a run without
            episodes or with other roles.
        SpecError: The spec uses something for which no permission is given.
        WorldError: A model service fails during the probe.
    """
    if "train" not in flow.plan.data:
        raise UsageError(f"{flow.name} has no training data; a forecast needs `data.train` in the spec")
    if probe is not None and run is not None:
        raise UsageError("a forecast takes either a probe or a run, not both")
    observed_episodes = None
    if probe is not None:
        observed_episodes = await _probe_episodes(flow, probe, seed, observe or ignore_event)
    elif run is not None:
        observed_episodes = _recorded_episodes(flow.plan, RunFolder(Path(run)))
    return forecast_of(flow.plan, observed_episodes, price=price)


forecast = blocking(forecast_async)


async def _probe_episodes(flow: Workflow, wanted: int, seed: int, observe: Observer) -> ObservedEpisodes:
    """Run and return `wanted` of the episodes that the first step of a training with this seed would run.

    The number is rounded as in `probe_sizes`.
    """
    rollouts, batch_size = flow.plan.spec.train.rollouts, flow.plan.spec.train.batch_size
    rows = shuffled(flow.tasks("train"), seed)
    sizes = probe_sizes(wanted, rollouts, batch_size, len(rows))
    rows, count = rows[: len(sizes)], sum(sizes)
    excluded = [(row["id"], n) for row, size in zip(rows, sizes, strict=True) for n in range(size, rollouts)]
    observe(Note("starting the model …"))
    async with flow.open() as open_flow:
        observe(Note("the probe …", episodes=count))
        start = time.monotonic()
        all_jobs = jobs(rows, rollouts, derive_seed(seed, "train", 1), step=flow.plan.first_step_of_rl)
        probe_jobs = missing(all_jobs, excluded)
        stream = run_jobs(probe_jobs, partial(open_flow.make, observe=observe), count)
        episodes = [episode async for episode in stream]
    return ObservedEpisodes(f"a probe of {len(episodes)} episodes", episodes, time.monotonic() - start)


def probe_sizes(wanted: int, rollouts: int, batch_size: int, rows: int) -> list[int]:
    """Return the number of rollouts of each task of a probe.

    Only whole groups show whether they teach, but tokens vary more between tasks than between rollouts. So
    about half of the episodes are single episodes of the step's other tasks, or fewer if the step has too few
    tasks.

    Args:
        wanted: Number of episodes; fewer are returned only if the data has too few tasks.
        rollouts: Size of a group.
        batch_size: Number of tasks of a step.
        rows: Number of training tasks.
    """
    if wanted < rollouts:
        return [wanted]
    tasks = min(batch_size, rows)
    whole_groups = next((n for n in range(1, rows) if n * rollouts + max(0, tasks - n) >= wanted), rows)
    whole_groups = min(max(whole_groups, round(wanted / rollouts / 2)), wanted // rollouts, rows)
    sizes = [rollouts] * whole_groups + [0] * (rows - whole_groups)
    missing_episodes = wanted - whole_groups * rollouts
    for size_limit in (1, rollouts):
        for index in range(whole_groups, tasks if size_limit == 1 else rows):
            added_episodes = min(missing_episodes, size_limit - sizes[index])
            sizes[index] += added_episodes
            missing_episodes -= added_episodes
    return [size for size in sizes if size]


def _recorded_episodes(plan: Plan, folder: RunFolder) -> ObservedEpisodes:
    """Read the episodes to forecast from, with their times: all of a run, or those of a training's first
    step.

    Raises:
        UsageError: The folder has no episodes, or episodes of another workflow.
    """
    info = folder.info()
    file, seconds, update_seconds = folder.episodes, info.seconds or 0.0, 0.0
    if info.kind == "train":
        files = folder.episodes_files("train")
        rl_files = [(step, file) for step, file in files if step >= plan.first_step_of_rl]
        step, file = next(iter(rl_files or files), (0, file))
        figures = next((line for line in folder.metrics() if line["step"] == step), dict[str, float]())
        seconds, update_seconds = figures.get("time/rollout", 0.0), figures.get("time/update", 0.0)
    episodes = [*read_episodes(file)] if file.exists() else []
    if not episodes:
        raise UsageError(f"{folder.path} has no episodes yet")
    recorded_roles = {trajectory.name for episode in episodes for trajectory in episode.trajectories}
    if unknown_roles := recorded_roles - {role.name for role in plan.roles}:
        missing_role = f"{plan.name} has no role {sorted(unknown_roles)[0]}"
        raise UsageError(f"{folder.path} is a run of another workflow: {missing_role}")
    return ObservedEpisodes(str(folder.path), episodes, seconds, update_seconds)
