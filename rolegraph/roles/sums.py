"""Reward that is a sum of other rewards with weights, its terms."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial, reduce
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, TypeVar, cast

from pydantic import BaseModel, BeforeValidator, ConfigDict, FiniteFloat

from rolegraph.engine.records import Task
from rolegraph.engine.vocabulary import (
    MONTY,
    SCHEDULED,
    ActionRead,
    BadOptions,
    BadParts,
    Formula,
    Item,
    Reward,
    RewardFacts,
    RewardField,
    RewardInputs,
    Score,
    UnknownName,
    did_you_mean,
    reward_call,
    rewards,
)
from rolegraph.roles.bounds import added, scaled


class Term(BaseModel):
    """Term of a sum of rewards: a reward and its weight."""

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True, use_attribute_docstrings=True)

    reward: Annotated[RewardField, rewards]
    """Reward of the term."""
    weight: Annotated[FiniteFloat, SCHEDULED] = 1.0
    """Factor of the term; below 0 for a penalty, 0 for a term that is only reported."""
    place: ClassVar[tuple[str, ...]] = ("reward",)
    """Path of the reward inside the term."""


class BareTerm(Term):
    """Term that a spec writes without a weight, as the reward alone."""

    place: ClassVar[tuple[str, ...]] = ()


def _in_full(written: object) -> object:
    """Expand a term's short form, a reward without a weight, to a BareTerm; any other value is returned
    unchanged."""
    return BareTerm(reward=reward_call(written)) if _is_short(written) else written


def _is_short(written: object) -> bool:
    if isinstance(written, Mapping):
        keys = cast("Mapping[object, object]", written).keys()
        return bool(keys) and Term.model_fields.keys().isdisjoint(keys)
    return isinstance(written, str | bool | int | float) and written != ""


_Short = Term | Annotated[RewardField, rewards]
Placed = TypeVar("Placed", ActionRead, Formula)


def weighted_sum(
    terms: dict[str, Annotated[Term, BeforeValidator(_in_full, json_schema_input_type=_Short)]],
    /,
    *,
    normalize: Literal["sum", "term"] = "sum",
    interpreter: str = MONTY,
) -> Reward:
    """Add named rewards, each with a weight; right when every term that judges the answer is right.

    terms: each term's reward, alone or as {reward: …, weight: …}: a weight is 1 unless given, below 0 for a
      penalty, 0 to report only
    normalize: what the estimator compares in a group: the sum, or each term by itself (GDPO, 2601.05242)
    """
    if not any(term.weight > 0 for term in terms.values()):
        raise ValueError("a sum needs a term of positive weight, such as {right: countdown}")
    built: dict[str, tuple[float, Reward]] = {}
    faults: dict[tuple[int | str, ...], UnknownName | BadOptions] = {}
    for name, term in terms.items():
        try:
            part = rewards.build(term.reward, interpreter=interpreter)
            built[name] = term.weight, part
        except (UnknownName, BadOptions) as error:
            if isinstance(error, UnknownName) and term.reward.has_value and not term.place:
                error.hint = error.hint or did_you_mean(error.name, Term.model_fields)
            faults[0, name, *term.place] = error
    if faults:
        raise BadParts(faults)
    term_rewards = [part for _, part in built.values()]
    if any(part.normalized for part in term_rewards):
        raise ValueError("`normalize: term` holds for a whole reward, and not for a sum that is a term")
    limits = [part.timeout for part in term_rewards if part.timeout is not None]
    facts = [part.facts for part in term_rewards]
    required: dict[str, bool] = {}  # with True where a list holds accepted answers
    for check in (fact.label_check for fact in facts):
        required |= {name: required.get(name, False) or name not in check.values for name in check.fields}

    def union(items: Sequence[Item | RewardFacts], field: str) -> tuple[str, ...]:
        return tuple(dict.fromkeys(name for item in items for name in getattr(item, field)))

    def placed(name: str, read: Placed) -> Placed:
        """Return a place that a term's reward reads, relative to the call of `sum`."""
        term = terms[name]
        return read._replace(place=(0, name, *term.place, *term.reward.path_of(read.place)))

    is_form = all(part.facts.form for part in term_rewards)
    judging = {
        name
        for name, (weight, part) in built.items()
        if weight > 0 and (is_form or not part.facts.form) and (part.facts.judges or part.facts.verdicts)
    }
    # Only plain data and functions are sent to a worker: a Reward would be made again there.
    summands = [_Summand(name, weight, name in judging, part.score) for name, (weight, part) in built.items()]
    return Reward(
        partial(_sum, summands),
        RewardFacts(
            fields=union(facts, "fields"),
            labels=union(facts, "labels"),
            required=tuple(required),
            values=tuple(name for name, has_list in required.items() if not has_list),
            terms=tuple(built),
            patterns=union(facts, "patterns"),
            reads=tuple(placed(name, read) for name, (_, part) in built.items() for read in part.facts.reads),
            judges=any(built[name][1].facts.judges for name in judging),
            verdicts=union([built[name][1].facts for name in judging], "verdicts"),
            compares_verdicts=union(facts, "compares_verdicts"),
            outcomes=union(facts, "outcomes"),
            bounds=reduce(added, [scaled(part.facts.bounds, weight) for weight, part in built.values()]),
            form=is_form,
        ),
        roles=union(term_rewards, "roles"),
        views=union(term_rewards, "views"),
        reads_turn=any(part.reads_turn for part in term_rewards),
        reads_environment=any(part.reads_environment for part in term_rewards),
        formulas=tuple(placed(name, fact) for name, (_, part) in built.items() for fact in part.formulas),
        likelihoods=tuple(dict.fromkeys(fact for part in term_rewards for fact in part.likelihoods)),
        delegates=all(part.delegates for part in term_rewards),
        timeout=sum(limits) if limits else None,
        memory=max(part.memory for part in term_rewards),
        permissions=union(term_rewards, "permissions"),
        normalized={name: it for name, (it, _) in built.items() if it} if normalize == "term" else {},
    )


class _Summand(NamedTuple):
    """Term of a sum, in the form for a worker process."""

    name: str
    weight: float
    decides: bool
    """True if the term's verdict counts."""
    score: Callable[..., Score | None]


def _sum(terms: Sequence[_Summand], task: Task, action: Any, inputs: RewardInputs) -> Score | None:
    rewards: dict[str, float] = {}
    total, is_masked, undecided = 0.0, False, False
    verdicts: list[bool] = []
    for term in terms:
        score = term.score(task, action, inputs)
        if score is None:
            continue
        if score.reward is not None:
            rewards[term.name] = score.reward
            total += term.weight * score.reward
        elif term.weight:
            is_masked = True
            undecided = undecided or (term.decides and score.is_correct is None)
        if term.decides and score.is_correct is not None:
            verdicts.append(score.is_correct)
    if not (rewards or is_masked):
        return None
    is_correct = False if False in verdicts else None if undecided or not verdicts else True
    return Score(None if is_masked else total, is_correct, rewards)
