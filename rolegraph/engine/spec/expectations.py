"""Models and reader of a spec's tests, `NAME.test.yaml`: the expected results of recorded answers.

`rolegraph.api.verdicts` compares episodes with them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path as FilePath
from typing import Annotated, Any, Literal, Self, cast

from pydantic import Field, model_validator

from rolegraph.engine.errors import SpecError, UsageError
from rolegraph.engine.limits.specs import SPEC_FAULTS
from rolegraph.engine.records.files import is_file, is_no_file
from rolegraph.engine.spec.base import SpecModel
from rolegraph.engine.spec.diagnostics import Finding
from rolegraph.engine.spec.files import display_path, resolve_path
from rolegraph.engine.spec.loader import TESTS_SUFFIX, by_place
from rolegraph.engine.spec.validation import fit_model
from rolegraph.engine.spec.yaml_source import YamlSource, read_yaml

CLOSE = 1e-6
"""Largest difference at which two figures are equal."""
Most = Annotated[int, Field(ge=0)]
"""Largest permitted count."""


class FigureBounds(SpecModel):
    """Bounds of a figure; a bare number stands for `equals`."""

    SHORT_KEYS = {float: "equals", int: "equals"}

    at_least: float | None = None
    """Lower bound."""
    at_most: float | None = None
    """Upper bound."""
    equals: float | None = None
    """Exact value, within a millionth."""

    @model_validator(mode="after")
    def _require_bound(self) -> Self:
        if self.at_least is None and self.at_most is None and self.equals is None:
            raise ValueError("at_least, at_most or equals")
        return self

    def hold(self, value: float) -> bool:
        """Return True if a value is within the bounds."""
        return (
            (self.at_least is None or value >= self.at_least - CLOSE)
            and (self.at_most is None or value <= self.at_most + CLOSE)
            and (self.equals is None or abs(value - self.equals) <= CLOSE)
        )

    def __str__(self) -> str:
        bounds = {"at least": self.at_least, "at most": self.at_most, "exactly": self.equals}
        return ", ".join(f"{word} {value:g}" for word, value in bounds.items() if value is not None)


class ExpectedAction(SpecModel):
    """Expected action of a role; any value but a mapping stands for `equals`."""

    equals: Any = None
    """Expected action."""
    contains: str | None = None
    """Expected part of the action's text."""

    @classmethod
    def expand_shorthand(cls, value: object) -> object:
        """Expand any value but a mapping to `{equals: value}`."""
        return cast("object", value) if isinstance(value, Mapping) else {"equals": value}

    def hold(self, action: object) -> bool:
        """Return True if an action equals `equals` and contains `contains`; each is checked only if it is
        set."""
        if "equals" in self.model_fields_set and action != self.equals:
            return False
        return self.contains is None or self.contains in str(action)

    def __str__(self) -> str:
        parts = [repr(self.equals)] if "equals" in self.model_fields_set else []
        return ", ".join(parts + ([f"with {self.contains!r} in it"] if self.contains is not None else []))


class TaskExpectations(SpecModel):
    """Expected results of the episodes of one task, in every rollout."""

    correct: bool | None = None
    """True if the episodes must be correct, false if they must not."""
    action: Mapping[str, ExpectedAction] = {}
    """Actions by role, or by instance, as in `solver 2`."""
    reward: Mapping[str, FigureBounds] = {}
    """Rewards by role, or by instance."""


class TokenBounds(SpecModel):
    """Largest number of recorded tokens of an episode."""

    prompts: Most | None = None
    """Largest number of tokens of all prompts of an episode."""
    answers: Most | None = None
    """Largest number of tokens of all answers of an episode."""


class Expectations(SpecModel):
    """Expected results of the recorded episodes."""

    figures: Mapping[str, FigureBounds] = {}
    """Bounds of means over tasks: `correct`, the spec's metrics and `reward/{role}`."""
    failures: Most | Mapping[str, Most] | None = None
    """Largest number of failures: in all, or by `role` or `role/name`. None checks none."""
    tokens: TokenBounds = TokenBounds()
    """Token bounds of each episode."""
    tasks: Mapping[str, TaskExpectations] = {}
    """Expected results of single tasks, by their id."""


class SpecTests(SpecModel):
    """Content of a tests file: the recorded answers of a spec, and the expected results."""

    answers: str | None = None
    """Recorded answers: an episodes file or a run folder, beside this file. None is `NAME.answers.jsonl`, the
    file that `rolegraph test SPEC --record` writes."""
    tasks: Annotated[int, Field(ge=1)] = 8
    """Number of tasks to record."""
    rollouts: Annotated[int, Field(ge=1)] = 1
    """Episodes of each task to record."""
    split: Literal["train", "validation"] | None = None
    """Split of the tasks; None takes the validation data, or without it the training data."""
    seed: int = 0
    """Seed of the recording and of the replay."""
    prompts: Literal["same", "any"] = "same"
    """`same` to require the recorded prompts, `any` to allow changed ones."""
    expect: Expectations = Expectations()
    """Expected results of the episodes."""


@dataclass(frozen=True, slots=True)
class LoadedTests:
    """A valid tests file."""

    path: FilePath
    tests: SpecTests
    source: YamlSource

    @property
    def answers(self) -> FilePath:
        """Path of the recorded answers."""
        name = self.path.name.removesuffix(TESTS_SUFFIX).removesuffix(".yaml")
        return self.path.parent / (self.tests.answers or f"{name}.answers.jsonl")

    def check(self, findings: Iterable[Finding]) -> None:
        """Raise SpecError for findings, each with its place in the file."""
        diagnostics = dict.fromkeys(map(self.source.diagnostic, islice(findings, SPEC_FAULTS.most)))
        if diagnostics:
            raise SpecError(sorted(diagnostics, key=by_place))


def read_tests(path: FilePath) -> LoadedTests:
    """Read a tests file.

    Raises:
        UsageError: The file is missing or cannot be read.
        SpecError: The file has faults; the error holds all of them.
    """
    if not (is_file(path) or is_no_file(path)):
        hint = "create it with `rolegraph test SPEC --record`"
        raise UsageError(f"no tests file {display_path(path)}; {hint}")
    source = read_yaml(path, ("tests are a mapping", "keys such as tasks and expect"))
    if source.errors:
        raise SpecError(source.errors)
    fitted = fit_model(SpecTests, source.data, {}, (), SpecTests)
    tests = LoadedTests(path, fitted.value, source)
    tests.check(fitted.findings)
    if not resolve_path(tests.answers).is_relative_to(resolve_path(path.parent)):
        expected = "a file or a run's folder beside the tests, or below them"
        tests.check([Finding(("answers",), "the answers lie outside the folder of the tests", expected)])
    return tests
