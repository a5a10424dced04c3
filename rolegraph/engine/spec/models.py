"""The spec as a whole, version 2 of the language, and the type of the value at a path in it.

These models hold the values of one spec; `engine/compile` checks names and edges. Roles are in `role`,
training in `train`, models and sampling in `sources`.
"""

from __future__ import annotations

import types
from collections.abc import Iterator, Mapping
from itertools import chain, takewhile
from math import prod
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Union, get_args, get_origin

from pydantic import Field

from rolegraph.engine import vocabulary
from rolegraph.engine.limits.specs import SPEC_EXAMPLES, SPEC_ROUNDS
from rolegraph.engine.spec.base import ATOMIC, Identifier, SpecModel, Strings
from rolegraph.engine.spec.diagnostics import Path
from rolegraph.engine.spec.role import Edge, JoinedRound, Role
from rolegraph.engine.spec.sources import ModelRef, Sampling
from rolegraph.engine.spec.train import Policy, Train
from rolegraph.engine.vocabulary import CallField, ItemCall, MetricField


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
    another loop has none."""
    players: Strings = []
    """Roles that move in `env`, in the order of the players' numbers; by default all that have a model."""


class RowSplit(SpecModel):
    """Division of one data set into training and validation rows, by the order of the rows' hashes."""

    SHORT: ClassVar[Any] = float
    SHORT_KEYS = {float: "share", int: "share"}

    share: Annotated[float, Field(gt=0, lt=1)]
    """Share of the rows that is held out for validation, to the nearest row."""
    seed: int = 0
    """Seed of the division; another seed holds out other rows."""


class Examples(SpecModel):
    """Training rows that each task carries for its prompts, as `task.examples`. A task never carries itself,
    a row that asks the same, or a row of `validation`."""

    SHORT: ClassVar[Any] = int
    SHORT_KEYS = {int: "count"}

    count: Annotated[int, Field(ge=1, le=SPEC_EXAMPLES.most)]
    """Number of examples of each task."""
    sees: Strings = []
    """Hidden fields that the examples have besides the visible fields."""
    by: str | None = None
    """Field whose values get equal shares of the examples, such as a label with few values; it may be
    hidden."""
    seed: int = 0
    """Seed of the draw; another seed draws other examples."""


class Data(SpecModel):
    """Source of the tasks: a registered dataset, or the path of a .jsonl, .csv, .tsv or .parquet file."""

    train: Annotated[CallField, vocabulary.datasets] | None = None
    """Dataset or file of the training tasks."""
    validation: Annotated[CallField, vocabulary.datasets] | None = None
    """Dataset or file of held-out tasks, which `rolegraph run` takes by default."""
    split: RowSplit | None = None
    """Part of the rows of `train` that is held out as `validation`; a number is its share."""
    hidden: Strings = []
    """Fields that no prompt may show, in addition to those that the dataset and the rewards hide."""
    examples: Examples | None = None
    """Rows of `train` that each task carries for its prompts; a number is their count."""


class EpisodeSpec(SpecModel):
    """Correctness and metrics of a whole episode."""

    correct: Strings = []
    """Expression that says whether an episode is correct, such as `judge.right`; of a list, those whose roles
    ran decide, all of them. Needed where more than one role can be right."""
    metrics: Mapping[Identifier, Annotated[MetricField, vocabulary.metrics]] = {}
    """Numbers reported for each episode, by name: expressions, or functions of a role, `{function: role}`."""


class SharedRounds(NamedTuple):
    """Alignment of a reading role's turns with the turns that it reads, by rounds of the innermost loop
    around both roles.

    Roles without a common loop share one round.
    """

    mine: int
    """Number of turns that an instance of the reading role has in one shared round."""
    theirs: int
    """Number of turns that an instance of the role that is read has in one shared round."""
    times: int
    """Number of rounds of the shared loop; if it is inside another loop, its rounds then begin again."""
    inside: bool
    """True if the role that is read is in another loop inside the shared loop."""

    def read(self, number: int, which: JoinedRound) -> range:
        """Return the turn numbers of the read role that turn `number` of the reader reads.

        `which` is `this` for the current shared round, `previous` for the round before, or `history` for all
        earlier rounds, and if the read role is in a further loop, the current round as well. Turns are
        numbered from 1 over all rounds of all loops.
        """
        passed_loops = (number - 1) // self.mine
        start, end = passed_loops * self.theirs + 1, (passed_loops + 1) * self.theirs + 1
        match which:
            case "this":
                return range(start, end)
            case "previous":
                return range(start - self.theirs, start) if passed_loops % self.times else range(0)
            case "history":
                return range(1, end if self.inside else start)


class Spec(SpecModel):
    """One multi-role workflow."""

    rolegraph: Literal[2]
    """Version of the language: `2`."""
    name: Identifier
    """Name of the workflow."""
    description: str = ""
    """Purpose of the workflow."""
    data: Data = Data()
    """Source of the tasks."""
    model: ModelRef = ModelRef()
    """Model of all roles, `provider:name`: `local`, `openai`, `litellm`, `vllm`, `sglang`, `tinker`,
    `replay`. It is the model of the policy `main`; a role or a policy may have another."""
    sampling: Sampling = Sampling()
    """Sampling settings of all roles: `{temperature: 0.7, max_tokens: 512}`. Settings of a policy or a role
    replace them."""
    policies: Mapping[Identifier, Policy] = {}
    """Separately trained weights, by name. The policy `main` exists without an entry."""
    roles: Annotated[Mapping[Identifier, Role], Field(min_length=1)]
    """The roles, by name. The name of a role is the name of its trajectory."""
    loops: Mapping[Identifier, Loop] = {}
    """Loops of roles that take turns, by name."""
    episode: EpisodeSpec = EpisodeSpec()
    """Correctness of an episode, such as `correct: judge.right`, and `metrics`."""
    train: Train = Train()
    """Training: `steps` of `batch_size` tasks with `rollouts` episodes each, and
    `validation: {every: 10, best: correct}`."""

    def role_needs(self) -> dict[str, list[str]]:
        """Return for each role the roles that it waits for, without unknown roles; cycles are possible.

        An edge to an earlier round orders nothing. A role outside a loop that needs a role inside waits for
        all roles of the loop. A called role ends after its callers, and the roles that it needs end before
        its callers start.
        """
        return {name: list(dict.fromkeys(self._awaited(name))) for name in self.roles}

    def _awaited(self, name: str) -> Iterator[str]:
        callers = [(caller, caller, Edge()) for caller in self.callers_of(name)]
        callee_edges = [self.roles[callee].edges for callee in self.callees_of(name)]
        for _, needed_role, edge in chain(self.roles[name].edges, callers, *callee_edges):
            if needed_role == name or needed_role not in self.roles:
                continue
            loops, shared_count = self.loops_around(needed_role), self.shared_loops(name, needed_role)
            if len(loops) > shared_count:
                if edge.round != "previous" or not shared_count:
                    yield from self.roles_in(loops[shared_count])
            elif edge.round == "this":
                yield needed_role

    def callees_of(self, role: str) -> Mapping[str, int]:
        """Return the roles that the model of a role may call, each with the largest number of calls in one
        turn."""
        tools = {name for name, role_spec in self.roles.items() if role_spec.callable is not None}
        return {name: max_calls for name, max_calls in self.roles[role].callees.items() if name in tools}

    def callers_of(self, role: str) -> list[str]:
        """Return the roles whose models may call a role, in the order of the spec."""
        if self.roles[role].callable is None:
            return []
        return [name for name, caller in self.roles.items() if role in caller.callees]

    def readers_of(self, role: str) -> list[str]:
        """Return the roles whose instances and rounds decide what a role reads: the callers of a called role,
        else the role itself."""
        return self.callers_of(role) or [role]

    def loop_of(self, role: str) -> str | None:
        """Return the name of the innermost loop around a role; None for a role outside of loops."""
        return next((name for name, loop in self.loops.items() if role in loop.roles), None)

    def loop_around(self, loop: str) -> str | None:
        """Return the name of the loop around a loop; None for an outermost loop."""
        return None if loop in self.roles else self.loop_of(loop)

    def loops_around(self, role: str) -> tuple[str, ...]:
        """Return the names of the loops around a role, the outermost first."""
        loop = self.loop_of(role)
        outer = None if loop is None else self.loop_around(loop)
        return tuple(name for name in (outer, loop) if name is not None)

    def roles_in(self, loop: str) -> list[str]:
        """Return the roles of a loop, including the roles of loops inside it."""
        roles: list[str] = []
        for name in self.loops[loop].roles:
            inner_roles = self.loops[name].roles if name in self.loops and name not in self.roles else [name]
            roles += [role for role in inner_roles if role in self.roles]
        return roles

    def rounds_of(self, role: str) -> int:
        """Return the largest number of turns of an instance of a role: the product of `times` of its
        loops."""
        return prod(self.loops[loop].times for loop in self.loops_around(role))

    def shared_loops(self, one: str, other: str) -> int:
        """Return the number of loops around both of two roles."""
        loop_pairs = zip(self.loops_around(one), self.loops_around(other), strict=False)
        return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], loop_pairs))

    def shared_rounds(self, name: str, other: str, most: int = 2) -> SharedRounds:
        """Return the SharedRounds of role `name` as a reader of `other`.

        Of the loops around both, only the `most` outermost count.
        """
        loops, depth = self.loops_around(other), min(most, self.shared_loops(name, other))
        rounds_before = prod(self.loops[loop].times for loop in loops[:depth])
        times = self.loops[loops[depth - 1]].times if depth else 1
        own_rounds, theirs = self.rounds_of(name) // rounds_before, self.rounds_of(other) // rounds_before
        return SharedRounds(own_rounds, theirs, times, len(loops) > depth)

    def policy_named(self, name: str) -> Policy:
        """Return the settings of a policy by name; default settings for a name without an entry, such as
        `main`."""
        return self.policies.get(name) or Policy()

    def frozen_instances(self, name: str, count: int) -> frozenset[int]:
        """Return the indices, from 1, of a role's instances for which frozen copies of a policy answer."""
        policies = enumerate(self.roles[name].policy_names(count), 1)
        return frozenset(index for index, policy in policies if self.policy_named(policy).of)

    def env_loops(self) -> list[str]:
        """Return the names of the loops with an environment."""
        return [name for name, loop in self.loops.items() if loop.env is not None]

    def env_loop_of(self, role: str) -> str | None:
        """Return the name of the loop around a role that has an environment; None for no such loop."""
        return next((name for name in self.loops_around(role) if self.loops[name].env is not None), None)

    def players_of(self, loop: str) -> list[str]:
        """Return the roles that move in a loop's environment, in the order of the players' numbers."""
        settings = self.loops[loop]
        named_players = [role for role in dict.fromkeys(settings.players) if role in settings.roles]
        models = [role for role in settings.roles if role in self.roles and self.roles[role].run is None]
        return [role for role in named_players if role in self.roles] if named_players else models

    def trains_on_seeds(self) -> bool:
        """Return True if the spec has no data, so that the tasks are seeds of an environment."""
        return self.data.train is None and self.data.validation is None and bool(self.env_loops())


def is_atomic(path: Path) -> bool:
    """Return True if a later value at `path` replaces an earlier one as a whole, and is not merged with
    it."""
    # Half of one parser merged with another would mean nothing.
    if type_at(path) is ItemCall:
        return True
    parent = type_at(path[:-1])
    field = parent.model_fields.get(str(path[-1])) if parent and issubclass(parent, SpecModel) else None
    return field is not None and ATOMIC in field.metadata


def setting_named(name: str) -> str:
    """Return the path of the setting with this last key, such as `train.steps` for `steps`; empty without
    one.

    Keys of roles, policies and loops are left out, since their paths have names that the spec chooses.
    """
    key = {"lr": "learning_rate"}.get(name, name).replace("-", "_")
    paths: list[Path] = [()]
    for path in paths:
        model = type_at(path)
        fields = model.model_fields if model is not None and issubclass(model, SpecModel) else ()
        if key in fields:
            return ".".join(map(str, (*path, key)))
        paths += [(*path, field) for field in fields]
    return ""


def type_at(path: Path, root: type[SpecModel] = Spec) -> type[SpecModel] | type[ItemCall] | None:
    """Return the model at `path` of a file of type `root`; ItemCall for a vocabulary item, None for any other
    value."""
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
