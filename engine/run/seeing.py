"""What the nodes of one episode see, for their prompts and conditions, as far as it has run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from typing import Any

from rolegraph.engine.compile import Plan, RolePlan
from rolegraph.engine.compile.plan import InputEdge, self_view
from rolegraph.engine.prompts import SELF, Condition, PromptError
from rolegraph.engine.records import Task
from rolegraph.engine.run.session import NodeResult
from rolegraph.engine.run.world import EnvironmentSession
from rolegraph.engine.vocabulary import Upstream, View, Views

SEES_NOTHING: Upstream = {}
Results = Sequence[NodeResult | None]
"""By node; None where it has not run."""


def turns(see: InputEdge, results: Results) -> list[int]:
    """Of each instance its turns that ran, or the last of them: their nodes."""
    if see.turns_per_instance == 1:
        return [node for node in see.nodes if results[node] is not None]
    found: list[int] = []
    for start in range(0, len(see.nodes), see.turns_per_instance):
        ran = [
            node for node in see.nodes[start : start + see.turns_per_instance] if results[node] is not None
        ]
        found += ran[-1:]
    return found


class EpisodeContext:
    """What is seen in one episode. Nodes and blocks are known by their positions in the plan."""

    __slots__ = ("_plan", "_results", "_task", "_visible", "_world", "uncomputed", "upstream")

    def __init__(self, plan: Plan, task: Task, results: Results, world: EnvironmentSession | None) -> None:
        self._plan, self._task, self._results, self._world = plan, task, results, world
        self._visible = _without(task, plan.hidden)
        self.upstream: list[Upstream] = [SEES_NOTHING] * len(plan.blocks)
        """By block, what its nodes have joined; noted when it opens."""
        self.uncomputed = 0
        """How many conditions could not be computed."""

    def join(self, number: int, sees: Sequence[InputEdge]) -> None:
        """Note what the nodes of a block see of others: all of these have ended."""
        self.upstream[number] = {see.name: self.views(see) for see in sees}

    def views(self, see: InputEdge) -> Views:
        """What is seen under a name; a single instance that has not run still answers for its fields."""
        results = self._results
        nodes = see.nodes if see.turns_per_instance == 1 else turns(see, results)
        views = [result.view for node in nodes if (result := results[node]) is not None]
        if views or not see.only_instance:
            return Views(views)
        role = self._plan.roles[see.role]
        return Views(views, View(see.only_instance, role.parser.default, ran=False, role=role.name))

    def of_block(self, role: RolePlan, number: int) -> Mapping[str, Any]:
        """What a block's prompts and condition see that speak of no single one of its nodes."""
        shown = self._shown(role) if role.spec.shows else self._visible
        return {"task": shown, **self.upstream[number]}

    def of_node(self, node: int) -> Mapping[str, Any]:
        """What the prompts and the condition of one node see."""
        plan, at, world = self._plan, self._plan.nodes[node], self._world
        role = plan.roles[at.role]
        earlier = range(node - role.count * (at.id.round - 1), node, role.count)
        history = Views([result.view for turn in earlier if (result := self._results[turn]) is not None])
        observation = world.observation(at) if world is not None and world.loop == role.loop else ""
        own = self_view(role, at, history, observation)
        shown = self._shown(role) if role.spec.shows else self._visible
        return {"task": shown, SELF: own, **self.upstream[at.block]}

    def of_end(self, sees: Sequence[InputEdge]) -> Mapping[str, Any]:
        """What the end of a loop is read from."""
        return {"task": self._visible, **{see.name: self.views(see) for see in sees}}

    def holds(self, condition: Condition, variables: Mapping[str, Any]) -> bool:
        """Whether a condition is true; one that cannot be computed is not, and is counted."""
        try:
            return condition.holds(variables)
        except PromptError:
            self.uncomputed += 1
            return False

    def _shown(self, role: RolePlan) -> Mapping[str, Any]:
        """The task as the prompts and conditions of a role that `shows` see it."""
        return _without(self._task, self._plan.hidden.difference(role.spec.shows))


def _without(task: Task, hidden: Set[str]) -> Mapping[str, Any]:
    shown = {**task}
    for name in hidden:
        shown.pop(name, None)
    return shown
