"""A spec's own tests, `NAME.test.yaml` beside it: what recorded answers must come to.

The models of that file, and its reader, with diagnostics as a spec has them. What is expected is held against
episodes elsewhere (`rolegraph.engine.report.verdicts`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path as FilePath
from typing import Annotated, Any, Literal, Self, cast

from pydantic import Field, model_validator

from rolegraph.engine.errors import SpecError, UsageError
from rolegraph.engine.limits.specs import SPEC_BYTES, SPEC_FAULTS
from rolegraph.engine.spec.base import SpecModel
from rolegraph.engine.spec.diagnostics import Finding
from rolegraph.engine.spec.files import display_path, read_text
from rolegraph.engine.spec.loader import TESTS_SUFFIX, place_of
from rolegraph.engine.spec.validation import fit_model
from rolegraph.engine.spec.yaml_source import YamlSource, parse_yaml

CLOSE = 1e-6
"""How far a figure may be from one that it must equal."""
Most = Annotated[int, Field(ge=0)]
"""How many there may be."""


class FigureBounds(SpecModel):
    """Within what a figure must lie; a number alone is what it must be."""

    at_least: float | None = None
    """The least that it may be."""
    at_most: float | None = None
    """The most that it may be."""
    equals: float | None = None
    """What it must be, to a millionth."""

    @classmethod
    def expand_shorthand(cls, value: object) -> object:
        """A number stands for `{equals: number}`."""
        number = isinstance(value, int | float) and not isinstance(value, bool)
        return {"equals": value} if number else value

    @model_validator(mode="after")
    def _says_something(self) -> Self:
        if self.at_least is None and self.at_most is None and self.equals is None:
            raise ValueError("at_least, at_most or equals")
        return self

    def hold(self, value: float) -> bool:
        """Whether a value lies within them."""
        return (
            (self.at_least is None or value >= self.at_least - CLOSE)
            and (self.at_most is None or value <= self.at_most + CLOSE)
            and (self.equals is None or abs(value - self.equals) <= CLOSE)
        )

    def __str__(self) -> str:
        said = {"at least": self.at_least, "at most": self.at_most, "exactly": self.equals}
        return ", ".join(f"{word} {value:g}" for word, value in said.items() if value is not None)


class ExpectedAction(SpecModel):
    """What a role's action must be; anything but a mapping is what it must equal."""

    equals: Any = None
    """The action itself."""
    contains: str | None = None
    """A text that is in the action."""

    @classmethod
    def expand_shorthand(cls, value: object) -> object:
        """Any value but a mapping stands for `{equals: value}`."""
        return cast("object", value) if isinstance(value, Mapping) else {"equals": value}

    def hold(self, action: object) -> bool:
        """Whether an action is as it must be."""
        if "equals" in self.model_fields_set and action != self.equals:
            return False
        return self.contains is None or self.contains in str(action)

    def __str__(self) -> str:
        parts = [repr(self.equals)] if "equals" in self.model_fields_set else []
        return ", ".join(parts + ([f"with {self.contains!r} in it"] if self.contains is not None else []))


class TaskExpectations(SpecModel):
    """What the episodes of one task must come to, in every rollout."""

    correct: bool | None = None
    """Whether they are correct."""
    action: Mapping[str, ExpectedAction] = {}
    """Actions by role; of one instance where its number follows, as in `solver 2`."""
    reward: Mapping[str, FigureBounds] = {}
    """Rewards by role, or instance, likewise."""


class TokenBounds(SpecModel):
    """How many tokens an episode may take, as they were recorded."""

    prompts: Most | None = None
    """Of all prompts of an episode, at most."""
    answers: Most | None = None
    """Of all answers of an episode, at most."""


class Expectations(SpecModel):
    """What must hold of the recorded episodes."""

    figures: Mapping[str, FigureBounds] = {}
    """`correct`, the spec's metrics and `reward/{role}`: means over tasks."""
    failures: Most | Mapping[str, Most] | None = None
    """How many failures there may be: in all, or by `role` or `role/name`. None asks for nothing."""
    tokens: TokenBounds = TokenBounds()
    """What an episode may take."""
    tasks: Mapping[str, TaskExpectations] = {}
    """What single tasks must come to, by their id."""


class SpecTests(SpecModel):
    """A spec's tests."""

    answers: str | None = None
    """The recorded answers: an episodes file or the folder of a run, beside this file. None is
    `NAME.answers.jsonl`, which `rolegraph test SPEC --record` makes."""
    tasks: Annotated[int, Field(ge=1)] = 8
    """How many tasks are recorded."""
    rollouts: Annotated[int, Field(ge=1)] = 1
    """Episodes of each that are recorded."""
    split: Literal["train", "validation"] | None = None
    """Which tasks; by default those of the validation, else those of the training."""
    seed: int = 0
    """Of the recording, and of what is played again."""
    prompts: Literal["same", "any"] = "same"
    """Whether each prompt must be the recorded one."""
    expect: Expectations = Expectations()
    """What must hold."""


@dataclass(frozen=True, slots=True)
class LoadedTests:
    """A tests file, read and of the right form."""

    path: FilePath
    tests: SpecTests
    source: YamlSource

    @property
    def answers(self) -> FilePath:
        """Where the recorded answers are."""
        name = self.path.name.removesuffix(TESTS_SUFFIX).removesuffix(".yaml")
        return self.path.parent / (self.tests.answers or f"{name}.answers.jsonl")

    def check(self, findings: Iterable[Finding]) -> None:
        """Raises SpecError for findings, each with its place in the file."""
        _refuse(findings, self.source)


def read_tests(path: FilePath) -> LoadedTests:
    """Read a tests file. Raises UsageError where there is none, SpecError with every fault of it."""
    try:
        text = read_text(path, SPEC_BYTES)
    except FileNotFoundError:
        hint = "write it, or record one with `rolegraph test SPEC --record`"
        raise UsageError(f"there are no tests in {display_path(path)}; {hint}") from None
    except (OSError, UnicodeDecodeError) as error:
        reason = (isinstance(error, OSError) and error.strerror) or error
        raise UsageError(f"cannot read {display_path(path)}: {reason}") from error
    source = parse_yaml(text, display_path(path), ("tests are a mapping", "keys such as tasks and expect"))
    if source.faults:
        raise SpecError(source.faults)
    fitting = fit_model(SpecTests, source.data, {}, (), SpecTests)
    _refuse(fitting.findings, source)
    return LoadedTests(path, fitting.value, source)


def _refuse(findings: Iterable[Finding], source: YamlSource) -> None:
    placed = [
        finding.at(place_of(finding, source.data, source.positions, source.texts))
        for finding in islice(findings, SPEC_FAULTS.most)  # as many as are shown of a spec
    ]
    if placed:
        raise SpecError(sorted(dict.fromkeys(placed), key=lambda d: (d.place.line, d.place.column)))
