"""The language, version 1, as a whole: what a spec may say, and what it has at a path.

The line under a field is what a message says of it where it is missing. These models hold what was written;
whether names resolve and edges make sense is the business of `engine/compile/graph.py` and
`engine/compile/names.py`. What is said of a role is in `role`,
of training in `train`, of models in `sources`.
"""

from __future__ import annotations

import types
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import Field

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
    """The roles in it."""
    times: Annotated[int, Field(ge=1, le=SPEC_ROUNDS.most), SPEC_ROUNDS]
    """How many rounds there are at most."""
    until: str | None = None
    """The condition that ends it, asked after each round; on each branch for itself."""
    env: Annotated[CallField, vocabulary.environments] | None = None
    """The environment that its players move in, a step of it each round; its end is the loop's."""
    players: Strings = []
    """The roles that move in `env`, in the order of the players' numbers; all that have a model unless some
    are named."""


class Data(SpecModel):
    """Where tasks come from: a registered dataset, or the path of a .jsonl, .parquet or .csv file."""

    train: Annotated[CallField, vocabulary.datasets] | None = None
    """Tasks to learn from."""
    validation: Annotated[CallField, vocabulary.datasets] | None = None
    """Tasks held out; `rolegraph run` uses them unless told otherwise."""
    hidden: Strings = []
    """Fields that no prompt may show, beside those that the dataset and the rewards hide themselves."""


class EpisodeSpec(SpecModel):
    """What is said of a whole episode."""

    correct: str | None = None
    """The role whose correctness is the episode's; None takes the last role."""
    metrics: Mapping[Identifier, Annotated[CallField, vocabulary.metrics]] = {}
    """Numbers reported for each episode."""


class Spec(SpecModel):
    """One multi-role workflow."""

    rolegraph: Literal[1]
    """The version of the language."""
    name: Identifier
    """What the workflow is called."""
    description: str = ""
    """What it does, in a sentence."""
    data: Data = Data()
    """Where tasks come from."""
    model: ModelRef = ModelRef()
    """Where answers come from, unless a role has a model of its own: the policy `main`."""
    sampling: Sampling = Sampling()
    """How answers are drawn, unless a role says otherwise."""
    policies: Mapping[Identifier, Policy] = {}
    """Weights that are trained apart, by name; `main` is there without being named."""
    roles: Annotated[Mapping[Identifier, Role], Field(min_length=1)]
    """The roles by name. A role's name is its trajectory's name."""
    loops: Mapping[Identifier, Loop] = {}
    """Roles that take turns for several rounds, by the loop's name."""
    episode: EpisodeSpec = EpisodeSpec()
    """What is said of a whole episode."""
    train: Train = Train()
    """How the roles are trained."""


def is_atomic(path: Path) -> bool:
    """Whether the value at a path is one, which `extends` and overrides replace: half of a parser mixed with
    another means nothing."""
    if type_at(path) in (ItemCall, PromptSource):
        return True
    around = type_at(path[:-1])
    field = around.model_fields.get(str(path[-1])) if around and issubclass(around, SpecModel) else None
    return field is not None and ATOMIC in field.metadata


def type_at(path: Path, root: type[SpecModel] = Spec) -> type[SpecModel] | type[ItemCall] | None:
    """What is at a path of a spec (of a file that `root` is the model of): a model or a call, if either."""
    annotation: Any = root
    for key in path:
        annotation = _inner(annotation, key)
    return _kind(annotation)


def _kind(annotation: Any) -> type[SpecModel] | type[ItemCall] | None:
    if isinstance(annotation, type) and issubclass(annotation, SpecModel | ItemCall):
        return annotation
    if get_origin(annotation) in (Union, types.UnionType, Annotated):
        return next(filter(None, map(_kind, get_args(annotation))), None)
    return None


def _inner(annotation: Any, key: str | int) -> Any:
    kind = _kind(annotation)
    if kind is not None and issubclass(kind, SpecModel):
        info = kind.model_fields.get(str(key))
        return info.annotation if info else None
    if get_origin(annotation) is Annotated:
        return _inner(get_args(annotation)[0], key)
    arguments = get_args(annotation)
    return arguments[-1] if arguments else None
