"""A reward made of rewards: `weighted`, a sum of named terms."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Annotated, Any, ClassVar, cast

from pydantic import BaseModel, BeforeValidator, ConfigDict, FiniteFloat

from rolegraph.engine.records import Task
from rolegraph.engine.vocabulary import (
    BadOptions,
    BadParts,
    CallField,
    ItemCall,
    Reward,
    RewardInputs,
    Score,
    UnknownName,
    did_you_mean,
    rewards,
)


class Term(BaseModel):
    """One term of a weighted sum."""

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True, use_attribute_docstrings=True)

    reward: Annotated[CallField, rewards]
    """What it measures."""
    weight: FiniteFloat = 1.0
    """What it counts; less than 0 for a penalty, 0 for a term that is only reported."""
    place: ClassVar[tuple[str, ...]] = ("reward",)
    """Where in what was written the reward stands."""


class BareTerm(Term):
    """A term that is written as its reward alone."""

    place: ClassVar[tuple[str, ...]] = ()


def _in_full(written: object) -> object:
    """A term from its short form, which is its reward alone; anything else as it is."""
    return BareTerm(reward=ItemCall.parse(written)) if _is_short(written) else written


def _is_short(written: object) -> bool:
    if isinstance(written, Mapping):
        keys = cast("Mapping[object, object]", written).keys()
        return bool(keys) and Term.model_fields.keys().isdisjoint(keys)
    return isinstance(written, str) and written != ""


_Short = Term | Annotated[CallField, rewards]


def weighted(
    terms: dict[str, Annotated[Term, BeforeValidator(_in_full, json_schema_input_type=_Short)]], /
) -> Reward:
    """A sum of named rewards, each with a weight; right when every term of positive weight is right.

    terms: each term's reward, alone or as {reward: …, weight: …}: a weight is 1 unless given, below 0 for a
      penalty, 0 to report only
    """
    if not any(term.weight > 0 for term in terms.values()):
        raise ValueError("weighted needs a term of positive weight, such as {right: countdown}")
    built: dict[str, tuple[float, Reward]] = {}
    faults: dict[tuple[int | str, ...], UnknownName | BadOptions] = {}
    for name, term in terms.items():
        try:
            built[name] = term.weight, rewards.build(term.reward)
        except (UnknownName, BadOptions) as error:
            if isinstance(error, UnknownName) and term.reward.has_value and not term.place:
                error.hint = error.hint or did_you_mean(error.name, Term.model_fields)
            faults[0, name, *term.place] = error
    if faults:
        raise BadParts(faults)
    parts = [reward for _, reward in built.values()]
    limits = [part.timeout for part in parts if part.timeout is not None]
    return Reward(
        partial(_weighted, {n: (weight, part.score, part.delegates) for n, (weight, part) in built.items()}),
        fields=_union(part.fields for part in parts),
        labels=_union(part.labels for part in parts),
        roles=_union(part.roles for part in parts),
        terms=tuple(built),
        timeout=sum(limits) if limits else None,
        views=_union(part.views for part in parts),
        reads_turn=any(part.reads_turn for part in parts),
        delegates=all(part.delegates for part in parts),
        permissions=_union(part.permissions for part in parts),
        patterns=_union(part.patterns for part in parts),
        reads_environment=any(part.reads_environment for part in parts),
    )


def _union(groups: Iterable[tuple[str, ...]]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for group in groups for name in group))


def _weighted(
    terms: Mapping[str, tuple[float, Callable[..., Score | None], bool]],
    task: Task,
    action: Any,
    seen: RewardInputs,
) -> Score | None:
    found = {
        name: (weight, borrowed, earned)
        for name, (weight, score, borrowed) in terms.items()
        if (earned := score(task, action, seen)) is not None
    }
    if not found:
        return None
    own, others = (
        [
            s.is_correct
            for w, borrowed, s in found.values()
            if w > 0 and borrowed is kind and s.is_correct is not None
        ]
        for kind in (False, True)
    )
    said = own or others
    return Score(
        sum(weight * score.reward for weight, _, score in found.values()),
        all(said) if said else None,
        {name: score.reward for name, (_, _, score) in found.items()},
    )
