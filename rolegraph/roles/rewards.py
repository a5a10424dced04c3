"""Rewards: functions from a task and an action to a Score.

Each factory makes a `Reward` that names the task fields and roles that it reads. Score functions are pure;
a slow function has a `timeout` and runs in a process that can be stopped.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import lru_cache
from typing import Annotated, Any, Literal, cast
from unicodedata import normalize

from pydantic import Field

from rolegraph.engine.records import Task
from rolegraph.engine.vocabulary import ActionRead, Reward, RewardFacts, RewardInputs, Score
from rolegraph.roles import countdown as countdown_task
from rolegraph.roles.equality import MATH_SECONDS, SAME_MATH, Seconds, as_text, require_math, same_json
from rolegraph.roles.json_text import value_at
from rolegraph.roles.likelihood import likelihood as likelihood
from rolegraph.roles.numbers import exact, exact_number_of
from rolegraph.roles.patterns import Pattern, compile_pattern, pay
from rolegraph.roles.sums import weighted_sum as weighted_sum
from rolegraph.roles.wording import plain, spellings, without_padding, words

Bound = Annotated[int, Field(ge=0)]
Tolerance = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Unit = Literal["characters", "words"]


def _scored(reward: float) -> Score:
    return Score(float(reward), reward >= 1.0)


def countdown() -> Reward:
    """Score 1 when the action, bare or in <answer>, uses each of task.nums once and comes to task.target."""

    def score(task: Task, action: Any, inputs: RewardInputs) -> Score:
        nums, target = task["nums"], task["target"]
        if not (isinstance(nums, list) and all(type(n) is int for n in cast("list[Any]", nums))):
            raise TypeError(f"task.nums must be a list of whole numbers, such as [3, 4]; got {nums!r}")
        if not isinstance(target, int | float) or isinstance(target, bool):
            raise TypeError(f"task.target must be a number, such as 7; got {target!r}")
        return _scored(countdown_task.reward(str(action), cast("list[int]", nums), exact(target)))

    fields = ("nums", "target")
    return Reward(score, RewardFacts(fields=fields, required=fields))


def exact_match(*, field: str = "answer", ignore_case: bool = True, punctuation: bool = True) -> Reward:
    """Score 1 when the action is the text of a task field; space at the ends and case do not count.

    field: the task field that holds the answer, or a list of accepted ones
    ignore_case: whether capitals do not count
    punctuation: whether punctuation counts; in numbers and names such as -5, 3.14 and C++ it always does
    """

    def texts(value: object) -> set[str]:
        texts_of_value = spellings(value)
        return {plain(text, ignore_case=ignore_case, punctuation=punctuation) for text in texts_of_value}

    def compare(answer: Any, right: Any) -> bool:
        answer_texts = texts(answer)
        return any(answer_texts & texts(gold) for gold in _accepted(right))

    return _comparing(compare, field)


def _comparing(
    compare: Callable[[Any, Any], float | bool], field: str, timeout: float | None = None
) -> Reward:
    """Return a reward that compares the action with a task field, and that expressions can call as a
    function.

    Args:
        compare: Function of (action, right answer) to the score.
        field: Task field with the right answer, or a list of accepted answers.
        timeout: Time limit in seconds of a comparison; None for a fast one.
    """

    def score(task: Task, action: Any, inputs: RewardInputs) -> Score:
        return _scored(compare(action, task[field]))

    facts = RewardFacts(fields=(field,), labels=(field,))
    return Reward(score, facts, timeout=timeout, compare=compare)


def _accepted(right: Any) -> list[Any]:
    """Return the list of accepted answers; a single answer becomes a list with one item."""
    return cast("list[Any]", right) if isinstance(right, list) else [right]


def math(*, field: str = "answer", timeout: Seconds = MATH_SECONDS) -> Reward:
    """Score 1 when the action is mathematically equal to a task field (the math-verify library).

    Of several \\boxed in the action the last counts.

    field: the task field that holds the answer, or a list of accepted ones
    timeout: seconds until a comparison is given up
    """
    require_math()

    def compare(answer: Any, right: Any) -> bool:
        return any(SAME_MATH(gold, answer) for gold in _accepted(right))

    return _comparing(compare, field, timeout)


def f1(*, field: str = "answer") -> Reward:
    """Score the overlap of words with a task field, as SQuAD: articles, case and punctuation do not count.

    The overlap is F1, the harmonic mean of precision and recall over words (Rajpurkar et al., 1606.05250).

    field: the task field that holds the answer, or a list of accepted ones
    """

    def compare(answer: Any, right: Any) -> float:
        texts = [(Counter(answer_words), len(answer_words)) for answer_words in map(words, spellings(answer))]
        golds = [words(text) for gold in _accepted(right) for text in spellings(gold)]
        return max(_overlap(*text, gold) for text in texts for gold in golds)

    return _comparing(compare, field)


def _overlap(given: Counter[str], size: int, gold: list[str]) -> float:
    """Return F1 between a bag of `size` words and the words of `gold`, in time linear in `gold`."""
    if not size or not gold:
        return float(size == len(gold))
    common_count = sum(min(count, given[word]) for word, count in Counter(gold).items())
    return 2 * common_count / (size + len(gold))


_ABSENT = object()


def json_field(path: str, /, *, field: str | None = None, value: Any = _ABSENT) -> Reward:
    """Score 1 when a dotted path of a JSON action equals a task field, or a given value.

    path: keys and list positions from the top, such as answer.0.name
    field: the task field to compare with
    value: the value to compare with, in place of a field
    """
    if (field is None) == (value is _ABSENT):
        raise ValueError(
            "json_field compares with a task field (field: answer) or a value (value: yes): give one"
        )

    def score(task: Task, action: Any, inputs: RewardInputs) -> Score:
        right_value = value if field is None else task[field]
        try:
            answer = value_at(action, path)
        except LookupError:
            return _scored(0.0)
        return _scored(same_json(answer, right_value))

    fields = () if field is None else (field,)
    reads = (ActionRead(None, path),)
    return Reward(score, RewardFacts(fields=fields, labels=fields, values=fields, reads=reads))


def close_to(*, field: str = "answer", absolute: Tolerance = 1e-6, relative: Tolerance = 0.0) -> Reward:
    """Score 1 when the last number of the action is close to that of a task field; 3/4 is one number.

    field: the task field that holds the number, or a list of accepted ones
    absolute: the largest distance from it
    relative: the same as a part of it, such as 0.01 for 1 %; the wider of the two counts
    """
    absolute_gap, share = exact(absolute), exact(relative)

    def compare(answer: Any, right: Any) -> bool:
        try:
            golds = [exact_number_of(gold) for gold in _accepted(right)]
        except ValueError as error:
            problem = f"the right answer must hold a number, such as 42, or several; got {right!r}"
            raise TypeError(problem) from error
        try:
            given_number = exact_number_of(answer)
        except ValueError:
            return False
        return any(abs(given_number - gold) <= max(absolute_gap, share * abs(gold)) for gold in golds)

    return _comparing(compare, field)


def length(*, over: Bound | None = None, under: Bound | None = None, unit: Unit = "characters") -> Reward:
    """Score 1 when the action's text is longer than `over`, shorter than `under`, or both.

    over: the length that it must exceed, without padding: runs of white space count once, and invisible signs
      and words without a letter or digit not at all
    under: the length that it must stay below
    unit: the unit of length; words are separated by white space
    """
    _check_bounds("length", "length", 400, over, under)

    def score(task: Task, action: Any, inputs: RewardInputs) -> Score:
        text = as_text(action)
        words = without_padding(text)
        if unit == "words":
            word_count = sum(any(map(str.isalnum, part)) for part in words)
            return _scored(_within(word_count, over, None) and _within(len(text.split()), None, under))
        return _scored(_within(len(" ".join(words)), over, None) and _within(len(text), None, under))

    return Reward(score, RewardFacts(form=True))


def _check_bounds(name: str, kind: str, example: int, over: int | None, under: int | None) -> None:
    if over is None and under is None:
        over_form, under_form = f"{{{name}: {{over: {example}}}}}", f"{{{name}: {{under: {example}}}}}"
        raise ValueError(f"{name} needs a bound, such as {over_form} or {under_form}")
    if over is not None and under is not None and under - over < 2:
        raise ValueError(f"no {kind} is over {over} and under {under}")


def _within(size: int, over: int | None, under: int | None) -> bool:
    return (over is None or size > over) and (under is None or size < under)


def tool_calls(
    *, over: Bound | None = None, under: Bound | None = None, name: str | None = None, failed: bool = False
) -> Reward:
    """Score 1 when a turn called its tools more than `over` times, fewer than `under`, or both.

    A call that was not run, because no model call was left to read its result, does not count.

    over: the number of calls that it must exceed
    under: the number that it must stay below
    name: the tool whose calls count; null counts those of all
    failed: count only calls whose result was an error
    """
    _check_bounds("tool_calls", "number", 3, over, under)

    def score(task: Task, action: Any, inputs: RewardInputs) -> Score:
        calls = [call for step in inputs.steps for call in step.metadata.get("calls", ())]
        count = sum(name in (None, call["name"]) and (not failed or "error" in call) for call in calls)
        return _scored(_within(count, over, under))

    return Reward(score, RewardFacts(form=True), reads_turn=True)


def matches(pattern: str, /, *, whole: bool = False, ignore_case: bool = False) -> Reward:
    """Score 1 when a pattern is found in the action's text, both in Unicode's composed form (NFC).

    pattern: a regular expression of RE2, without lookarounds; `.` matches line ends too
    whole: whether it must match all of the text
    ignore_case: take capitals for small letters
    """
    _compiled(pattern, ignore_case)

    def score(task: Task, action: Any, inputs: RewardInputs) -> Score:
        # Looked up here, because a compiled pattern cannot be sent to another process.
        compiled = _compiled(pattern, ignore_case)
        text = normalize("NFC", as_text(action))
        try:
            pay(compiled, text)
            match = compiled.fullmatch(text) if whole else compiled.search(text)
        except UnicodeEncodeError:
            return _scored(0.0)
        return _scored(match is not None)

    return Reward(score, RewardFacts(patterns=(pattern,), form=True))


def env() -> Reward:
    """Pay the environment's reward from this turn until the player's next; a trajectory earns the sum."""

    def score(task: Task, action: Any, inputs: RewardInputs) -> Score | None:
        reward = inputs.env_reward
        return None if reward is None else Score(reward, reward >= 1.0)

    return Reward(score, reads_environment=True)


@lru_cache(maxsize=256)
def _compiled(pattern: str, ignore_case: bool) -> Pattern:
    return compile_pattern(normalize("NFC", pattern), ignore_case=ignore_case)
