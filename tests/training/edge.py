"""Small training of solver_judge on a scripted service whose answers follow from seed and weights."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from rolegraph.engine.compile import compile_file
from rolegraph.engine.errors import WorldError
from rolegraph.engine.models import Models, ServedModel
from rolegraph.engine.models.opening import open_served
from rolegraph.engine.models.rates import policy_rates
from rolegraph.engine.prompts.chat import Tokenizer
from rolegraph.engine.records import Episode, Event, Note, Observer, Task
from rolegraph.engine.records.episode import EpisodePart
from rolegraph.engine.records.episodes import read_episodes
from rolegraph.engine.records.folder import RunFolder
from rolegraph.engine.records.info import Checkpoint, RunInfo
from rolegraph.engine.run import Isolation
from rolegraph.engine.spec import ModelRef
from rolegraph.engine.training.loop.ending import NO_BUDGET
from rolegraph.engine.training.loop.loop import train
from rolegraph.engine.training.loop.rollouts import TrainingSetup
from rolegraph.engine.training.loop.schedule import ValidationSetup
from rolegraph.engine.training.policies.past import PastSelves
from rolegraph.engine.training.policies.policies import Policies, PolicyStart
from tests.edge import COUNTDOWN, RIGHT, WRONG
from tests.models.tinker_edge import Sampled, Service, failed
from tests.trainings import CLOCKED

KEY = "tml-test-secret"
SEED = 11
STEPS = 3
SMALL = (
    "train.batch_size=2",
    "train.rollouts=2",
    "train.learning_rate=0.01",
    "train.checkpoint_every=2",
    "train.validation.every=2",
    "train.validation.tasks=2",
    "train.validation.rollouts=1",
)
LOGPROB = -0.5


def tasks(split: str, count: int) -> list[Task]:
    return [
        {**COUNTDOWN, "id": f"{split}{number}", "question": f"Task {number}: {COUNTDOWN['question']}"}
        for number in range(count)
    ]


class Workflow:
    """Scripted model of a service; a solver's answer depends on the call's seed and the updates so far."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self.service: Service
        self.solve: Callable[[int, int], str] = lambda seed, updates: RIGHT if seed % 2 else WRONG
        """Function from a call's seed and the weights' number of updates to the solver's answer."""
        self.answers: Callable[[str, int], str] | None = None
        """Function from a prompt and a call's seed to the answer, in place of `solve`."""

    def __call__(self, body: dict[str, Any]) -> Sampled:
        prompt = self.tokenizer.decode(
            [token for chunk in body["prompt"]["chunks"] for token in chunk["tokens"]],
            skip_special_tokens=False,
            clean_up_tokenization_spaces=False,
        )
        updates = self.service.updates[body["sampling_session_id"]]
        seed = body["sampling_params"]["seed"]
        answer = "<answer>1</answer>" if "Proposed solutions" in prompt else self.solve(seed, updates)
        if self.answers is not None:
            answer = self.answers(prompt, seed)
        ids = self.tokenizer.encode(f"{answer}<|end|>", add_special_tokens=False)
        return ids, [LOGPROB] * len(ids), "stop"

    def seeds(self) -> list[int]:
        """Return the seeds of all calls so far, sorted."""
        return sorted(body["sampling_params"]["seed"] for body in self.service.asked)


class Training:
    """Training in a folder, on a scripted service."""

    def __init__(self, workflow: Workflow, tokenizer: Path, folder: Path) -> None:
        self.workflow, self.service, self.tokenizer = workflow, workflow.service, tokenizer
        self.folder = RunFolder(folder)
        self.spec: str | Path = "solver_judge"
        self.rows: Callable[[str, int], list[Task]] = tasks
        """Function from a split and a number to so many tasks."""
        self.allow: tuple[str, ...] = ()
        """Permissions of the spec."""
        self.keep_going = False
        self.budget = NO_BUDGET
        self.events: list[Event] = []
        self.observe: Observer = self.events.append

    @asynccontextmanager
    async def setup(
        self, overrides: Sequence[str], start: Checkpoint | None, steps: int = STEPS
    ) -> AsyncGenerator[TrainingSetup]:
        plan = compile_file(self.spec, (*SMALL, *overrides), allow=self.allow)
        ref = ModelRef(provider="tinker", name="tiny", base_url=self.service.base_url)
        served = ServedModel(ref, KEY, self.tokenizer)
        starts = {
            name: PolicyStart(served, policy.lora, SEED, start.policies[name] if start else None)
            for name, policy in plan.policies.items()
        }
        validations = [
            ValidationSetup(
                it, self.rows("validation", 2), RunFolder(self.folder.validated / it.name), prefix
            )
            for prefix, it in (plan.validating if plan.validations else ())
        ]
        if start is None:
            info = RunInfo(name=plan.name, roles={}, validations=tuple(plan.validations))
            self.folder.begin(info, plan.resolved)
            for it in validations:
                it.folder.begin(RunInfo(name=it.plan.name, roles={}), it.plan.resolved)
        if not validations and (rows := self.rows("validation", 2)):
            validations = [ValidationSetup(plan, rows, self.folder)]
        async with (
            Policies.open(starts) as policies,
            Isolation(plan.imports) as isolation,
            Models(lambda _: open_served(served)) as models,
        ):
            yield TrainingSetup(
                plan=plan,
                seed=SEED,
                steps=steps,
                tasks=self.rows("train", 5),
                rates={name: rate.value for name, rate in policy_rates(plan).items()},
                policies=policies,
                past=PastSelves(plan.past, policies, start),
                models={
                    ref: await models.model(ref)
                    for ref in (*plan.teachers, *(e.model for e in plan.endpoints if e.policy is None))
                },
                isolation=isolation,
                folder=self.folder,
                observe=self.observe,
                keep_going=self.keep_going,
                validations=validations,
                budget=self.budget,
            )

    def run(self, *overrides: str, start: Checkpoint | None = None, steps: int = STEPS) -> None:
        async def training() -> None:
            async with self.setup(overrides, start, steps) as setup:
                await train(setup, start)

        asyncio.run(training())

    def resumed(self, folder: Path, done: int, *overrides: str, steps: int = STEPS) -> Training:
        """Return the same training, broken off by the service in step `done` + 1 and resumed in a folder.

        Every step's episodes and figures are asserted to be those of this training.
        """
        broken = Training(self.workflow, self.tokenizer, folder)
        broken.spec, broken.rows, broken.allow = self.spec, self.rows, self.allow
        gone = failed("the machine is gone", "server")
        self.service.refusals["optim_step"] = iter([None] * done + [gone])
        with pytest.raises(WorldError, match="the machine is gone"):
            broken.run(*overrides, steps=steps)
        broken.run(*overrides, start=broken.folder.rewind(), steps=steps)
        assert broken.figures() == self.figures()
        for step in range(1, steps + 1):
            ours, theirs = (run.episodes("train", step) for run in (broken, self))
            assert comparable(ours) == comparable(theirs)
        return broken

    def episodes(self, split: EpisodePart, step: int) -> list[Episode]:
        return list(read_episodes(self.folder.episodes_file(split, step)))

    def figures(self) -> list[dict[str, float]]:
        """Return the lines of metrics without those measured by a clock."""
        return [
            {name: value for name, value in line.items() if not name.startswith(CLOCKED)}
            for line in self.folder.metrics()
        ]

    def warnings(self) -> list[str]:
        return [event.text for event in self.events if isinstance(event, Note) and event.kind == "warning"]


def comparable(episodes: Sequence[Episode], *, weights: bool = True) -> list[dict[str, Any]]:
    """Return episodes as dictionaries without times, and without weight versions unless `weights`."""
    rows = [episode.to_dict() for episode in episodes]
    for row in rows:
        del row["info"]["started_at"]
    for step in (step for row in rows for t in row["trajectories"] for step in t["steps"]):
        del step["info"]["started"], step["info"]["seconds"]
        if not weights:
            del step["weight_version"]
    return rows
