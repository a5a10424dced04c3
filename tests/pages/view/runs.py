"""Folders of runs and trainings for the viewer: real specs, a scripted model, the training functions."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from rolegraph.api.jobs import describe
from rolegraph.api.workflow import Source, Workflow
from rolegraph.engine.compile import Plan, compile_file
from rolegraph.engine.models import Completion, Request
from rolegraph.engine.prompts.chat import Tokenizer
from rolegraph.engine.records import Episode, RunFolder, Task
from rolegraph.engine.records.episodes import EpisodeWriter
from rolegraph.engine.run import Isolation, jobs, run_episode, run_jobs
from rolegraph.engine.training.advantages.ledger import Ledger, Membership, add_advantages, credit_rows
from tests.edge import COUNTDOWN, RIGHT, WRONG, limited

ROLLOUTS = 4


@cache
def base_tokenizer() -> Tokenizer:
    from rolegraph.engine.models.tokenizer import load_tokenizer
    from rolegraph.engine.shipped import model_folder

    return load_tokenizer(model_folder(None))


class SpokenModel:
    """Model that gives each role right or wrong answers at random, in tokens of the base model."""

    def __init__(self, seed: int = 0) -> None:
        self.seed = seed

    async def complete(self, request: Request) -> Completion:
        _, _, (role, *_), *_ = request.id
        chance = random.Random(f"{self.seed} {request.id}")
        text = said(role, chance)
        ids = base_tokenizer().encode(f"{text}<|end|>", add_special_tokens=False)
        logprobs = [-chance.expovariate(2) for _ in ids]
        return Completion(
            text, prompt_ids=(5, 6, 7), response_ids=ids, logprobs=logprobs, finish_reason="stop"
        )

    async def aclose(self) -> None: ...


def said(role: str, chance: random.Random) -> str:
    if role == "judge":
        return f"<answer>{chance.choice('12')}</answer>"
    if role == "verifier":
        return f"<verdict>{chance.choice(['correct', 'incorrect'])}</verdict>"
    return f"3 and 4, é 💡 …\n{chance.choice([RIGHT, WRONG, 'nothing'])}"


def rows(count: int) -> list[Task]:
    return [{**COUNTDOWN, "id": f"t{n}", "question": f"Task {n}: make 7 from 3 and 4"} for n in range(count)]


def episodes(plan: Plan, tasks: int = 3, rollouts: int = ROLLOUTS, seed: int = 0) -> list[Episode]:
    async def played() -> list[Episode]:
        async with Isolation(plan.imports) as isolation:
            models = limited(plan, SpokenModel(seed))
            todo = jobs(rows(tasks), rollouts, seed)
            made = run_jobs(todo, lambda job: run_episode(plan, job, models, isolation=isolation))
            return sorted([e async for e in made], key=lambda e: (e.task_id, e.rollout))

    return asyncio.run(played())


def learnt(plan: Plan, made: Sequence[Episode]) -> Ledger:
    """Return the ledger of a step of training."""
    return add_advantages(Membership(plan.trained, plan.policy_of).add(made).ledger())


def write_step(run: RunFolder, step: int, ledger: Ledger) -> None:
    """Write a step's credit and episodes as training does."""
    run.write_credit(step, credit_rows(ledger, step))
    run.write_episodes("train", step, ledger.filled_episodes())


def workflow(spec: str, *overrides: str) -> Workflow:
    return Workflow(compile_file(spec, overrides), Source(spec, overrides))


def write_run(folder: Path, spec: str = "solver_judge", *overrides: str, tasks: int = 3) -> Path:
    flow, run = workflow(spec, *overrides), RunFolder(folder)
    run.begin(describe(flow, "run", seed=3), flow.plan.resolved)
    with run.ending(), EpisodeWriter(run.episodes) as writer:
        for episode in episodes(flow.plan, tasks):
            writer.append(episode)
    return folder


def write_training(
    folder: Path, spec: str = "solver_judge", *overrides: str, steps: int = 2, tasks: int = 3
) -> Path:
    flow, run = workflow(spec, *overrides), RunFolder(folder)
    run.begin(describe(flow, "train", seed=3), flow.plan.resolved)
    for step in range(1, steps + 1):
        write_step(run, step, learnt(flow.plan, episodes(flow.plan, tasks, seed=step)))
        run.add_metrics({"step": float(step)})
    run.write_episodes("validation", steps, episodes(flow.plan, 2, 1, seed=9))
    return folder
