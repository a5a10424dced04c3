"""`rolegraph forecast`: what a first step of training comes to, before it is paid for."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from rolegraph.engine.compile import Plan
from rolegraph.engine.errors import UsageError
from rolegraph.engine.records import Episode, Note, Observer, RunFolder, derive_seed, read_episodes
from rolegraph.engine.shipped import model_folder
from rolegraph.engine.training.adapter_size import BYTES, adapter_parameters
from rolegraph.engine.training.forecast import AdapterMemory, Forecast, ObservedEpisodes, Price
from rolegraph.engine.training.forecast import forecast as forecast_of
from rolegraph.engine.training.order import shuffled
from rolegraph.running import blocking, nobody
from rolegraph.workflow import Workflow


async def forecast_async(
    flow: Workflow,
    *,
    probe: int | None = None,
    run: str | Path | None = None,
    prices: Mapping[str, Price] | None = None,
    seed: int = 0,
    observe: Observer | None = None,
) -> Forecast:
    """What the first step of a workflow's training comes to: calls, tokens, time, groups that teach, memory.

    Told from the spec's bounds alone, from about so many episodes of a `probe`, which are some of those that
    a training with the same `seed` begins with (whole groups, at least one, and single episodes of the other
    tasks), or from a `run` or training of the same roles. `prices` are by model, and under
    `default`. Raises SpecError, UsageError (no training data, a run of other roles) and WorldError.
    """
    if "train" not in flow.plan.data:
        raise UsageError(f"{flow.name} has no training data to forecast a step of")
    if probe is not None and run is not None:
        raise UsageError("a forecast is told from a probe or from a run, not from both")
    observed = None
    if probe is not None:
        observed = await _probed(flow, probe, seed, observe or nobody)
    elif run is not None:
        observed = _recorded(flow.plan, RunFolder(Path(run)))
    return forecast_of(flow.plan, observed, prices=prices, adapters=_adapters(flow.plan))


forecast = blocking(forecast_async)


async def _probed(flow: Workflow, wanted: int, seed: int, observe: Observer) -> ObservedEpisodes:
    """Episodes of the first step of a training with the same seed: a part of what it will make.

    Whole groups tell what they teach. Tokens differ more from task to task than from rollout to rollout, so
    of the step's other tasks there is one episode each, as long as that comes to half of what was wanted.
    """
    train = flow.plan.spec.train
    rows = shuffled(flow.tasks("train"), seed)
    whole = max(1, round(wanted / train.rollouts))
    rows = rows[: max(whole, min(train.batch_size, wanted // 2))]
    left_out = [(row["id"], rollout) for row in rows[whole:] for rollout in range(1, train.rollouts)]
    count = len(rows) * train.rollouts - len(left_out)
    observe(Note("starting the model …"))
    async with flow.open() as opened:
        observe(Note("the probe …", episodes=count))
        began = time.monotonic()
        stream = opened.stream(
            tasks=rows,
            rollouts=train.rollouts,
            seed=derive_seed(seed, "train", 1),
            finished=left_out,
            concurrency=count,
            observe=observe,
        )
        episodes = [episode async for episode in stream]
    return ObservedEpisodes(f"a probe of {len(episodes)} episodes", episodes, time.monotonic() - began)


def _recorded(plan: Plan, folder: RunFolder) -> ObservedEpisodes:
    """A run's episodes, or those of a training's first step."""
    info = folder.info()
    seconds = update = 0.0
    if info.kind == "train":
        files = folder.episodes_files("train")
        if not files:
            raise UsageError(f"{folder.path} has no step yet")
        step, file = files[0]
        for line in folder.metrics():
            if line["step"] == step:
                seconds, update = line.get("time/rollout", 0.0), line.get("time/update", 0.0)
        episodes = [*read_episodes(file)]
    else:
        if not folder.episodes.exists():
            raise UsageError(f"{folder.path} has no episode yet")
        episodes = [*read_episodes(folder.episodes)]
        if info.started and info.finished and not info.resumed:
            seconds = (info.finished - info.started).total_seconds()
    _check(plan, folder, episodes)
    return ObservedEpisodes(str(folder.path), episodes, seconds, update)


def _check(plan: Plan, folder: RunFolder, episodes: list[Episode]) -> None:
    if not episodes:
        raise UsageError(f"{folder.path} has no episode yet")
    there = {trajectory.name for episode in episodes for trajectory in episode.trajectories}
    if other := there - {role.name for role in plan.roles}:
        raise UsageError(f"{folder.path} is of another workflow: {plan.name} has no role {sorted(other)[0]}")


def _adapters(plan: Plan) -> dict[str, AdapterMemory]:
    """Of the policies whose models are on this machine."""
    found: dict[str, AdapterMemory] = {}
    for name, policy in plan.policies.items():
        if policy.model.provider != "local":
            continue
        with suppress(OSError):
            parameters = adapter_parameters(model_folder(policy.model.name), policy.lora)
            if parameters:
                found[name] = AdapterMemory(parameters, parameters * BYTES)
    return found
