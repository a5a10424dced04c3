"""Rewards: a task and an action to a score.

Each factory makes a `Reward` that says which task fields and roles it reads. Score functions are pure and
picklable; one that may be slow has a `timeout` and runs in a process that can be stopped.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import logging
import re
import string
from collections import Counter
from collections.abc import Iterable, Mapping
from functools import lru_cache, partial
from math import isnan, nan
from typing import Annotated, Any, ClassVar, Literal, cast

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, FiniteFloat

from engine.records import Task
from engine.vocabulary import (
    BadOptions,
    BadParts,
    Call,
    CallField,
    Reward,
    Score,
    Seen,
    UnknownName,
    UsageError,
    did_you_mean,
    rewards,
)
from roles import countdown as countdown_task
from roles.numbers import find_number
from roles.patterns import compile_pattern

MATH_SECONDS = 10.0

Bound = Annotated[int, Field(ge=0)]
Tolerance = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Unit = Literal["characters", "words"]


def _scored(reward: float) -> Score:
    return Score(reward, reward >= 1.0)


def countdown() -> Reward:
    """1 when the action, bare or in <answer>, uses each of task.nums once and comes to task.target."""
    return Reward(_countdown, fields=("nums", "target"))


def _countdown(task: Task, action: Any, seen: Seen) -> Score:
    nums, target = task["nums"], task["target"]
    if not (isinstance(nums, list) and all(type(n) is int for n in cast("list[Any]", nums))):
        raise TypeError(f"task.nums must be a list of whole numbers, such as [3, 4]; got {nums!r}")
    return _scored(countdown_task.reward(str(action), cast("list[int]", nums), target))


def exact_match(*, field: str = "answer", ignore_case: bool = True, punctuation: bool = True) -> Reward:
    """1 when the action is the text of a task field; space at the ends and (by default) case do not count.

    field: the task field that holds the answer, or a list of accepted ones
    ignore_case: whether capitals do not count
    punctuation: whether punctuation counts
    """
    return Reward(partial(_exact_match, field, ignore_case, punctuation), (field,), (field,))


def _exact_match(
    field: str, ignore_case: bool, punctuation: bool, task: Task, action: Any, seen: Seen
) -> Score:
    given = _plain(action, ignore_case, punctuation)
    golds = (_plain(gold, ignore_case, punctuation) for gold in _accepted(task, field))
    return _scored(float(given in golds))


def _accepted(task: Task, field: str) -> list[Any]:
    """What a task field accepts: each of its list, or the one thing that it holds."""
    return cast("list[Any]", task[field]) if isinstance(task[field], list) else [task[field]]


_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)


def _plain(value: object, ignore_case: bool, punctuation: bool) -> str:
    text = str(value).lower() if ignore_case else str(value)
    return " ".join((text if punctuation else text.translate(_NO_PUNCTUATION)).split())


def math(*, field: str = "answer", timeout: Annotated[float, Field(gt=0)] = MATH_SECONDS) -> Reward:
    """1 when the action is mathematically equal to a task field (the math-verify library).

    field: the task field that holds the answer
    timeout: seconds until a comparison is given up
    """
    if importlib.util.find_spec("math_verify") is None:
        raise UsageError("the reward math needs the library math-verify: pip install 'rolegraph[math]'")
    return Reward(_Math(field), (field,), (field,), timeout=timeout)


class _Math:
    """Compares with a task field. A worker that receives it loads the library before its time starts."""

    def __init__(self, field: str) -> None:
        self.field = field

    def __setstate__(self, state: dict[str, Any]) -> None:
        _math_library()
        self.__dict__.update(state)

    def __call__(self, task: Task, action: Any, seen: Seen) -> Score:
        library = _math_library()
        # Its own limits are signals, which only work in a main thread; ours stops the whole process.
        gold = library.parse(_as_math(task[self.field]), parsing_timeout=None)
        answer = library.parse(_as_math(action), parsing_timeout=None)
        return _scored(float(bool(library.verify(gold, answer, timeout_seconds=None))))


def _math_library() -> Any:
    logging.getLogger("math_verify").setLevel(logging.ERROR)  # it remarks on limits that are off
    return importlib.import_module("math_verify")


def _as_math(value: object) -> str:
    text = str(value)
    return text if "$" in text or "\\boxed" in text else f"${text}$"


def f1(*, field: str = "answer") -> Reward:
    """The overlap of words with a task field, as in SQuAD: articles, case and punctuation do not count.

    field: the task field that holds the answer, or a list of accepted ones
    """
    return Reward(partial(_f1, field), (field,), (field,))


_ARTICLES = re.compile(r"\b(?:a|an|the)\b")


def _f1(field: str, task: Task, action: Any, seen: Seen) -> Score:
    overlaps = (_overlap(str(action), str(gold)) for gold in _accepted(task, field))
    return _scored(max(overlaps, default=0.0))


def _overlap(given: str, gold: str) -> float:
    given_words, gold_words = (
        _ARTICLES.sub(" ", _plain(text, ignore_case=True, punctuation=False)).split()
        for text in (given, gold)
    )
    if not given_words or not gold_words:
        return float(given_words == gold_words)
    common = (Counter(given_words) & Counter(gold_words)).total()
    return 2 * common / (len(given_words) + len(gold_words))


_ABSENT = object()


def json_field(path: str, /, *, field: str | None = None, value: Any = _ABSENT) -> Reward:
    """1 when a dotted path of a JSON action equals a task field, or a given value.

    path: keys and list positions from the top, such as answer.0.name
    field: the task field to compare with
    value: the value to compare with, in place of a field
    """
    if (field is None) == (value is _ABSENT):
        raise ValueError(
            "json_field compares with a task field (field: answer) or a value (value: yes): give one"
        )
    if field is None:
        return Reward(partial(_json_value, path, value))
    return Reward(partial(_json_field, path, field), (field,), (field,))


def _json_field(path: str, field: str, task: Task, action: Any, seen: Seen) -> Score:
    return _json_value(path, task[field], task=task, action=action, seen=seen)


def _json_value(path: str, wanted: Any, task: Task, action: Any, seen: Seen) -> Score:
    at = action
    for key in path.split("."):
        if isinstance(at, Mapping) and key in at:
            at = cast("Mapping[str, Any]", at)[key]
        elif isinstance(at, list) and key.isdecimal() and int(key) < len(cast("list[Any]", at)):
            at = cast("list[Any]", at)[int(key)]
        else:
            return _scored(0.0)
    return _scored(float(at == wanted and isinstance(at, bool) == isinstance(wanted, bool)))


def close_to(*, field: str = "answer", absolute: Tolerance = 1e-6, relative: Tolerance = 0.0) -> Reward:
    """1 when the last number of the action is close to that of a task field; 3/4 is one number.

    field: the task field that holds the number, or a list of accepted ones
    absolute: how far from it the number may lie
    relative: the same as a part of it, such as 0.01 for 1 %; the wider of the two counts
    """
    return Reward(partial(_close_to, field, absolute, relative), (field,), (field,))


def _close_to(field: str, absolute: float, relative: float, task: Task, action: Any, seen: Seen) -> Score:
    given, golds = _number(action), [_number(gold) for gold in _accepted(task, field)]
    if any(map(isnan, golds)):
        raise TypeError(f"task.{field} must hold a number, such as 42, or several; got {task[field]!r}")
    return _scored(float(any(abs(given - gold) <= max(absolute, relative * abs(gold)) for gold in golds)))


def _number(value: object) -> float:
    """A number, or the last one of a text; where there is none, nan, which is close to nothing."""
    try:
        if isinstance(value, str):
            return float(find_number(value, fractions=True))
        return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else nan
    except (ValueError, OverflowError):
        return nan


def length(*, over: Bound | None = None, under: Bound | None = None, unit: Unit = "characters") -> Reward:
    """1 when the action's text is longer than `over`, shorter than `under`, or both.

    over: the length that it must exceed
    under: the length that it must stay below
    unit: what is counted; words are what stands between white space
    """
    if over is None and under is None:
        raise ValueError("length needs a bound, such as {length: {over: 400}} or {length: {under: 50}}")
    if over is not None and under is not None and under - over < 2:
        raise ValueError(f"no length is over {over} and under {under}")
    return Reward(partial(_length, over, under, unit))


def _length(over: int | None, under: int | None, unit: Unit, task: Task, action: Any, seen: Seen) -> Score:
    text = _written(action)
    size = len(text) if unit == "characters" else len(text.split())
    return _scored(float((over is None or size > over) and (under is None or size < under)))


def matches(pattern: str, /, *, whole: bool = False, ignore_case: bool = False) -> Reward:
    """1 when a pattern is found in the action's text.

    pattern: a regular expression of RE2, without lookarounds; `.` matches line ends too
    whole: whether it must match all of the text
    ignore_case: take capitals for small letters
    """
    _compiled(pattern, ignore_case=ignore_case)
    return Reward(partial(_matches, pattern, whole, ignore_case))


def _matches(pattern: str, whole: bool, ignore_case: bool, task: Task, action: Any, seen: Seen) -> Score:
    # Compiled where it is asked for: a compiled pattern cannot be sent to another process.
    compiled = _compiled(pattern, ignore_case=ignore_case)
    find = compiled.fullmatch if whole else compiled.search
    try:
        return _scored(float(find(_written(action)) is not None))
    except UnicodeEncodeError:
        return _scored(0.0)


_compiled = lru_cache(maxsize=256)(compile_pattern)


def _written(action: object) -> str:
    """An action as text: itself, or its JSON."""
    return action if isinstance(action, str) else json.dumps(action, ensure_ascii=False, default=str)


def agrees_with(role: str, /, *, right: str = "correct", wrong: str = "incorrect") -> Reward:
    """1 when the action says `correct` of a role that is right, or `incorrect` of one that is wrong.

    role: the role that is judged; of several instances all must be right, whichever of them were shown
    right: the word for a role that is right
    wrong: the word for one that is wrong
    """
    if right.lower() == wrong.lower():
        raise ValueError("right and wrong must be different words")
    return Reward(partial(_agrees_with, role, right.lower(), wrong.lower()), roles=(role,))


def _agrees_with(role: str, right: str, wrong: str, task: Task, action: Any, seen: Seen) -> Score:
    truth = all(score.is_correct for score in seen.scores[role])
    return _scored(float(str(action).strip().lower() == (right if truth else wrong)))


class Term(BaseModel):
    """One term of a weighted sum."""

    model_config = ConfigDict(extra="forbid", frozen=True)

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
    return BareTerm(reward=Call.parse(written)) if _is_short(written) else written


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
        partial(_weighted, {name: (weight, part.score) for name, (weight, part) in built.items()}),
        fields=_union(part.fields for part in parts),
        labels=_union(part.labels for part in parts),
        roles=_union(part.roles for part in parts),
        terms=tuple(built),
        timeout=sum(limits) if limits else None,
    )


def _union(groups: Iterable[tuple[str, ...]]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for group in groups for name in group))


def _weighted(terms: Mapping[str, tuple[float, Any]], task: Task, action: Any, seen: Seen) -> Score:
    scores: dict[str, tuple[float, Score]] = {
        name: (weight, score(task, action, seen)) for name, (weight, score) in terms.items()
    }
    return Score(
        sum(weight * score.reward for weight, score in scores.values()),
        all(score.is_correct for weight, score in scores.values() if weight > 0),
        {name: score.reward for name, (_, score) in scores.items()},
    )
