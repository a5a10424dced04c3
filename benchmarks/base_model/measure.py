"""What a model folder can do: marks for each kind of turn, and the figures of every shipped spec.

In goes a Hugging Face folder; the local service serves it, and the engine plays each spec, in each variant
that the model is taught, on tasks of the validation split.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

from marks import mark
from played import VARIANTS, episodes, loaded

import rolegraph as rg
from rolegraph.engine.models import Completion, Model, Models, Request, Services
from rolegraph.engine.records import FailureName, Means, Step
from rolegraph.engine.spec import ModelRef

MOST_TOKENS = 256
"""Tokens after which a turn is cut; no turn that is taught has as many."""
_MALFORMED = (FailureName.MALFORMED_OUTPUT.value, FailureName.UNPARSEABLE_CHOICE.value)


class SpecFigures(NamedTuple):
    """Figures of one spec in one variant."""

    name: str
    """Name of the spec, with the variant's overrides."""
    headline: str
    """Name of the figure by which a training chooses its best weights."""
    figures: dict[str, float]
    """Means of the headline and of the spec's metrics over the episodes."""
    turns: int
    """Number of answers that models gave."""
    cut: float
    """Share of the answers that ran into the limit of tokens."""
    malformed: float
    """Share of the answers that their role's parser could not read."""
    tokens: float
    """Mean number of tokens of an answer."""


class Marked:
    """Model whose answers are marked.

    Args:
        model: The model that answers.
    """

    def __init__(self, model: Model) -> None:
        self._model = model
        self.marks: defaultdict[str, list[bool]] = defaultdict(list)
        """By kind of turn, whether each answer does what its turn asks for; without those that could not."""

    async def complete(self, request: Request) -> Completion:
        """Answer a request, and mark the answer."""
        answer = await self._model.complete(request)
        kind, is_right = mark(request.messages, answer)
        if is_right is not None:
            self.marks[kind].append(is_right)
        return answer

    async def aclose(self) -> None:
        """Do nothing: whoever opened the model closes it."""


async def measure(
    folder: Path, specs: Iterable[str], *, tasks: int = 16, rollouts: int = 1, seed: int = 0
) -> tuple[list[SpecFigures], dict[str, list[bool]]]:
    """Play specs on a model folder, and mark each answer.

    Args:
        folder: The model's folder, in Hugging Face's form.
        specs: Names of shipped specs.
        tasks: Validation tasks of each spec.
        rollouts: Episodes of each task.
        seed: Seed of all draws.

    Returns:
        The figures of the specs, and the marks of the answers, by kind of turn.
    """
    found: list[SpecFigures] = []
    with Services() as services:
        async with Models(services.open) as models:
            opened = await models.model(ModelRef(provider="local", name=str(folder)))
            marked = Marked(opened.model)
            model = opened.with_model(marked)
            for spec in specs:
                flows = loaded(spec, f"sampling.max_tokens={MOST_TOKENS}")
                for flow, variant in zip(flows, VARIANTS.get(spec, ((),)), strict=True):
                    rows = flow.tasks("validation", tasks)
                    made = await episodes(flow, model, rows, rollouts=rollouts, seed=seed)
                    found.append(_figures(" ".join((spec, *variant)), flow, made))
    return found, dict(sorted(marked.marks.items()))


def table(found: Iterable[SpecFigures], marks: Mapping[str, Sequence[bool]]) -> str:
    """Return Markdown tables with a line for each kind of turn, and for each spec, the headline first."""
    lines = ["| spec | figures | turns | cut | malformed | tokens |", "| --- | --- | --- | --- | --- | --- |"]
    for name, _, figures, turns, cut, malformed, tokens in found:
        shown = ", ".join(f"{figure} {value:.3f}" for figure, value in figures.items())
        lines.append(f"| {name} | {shown} | {turns} | {cut:.3f} | {malformed:.3f} | {tokens:.1f} |")
    kinds = ["| turn | right | of |", "| --- | --- | --- |"]
    kinds += [f"| {kind} | {fmean(each):.3f} | {len(each)} |" for kind, each in marks.items()]
    return "\n".join((*kinds, "", *lines))


def _figures(name: str, flow: rg.Workflow, made: Sequence[rg.Episode]) -> SpecFigures:
    headline = flow.plan.spec.train.validation.best
    figures = Means({"correct": float(episode.is_correct), **episode.metrics} for episode in made).means()
    steps = [step for episode in made for step in _answers(episode)]
    failures = [failure for episode in made for failure in episode.metadata.get("failures", ())]
    return SpecFigures(
        name,
        headline,
        {headline: figures.pop(headline)} | figures,
        len(steps),
        fmean(step.metadata.get("finish_reason") == "length" for step in steps),
        sum(failure["name"] in _MALFORMED for failure in failures) / len(steps),
        fmean(step.response_tokens for step in steps),
    )


def _answers(episode: rg.Episode) -> Iterator[Step]:
    """Yield the answers of models in an episode."""
    for trajectory in episode.trajectories:
        yield from (step for step in trajectory.steps if not step.tool)
