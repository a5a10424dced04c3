"""Views of a finished episode for gates and teachers' prompts, and of single turns for demonstrations."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from itertools import groupby
from typing import Any

from rolegraph.engine.compile import Plan, RolePlan
from rolegraph.engine.compile.plan import InputEdge, Node
from rolegraph.engine.prompts import SELF
from rolegraph.engine.records import Episode, Trajectory
from rolegraph.engine.run.context import turns_taken
from rolegraph.engine.vocabulary import ScoredView, Views


class FinishedEpisode:
    """Views of an episode's turns, with their rewards."""

    def __init__(self, plan: Plan, episode: Episode) -> None:
        self.plan, self.episode = plan, episode
        self.roles = {role.name: role for role in plan.roles}

    @cached_property
    def _views(self) -> list[ScoredView | None]:
        """View of each node of the plan; None for a turn that was skipped."""
        views: list[ScoredView | None] = [None] * len(self.plan.nodes)
        for trajectory in self.episode.trajectories:
            for round, _ in groupby(trajectory.steps, key=lambda step: step.round):
                node = self._place(trajectory.name, trajectory.index, round)
                views[node] = self._view(node, turn_view(trajectory, round))
        for name, index, round in self.episode.failures:
            node = self._place(name, index, round)
            if views[node] is None:  # no call of the turn was answered
                default = self.roles[name].parser.default
                views[node] = self._view(node, ScoredView(index, default, "", "", 0.0, False, role=name))
        return views

    def of_turn(self, trajectory: Trajectory, round: int, sees: frozenset[str]) -> Mapping[str, Any]:
        """Return the variables of a text that is rendered for one turn.

        The names in the role's `needs` are as in its prompt. Other roles are read as rewards read them.

        Args:
            trajectory: The trajectory.
            round: Round of the turn.
            sees: Hidden fields of the task that the text may read.
        """
        place, role = self._place(trajectory.name, trajectory.index, round), self.roles[trajectory.name]
        node = self.plan.nodes[place]
        hidden = self.plan.hidden.difference(sees)
        task = {name: value for name, value in self.episode.task.items() if name not in hidden}
        edges = (*self.plan.signal_inputs.get(place, ()), *self.plan.blocks[node.block].inputs)
        views = {edge.name: self._read(edge) for edge in edges}
        return {"task": task, SELF: self._self(trajectory, node, place, role), **views}

    def _self(self, trajectory: Trajectory, node: Node, place: int, role: RolePlan) -> ScoredView:
        earlier = range(place - role.count * (node.id.round - 1), place, role.count)
        history = Views([view for turn in earlier if (view := self._views[turn]) is not None])
        view = self._views[place]
        assert view is not None
        first = next(step for step in trajectory.steps if step.round == node.id.round)
        sent = first.chat_completions[:-1]
        prompt = str(sent[-1].get("content")) if sent else ""
        return view._replace(count=role.count, times=role.times, history=history, prompt=prompt)

    def _read(self, edge: InputEdge) -> Views:
        """Return the turns of an edge that ran; a single instance that was skipped shows its default
        action."""
        views = [view for _, view in turns_taken(edge, self._views)]
        if views or not edge.only_instance:
            return Views(views)
        role = self.plan.roles[edge.role]
        default = role.parser.default
        absent = ScoredView(edge.only_instance, default, "", "", 0.0, False, ran=False, role=role.name)
        return Views(views, absent)

    def _place(self, name: str, index: int, round: int) -> int:
        role = self.roles[name]
        return role.nodes.start + (round - 1) * role.count + index - 1

    def _view(self, place: int, view: ScoredView) -> ScoredView:
        node = self.plan.nodes[place]
        return view._replace(round=node.round, outer=node.outer, lineage=node.lineage)


def turn_view(trajectory: Trajectory, round: int) -> ScoredView:
    """Return the view of a turn, with the turn's reward and whether its trajectory is right."""
    turn = [each for each in trajectory.steps if each.round == round]
    last, its = turn[-1], [each for each in turn if not each.tool]
    return ScoredView(
        index=trajectory.index,
        action=last.action,
        response=last.model_response,
        thought=last.thought,
        reward=last.reward,
        is_correct=trajectory.is_correct,
        round=last.round,
        role=trajectory.name,
        tokens=sum(step.response_tokens for step in its),
        calls=len(its),
    )
