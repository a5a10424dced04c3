"""The spec as a whole, version 1 of the language, and the type of the value at a path of it.

These models hold the values of one spec; `engine/compile` checks names and edges. Roles are in `role`,
training in `train`, models and sampling in `sources`.
"""

from __future__ import annotations

import types
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, Union, cast, get_args, get_origin

from pydantic import Field, model_validator

from rolegraph.engine import vocabulary
from rolegraph.engine.limits.specs import SPEC_ROUNDS
from rolegraph.engine.spec.base import ATOMIC, Identifier, SpecModel, Strings
from rolegraph.engine.spec.diagnostics import Path
from rolegraph.engine.spec.role import Role
from rolegraph.engine.spec.sources import ModelRef, PromptSource, Sampling
from rolegraph.engine.spec.train import Policy, Train
from rolegraph.engine.vocabulary import CallField, ItemCall


class Loop(SpecModel):
    """Roles that take turns for several rounds."""

    roles: Annotated[Strings, Field(min_length=1)]
    """Names of the roles in the loop, and of loops whose rounds are run in each of its rounds."""
    times: Annotated[int, Field(ge=1, le=SPEC_ROUNDS.most)]
    """Largest number of rounds."""
    until: str | None = None
    """Condition that ends the loop, evaluated after each round, on each branch separately."""
    when: str | None = None
    """Condition on visible fields of the task; where it is false, the whole loop is skipped."""
    env: Annotated[CallField, vocabulary.environments] | None = None
    """Environment in which the players move, one step each round; its end is the end of the loop. A loop in
    another has none."""
    players: Strings = []
    """Roles that move in `env`, in the order of the players' numbers; by default all that have a model."""


class RowSplit(SpecModel):
    """Division of one data set into training and validation rows, by a hash of each row."""

    SHORT: ClassVar[Any] = float

    share: Annotated[float, Field(gt=0, lt=1)]
    """Share of the rows that is held out for validation."""
    seed: int = 0
    """Another seed holds out other rows."""

    @classmethod
    def expand_shorthand(cls, value: object) -> object:
        """Expand a share, such as `0.1`."""
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        return {"share": value} if is_number else value


class Data(SpecModel):
    """Source of the tasks: a registered dataset, or the path of a .jsonl, .parquet or .csv file."""

    train: Annotated[CallField, vocabulary.datasets] | None = None
    """Tasks to learn from."""
    validation: Annotated[CallField, vocabulary.datasets] | None = None
    """Held-out tasks; `rolegraph run` takes these by default."""
    split: RowSplit | None = None
    """Part of the rows of `train` that is held out as `validation`; a number is its share."""
    hidden: Strings = []
    """Fields that no prompt may show, in addition to those that the dataset and the rewards hide."""

    @model_validator(mode="before")
    @classmethod
    def _split_of_file(cls, value: object) -> object:
        """Move `train: {file: rows.csv, split: 0.9, seed: 1}`, the share to train on, to `split`."""
        if not isinstance(value, dict):
            return value
        written = cast("dict[str, object]", value)
        train = written.get("train")
        if not isinstance(train, dict) or "split" not in (call := cast("dict[str, object]", train)):
            return written
        name = next(iter(call))
        if name != "file" and not name.endswith(vocabulary.SUFFIXES):
            return written
        share = call["split"]
        if not isinstance(share, int | float) or isinstance(share, bool) or not 0 < share < 1:
            raise ValueError("a `split` of the file between 0 and 1, the share of its rows to train on")
        if "split" in written:
            raise ValueError("one `split`, beside `train` or in it")
        rest = {key: part for key, part in call.items() if key not in ("split", "seed")}
        # Rounded, so that 1 - 0.9 is the 0.1 that a person would write beside `train`.
        return {
            **written,
            "train": rest,
            "split": {"share": round(1 - share, 12), "seed": call.get("seed", 0)},
        }


class EpisodeSpec(SpecModel):
    """Figures of a whole episode."""

    correct: Strings = []
    """Roles whose correctness is the episode's, as far as they ran; by default the last that can be right."""
    metrics: Mapping[Identifier, Annotated[CallField, vocabulary.metrics]] = {}
    """Numbers reported for each episode, by name."""


class Spec(SpecModel):
    """One multi-role workflow."""

    rolegraph: Literal[1]
    """Version of the language."""
    name: Identifier
    """Name of the workflow."""
    description: str = ""
    """Purpose of the workflow, in a sentence."""
    data: Data = Data()
    """Source of the tasks."""
    model: ModelRef = ModelRef()
    """Model that answers for each role without a model of its own: the policy `main`."""
    sampling: Sampling = Sampling()
    """Sampling settings for each role without its own."""
    policies: Mapping[Identifier, Policy] = {}
    """Separately trained weights, by name; `main` exists without being named."""
    roles: Annotated[Mapping[Identifier, Role], Field(min_length=1)]
    """The roles, by name. The name of a role is the name of its trajectory."""
    loops: Mapping[Identifier, Loop] = {}
    """Roles that take turns for several rounds, by the name of the loop."""
    episode: EpisodeSpec = EpisodeSpec()
    """Correctness and metrics of a whole episode."""
    train: Train = Train()
    """Training settings."""


def is_atomic(path: Path) -> bool:
    """Return True where `extends` and overrides replace the value at `path` as a whole."""
    # Half of one parser merged with another would mean nothing.
    if type_at(path) in (ItemCall, PromptSource):
        return True
    parent = type_at(path[:-1])
    field = parent.model_fields.get(str(path[-1])) if parent and issubclass(parent, SpecModel) else None
    return field is not None and ATOMIC in field.metadata


def type_at(path: Path, root: type[SpecModel] = Spec) -> type[SpecModel] | type[ItemCall] | None:
    """Return the model at `path` of a file of type `root`, ItemCall for a vocabulary item, else None."""
    annotation: Any = root
    for key in path:
        annotation = _annotation_of_key(annotation, key)
    return _type_in(annotation)


def _type_in(annotation: Any) -> type[SpecModel] | type[ItemCall] | None:
    if isinstance(annotation, type) and issubclass(annotation, SpecModel | ItemCall):
        return annotation
    if get_origin(annotation) in (Union, types.UnionType, Annotated):
        return next(filter(None, map(_type_in, get_args(annotation))), None)
    return None


def _annotation_of_key(annotation: Any, key: str | int) -> Any:
    kind = _type_in(annotation)
    if kind is not None and issubclass(kind, SpecModel):
        info = kind.model_fields.get(str(key))
        return info.annotation if info else None
    if get_origin(annotation) is Annotated:
        return _annotation_of_key(get_args(annotation)[0], key)
    arguments = get_args(annotation)
    return arguments[-1] if arguments else None
