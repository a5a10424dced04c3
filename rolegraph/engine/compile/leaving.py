"""Copies of episodes for other services and people, without hidden task fields and texts that may quote one.

A text may quote a hidden field where its author may have seen one: a role that `sees` a field, each role
that reads the words of such a role, and a reward, which sees the whole task. Numbers stay. The rule for the
episodes of a run is read from the run's folder.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import permutations
from typing import Any, cast, get_args

from jinja2 import Environment, TemplateSyntaxError, nodes

from rolegraph.engine.compile.earned import words_read
from rolegraph.engine.compile.plan import Plan
from rolegraph.engine.compile.structure import reachable
from rolegraph.engine.records import Episode, Failure, RunFolder, Step, Task, Trajectory
from rolegraph.engine.records.episode import REWARD_FAILURES
from rolegraph.engine.records.metadata import FailureMetadata, FunctionCallMetadata, StepMetadata
from rolegraph.engine.spec import Spec, load_spec
from rolegraph.engine.spec.role import GroupBy

LEFT_OUT = "[left out: it may quote a hidden field]"
"""Replacement of a text that may quote a hidden field."""
_OF_EPISODES = frozenset(
    {
        "spec",
        "hash",
        "step",
        "scheduled",
        "started_at",
        "rounds",
        "ended",
        "skipped",
        "undecided",
        "uncomputed_conditions",
        "validation",
    }
)
"""Keys of an episode's metadata with names and numbers alone."""
_WITH_TEXT = frozenset({"demonstration", "special_tokens", "calls"})
"""Keys of a step's metadata with texts of a model, a tool or a template."""
_OF_STEPS = (StepMetadata.__required_keys__ | StepMetadata.__optional_keys__ | {"call"}) - _WITH_TEXT
"""Keys of a step's metadata with names and numbers alone."""


@dataclass(frozen=True, slots=True)
class DisclosureRule:
    """Rule for copies of episodes: task fields to leave out, and roles whose texts may stay."""

    is_hidden: Callable[[str], bool]
    """Function that returns whether a task field is hidden."""
    plain: frozenset[str] = frozenset()
    """Roles whose texts can quote no hidden field; empty if the spec is not known."""
    quoting: frozenset[str] = frozenset()
    """Roles of the spec whose texts may quote a hidden field."""
    grouped: frozenset[str] | None = None
    """Roles whose group keys may reveal the value of a hidden field; None without a spec, when any role's
    may."""

    def may_quote(self, role: str) -> bool:
        """Return True if the texts of a role may quote a hidden field."""
        return role not in self.plain

    def hides_message(self, role: str, failure: str) -> bool:
        """Return True if the message of a failure may quote a hidden field; rewards see the whole task."""
        return self.may_quote(role) or failure in REWARD_FAILURES

    def shows_group(self, role: str, by: str | None) -> bool:
        """Return True if the keys of a role's groups by `by`, as in a CreditRow, reveal no hidden field."""
        return by in get_args(GroupBy) or (self.grouped is not None and role not in self.grouped)

    def visible(self, task: Task) -> dict[str, Any]:
        """Return the fields of a task that are not hidden."""
        return {name: value for name, value in task.items() if not self.is_hidden(name)}


def disclosure_rule(spec: Spec | None, is_hidden: Callable[[str], bool]) -> DisclosureRule:
    """Return the rule for copies of a spec's episodes: the task fields and texts that they may hold.

    Args:
        spec: The spec; None where it cannot be read, and then each role's texts may quote a hidden field.
        is_hidden: Function that returns whether a task field is hidden.
    """
    if spec is None:
        return DisclosureRule(is_hidden)
    quoting_names = quoting_roles(spec)
    grouped_roles = frozenset(
        name
        for name, role in spec.roles.items()
        if any(grouping.is_expression and _may_read(grouping.by, is_hidden) for grouping in role.group)
    )
    return DisclosureRule(is_hidden, frozenset(spec.roles) - quoting_names, quoting_names, grouped_roles)


def _may_read(expression: str, is_hidden: Callable[[str], bool]) -> bool:
    """Return True if an expression has the name of a hidden field, as an attribute or in a text.

    True also for an expression that cannot be parsed.
    """
    try:
        tree = Environment().parse(f"{{{{ ({expression}) }}}}")
    except TemplateSyntaxError:
        return True
    names = {str(node.value) for node in tree.find_all(nodes.Const)}
    return any(map(is_hidden, names | {node.attr for node in tree.find_all(nodes.Getattr)}))


def disclosure_rule_of(plan: Plan) -> DisclosureRule:
    """Return the DisclosureRule for copies of a plan's episodes."""
    return disclosure_rule(plan.spec, plan.hidden.__contains__)


def quoting_roles(spec: Spec) -> frozenset[str]:
    """Return the roles whose texts may quote a hidden field: they show one, or read the words of a role that
    may quote one, also by way of an environment, whose observations may repeat its players' moves."""
    read_graph = words_read(spec)
    for loop in spec.loops.values():
        if loop.env is not None:
            read_graph.add_edges_from(permutations((name for name in loop.roles if name in spec.roles), 2))
    return frozenset(reachable(read_graph, [name for name, role in spec.roles.items() if role.sees]))


def without_quoting(episode: Episode, rule: DisclosureRule) -> Episode:
    """Return a copy of an episode without the trajectories whose texts may quote a hidden field."""
    plain_trajectories = tuple(t for t in episode.trajectories if not rule.may_quote(t.name))
    return episode._replace(trajectories=plain_trajectories)


def without_hidden(episode: Episode, rule: DisclosureRule) -> Episode:
    """Return a copy of an episode in which nothing can quote a hidden field of its task.

    Identities, rewards, metrics, advantages, times and counts stay. Of roles whose texts may quote a hidden
    field, messages, tokens, thoughts, answers and actions are left out. So are demonstrations, messages of
    failed rewards, and metadata that Rolegraph does not know to be free of texts.

    Args:
        episode: The episode.
        rule: The rule of its run.

    Returns:
        The copy, of the same turns.
    """
    metadata: dict[str, Any] = {key: value for key, value in episode.metadata.items() if key in _OF_EPISODES}
    if failures := episode.metadata.get("failures"):
        metadata["failures"] = [_without_message(failure, rule) for failure in failures]
    if failed_metrics := episode.metadata.get("uncomputed_metrics"):
        metadata["uncomputed_metrics"] = dict.fromkeys(cast("Mapping[str, str]", failed_metrics), LEFT_OUT)
    environment = episode.metadata.get("environment")
    if environment is not None and not any(rule.may_quote(t.name) for t in episode.trajectories):
        metadata["environment"] = environment
    return episode._replace(
        task=rule.visible(episode.task),
        trajectories=tuple(_trajectory(t, rule) for t in episode.trajectories),
        metadata=cast("Any", metadata),
    )


def _trajectory(trajectory: Trajectory, rule: DisclosureRule) -> Trajectory:
    may_quote = rule.may_quote(trajectory.name)
    failure = trajectory.failure
    if failure is not None and rule.hides_message(trajectory.name, failure.name):
        failure = Failure(failure.name, LEFT_OUT)
    steps = [_without_texts(step) if may_quote else _plain(step) for step in trajectory.steps]
    if rule.grouped is None or trajectory.name in rule.grouped:
        steps = [step._replace(metadata=_without_keys(step.metadata)) for step in steps]
    return trajectory._replace(steps=tuple(steps), failure=failure)


def _without_keys(metadata: StepMetadata) -> StepMetadata:
    """Return a step's metadata without the digests by which turns are grouped.

    Equal digests reveal equal values of hidden fields, and a digest can be guessed. Steps of version 0.2 have
    digests in `group` and `groups`, too.
    """
    kept_keys = {name: value for name, value in metadata.items() if name not in ("by", "group", "groups")}
    return cast("StepMetadata", kept_keys)


def _without_message(failure: FailureMetadata, rule: DisclosureRule) -> FailureMetadata:
    if not rule.hides_message(failure["role"], failure["name"]):
        return failure
    kept_fields = {key: value for key, value in failure.items() if key in ("role", "index", "round", "name")}
    return cast("FailureMetadata", {**kept_fields, "message": LEFT_OUT})


def _plain(step: Step) -> Step:
    """Return a copy of a step without its demonstration, which may show a hidden field."""
    if "demonstration" not in step.metadata:
        return step
    kept_metadata = {key: value for key, value in step.metadata.items() if key != "demonstration"}
    return step._replace(metadata=cast("StepMetadata", kept_metadata))


def _without_texts(step: Step) -> Step:
    """Return a copy of a step without its texts and tokens; identity, numbers and outcome stay."""
    usage = {"prompt_tokens": step.prompt_tokens, "completion_tokens": step.response_tokens}
    kept_metadata: dict[str, Any] = {key: value for key, value in step.metadata.items() if key in _OF_STEPS}
    kept_metadata |= {"usage": usage} if any(usage.values()) else {}
    kept_metadata |= {"calls": [*map(_call, calls)]} if (calls := step.metadata.get("calls")) else {}
    return Step(
        action=None if step.action is None else LEFT_OUT,
        model_response=LEFT_OUT if step.model_response else "",
        reward=step.reward,
        done=step.done,
        advantage=step.advantage,
        weight_version=step.weight_version,
        metadata=cast("StepMetadata", kept_metadata),
    )


def _call(call: FunctionCallMetadata) -> FunctionCallMetadata:
    """Return the record of a call without its error.

    If the call failed because no such function exists, the function's name is left out, too: the model wrote
    it.
    """
    return {"name": "tool", "error": LEFT_OUT} if call.get("error") else {"name": call["name"]}


def read_spec(folder: RunFolder) -> Spec | None:
    """Return the spec of a run; None where its file is missing or invalid."""
    if not folder.spec_file.is_file():
        return None
    loaded_spec = load_spec(folder.spec_file)
    return None if loaded_spec.faults else loaded_spec.spec


def read_rule(folder: RunFolder) -> DisclosureRule:
    """Return the rule for copies of a run's episodes; raises DataError for a damaged `run.json`."""
    return disclosure_rule(read_spec(folder), folder.info().is_hidden)
