"""Plain asyncio as in `bare`, with workers instead of a semaphore: the least that this workflow can cost."""

from __future__ import annotations

from stub import Ask, RunMany, with_workers

from peers.bare import one_run


def build(solvers: int, ask: Ask) -> RunMany:
    run = one_run(solvers, ask)

    async def run_many(runs: int, in_flight: int) -> int:
        return await with_workers(run, runs, in_flight)

    return run_many
