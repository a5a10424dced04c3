"""Turns of the shipped specs, played by the expert: what the base model is taught.

In goes a seed; out comes an endless stream of turns. The engine plays each spec on tasks of the train split
with an expert as its model, so that every prompt is the one that a model will read: rendered by the real
templates, after the answers and moves of others, with the tools that the role has. This file knows no
tokenizer and no weights.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from itertools import cycle

from expert import CHECK_ALL, EXPERTS, SOLVE_ALL, Asked, Mode, Unsolvable, asked, kind_of

import rolegraph as rg
from rolegraph import api
from rolegraph.engine.models import Completion, LimitedModel, Request
from rolegraph.engine.prompts.call_forms import HERMES
from rolegraph.engine.run import Isolation, jobs, run_episode, run_jobs
from rolegraph.engine.vocabulary import Function
from rolegraph.roles.countdown import generate

GRIDS = tuple(
    (f"loops.walk.env.grid.size={size}", "loops.walk.env.grid.walls=0.25", "loops.walk.times=4")
    for size in (6, 5, 4)
)
"""Walks that the base is taught: with more walls and fewer rounds than the spec has."""
VARIANTS: Mapping[str, Sequence[Sequence[str]]] = {
    "react": (("roles.agent.tools=calculator",),),
    "plan_path": GRIDS,
    "solver_judge": ((), ("roles.solver.count=4",), ("roles.solver.count=8",)),
    "textarena": ((), ("loops.play.env.textarena=Nim-v0",)),
}
"""Overrides with which a spec is played, in turn; none where a spec is missing."""
DRILL = "drill"
"""Name of the turns that are no spec's: much arithmetic in few tokens."""
SHARES: Mapping[str, float] = {
    DRILL: 12,
    "plan_path": 4,
    "tic_tac_toe": 2,
    "textarena": 0.7,
    "solver_judge": 2,
    "react": 2,
    "solver_only": 0,
    "solver_judge_distill": 0,
    "two_policies": 0,
}
"""Weights of the specs in the stream, 1 where a spec is missing; 0 where all prompts are another spec's."""
GUESSES: Mapping[str, float] = {"plan_path": 0.85, "malt": 0.75, "debate": 0.7, "tool_and_reasoner": 0.7}
"""Share of the turns that guess, for specs in which the course's share would leave too little to find."""
SLIPS = 0.5
"""Share of answers that nobody is taught, and that others see: wrong, malformed or at random.

With this share, and no turns that guess, about half of the answers in sight are right.
"""
_CHUNK = 16
"""Tasks that are played at once."""


@dataclass(frozen=True, slots=True)
class Turn:
    """One request to a model, and a response to learn."""

    spec: str
    role: str
    kind: str
    """Name of the expert that answered."""
    messages: Sequence[api.Message]
    tools: Sequence[Function] = field(repr=False)
    response: str
    """Response as text, calls of tools included."""


class Expert:
    """Model that answers as an expert, and keeps the turns to learn.

    Args:
        spec: The name of the spec, for the turns.
        seed: The seed; each call has its own draws, whatever the order of the calls.
        guess: The share of turns that guess in place of working the answer out.
        slips: The share of answers that are not kept.
    """

    def __init__(self, spec: str, seed: int, guess: float = 0.0, slips: float = 0.0) -> None:
        self._spec, self._seed, self._guess, self._slips = spec, seed, guess, slips
        self.turns: dict[str, Turn] = {}
        """By the identity of the call."""

    async def complete(self, request: Request) -> Completion:
        """Answer a request; raises LookupError for a prompt that no expert knows."""
        rng = random.Random(f"expert {self._seed} {request.id}")
        drawn = rng.random()
        mode: Mode = "slip" if drawn < self._slips else "guess" if rng.random() < self._guess else "work"
        kind = kind_of(request.messages)
        try:
            response = _BY_NAME[kind](asked(request.messages, rng, mode))
        except Unsolvable:
            mode, response = "slip", "There is none."
        if mode != "slip":
            role = request.id.node.role
            turn = Turn(self._spec, role, kind, request.messages, request.tools, response)
            self.turns[str(request.id)] = turn
        text, calls = HERMES.find(response, request.tools) if request.tools else (response, ())
        return Completion(text, calls=calls)

    async def aclose(self) -> None:
        """Do nothing: an expert holds no connection."""


_BY_NAME = {expert.__name__: expert for expert in EXPERTS.values()}


def turns(
    seed: int,
    *,
    shares: Mapping[str, float] | None = None,
    guess: float = 0.0,
    slips: float = SLIPS,
) -> Iterator[Turn]:
    """Yield turns without end, the same for the same arguments.

    Args:
        seed: The seed.
        shares: Weights of specs, in place of those of `SHARES`.
        guess: The share of turns that guess in place of working the answer out.
        slips: The share of answers that others see and that are not yielded.
    """
    rng = random.Random(f"turns {seed}")
    weights = dict.fromkeys(api.shipped_specs(), 1.0) | {**SHARES, **(shares or {})}
    guesses = dict.fromkeys(weights, guess) | (GUESSES if guess else {})
    streams = {
        name: _turns_of(name, rng.getrandbits(32), guesses[name], slips) for name in weights if name != DRILL
    }
    streams[DRILL] = _drills(rng.getrandbits(32))
    while True:
        (name,) = rng.choices([*weights], [*weights.values()])
        yield next(streams[name])


async def episodes(
    flow: rg.Workflow,
    model: LimitedModel,
    tasks: Sequence[api.Task],
    *,
    rollouts: int = 1,
    seed: int | None = None,
) -> list[rg.Episode]:
    """Play a workflow on tasks, with one model in place of all of its models."""
    planned, models = jobs(tasks, rollouts, seed), [model] * len(flow.plan.endpoints)
    async with (
        Isolation(flow.plan.imports) as isolation,
        aclosing(
            run_jobs(planned, lambda job: run_episode(flow.plan, job, models, isolation=isolation))
        ) as made,
    ):
        return [episode async for episode in made]


def loaded(spec: str, *overrides: str) -> list[rg.Workflow]:
    """Load a shipped spec, once with each of its variants."""
    variants = VARIANTS.get(spec, ((),))
    return [rg.load(spec, *variant, *overrides, allow=("python",)) for variant in variants]


def tasks_of(flow: rg.Workflow, seed: int, number: int) -> Sequence[api.Task]:
    """Return tasks of a workflow's train split, others for each seed."""
    if "seed" not in flow.dataset("train").columns:
        return generate(number, seed=seed, split="train")
    first = seed % 2**20 * number
    return [{"id": f"seed-{game}", "seed": game} for game in range(first, first + number)]


def _drills(seed: int) -> Iterator[Turn]:
    """Yield turns that check six candidates of a task, and turns that solve four tasks."""
    rng = random.Random(f"drill {seed}")
    while True:
        tasks = generate(4, seed=rng.getrandbits(32), split="train", numbers=(3, 3, 3, 2))
        asks = [Asked("", (), task["nums"], task["target"], rng, "work") for task in tasks]
        candidates = [asks[0].candidate() for _ in range(6)]
        lines = [tasks[0]["question"], *(f"{index}: {action}" for index, action in enumerate(candidates))]
        yield _drill(CHECK_ALL, lines, rng)
        yield _drill(SOLVE_ALL, [f"{', '.join(map(str, ask.nums))} to {ask.target}" for ask in asks], rng)


def _drill(phrase: str, lines: Sequence[str], rng: random.Random) -> Turn:
    messages: list[api.Message] = [{"role": "user", "content": "\n".join((phrase, *lines))}]
    expert = EXPERTS[phrase]
    return Turn(DRILL, "", expert.__name__, messages, (), expert(asked(messages, rng, "work")))


def _turns_of(spec: str, seed: int, guess: float, slips: float) -> Iterator[Turn]:
    rng = random.Random(f"{spec} {seed}")
    for flow in cycle(loaded(spec)):
        played = rng.getrandbits(32)
        expert = Expert(spec, played, guess, slips)
        asyncio.run(episodes(flow, LimitedModel(expert, _CHUNK), tasks_of(flow, played, _CHUNK)))
        made = [expert.turns[call] for call in sorted(expert.turns)]
        yield from rng.sample(made, len(made))
