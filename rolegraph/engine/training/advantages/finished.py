"""Views of recorded turns, the objects that templates and expressions read, once the episode is over. Read by
gates, teachers' prompts, demonstrations, and filters of episodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

from rolegraph.engine.compile import Plan, RolePlan
from rolegraph.engine.compile.plan import InputEdge, Node
from rolegraph.engine.prompts import SELF
from rolegraph.engine.records import Episode, FailureName, NodeId, Step, Trajectory
from rolegraph.engine.run.context import turns_taken
from rolegraph.engine.vocabulary import TURN_FIELDS, UNKNOWN, View, Views


def recorded_view(trajectory: Trajectory, steps: Sequence[Step], failure: FailureName | None) -> View:
    """Return the view of a recorded turn, the object that templates read; it has no reward and no node of the
    graph.

    Args:
        trajectory: The trajectory of the turn.
        steps: Steps of the turn; empty where the model did not answer.
        failure: Failure of the turn; None for a turn that did not fail.
    """
    last_step = steps[-1] if steps else Step()
    return View(
        trajectory.index,
        last_step.action,
        last_step.model_response,
        last_step.thought,
        last_step.round,
        failure="" if failure is None or failure.cause == "reward" else failure.value,
        role=trajectory.name,
        tokens=sum(step.response_tokens for step in steps if not step.tool),
        calls=sum(not step.tool for step in steps),
    ).public


class FinishedEpisode:
    """Views of the turns of a finished episode, the objects that templates read, with their rewards."""

    def __init__(self, plan: Plan, episode: Episode) -> None:
        self.plan, self.episode = plan, episode
        self.roles = {role.name: role for role in plan.roles}

    @cached_property
    def _views(self) -> list[View | None]:
        """View of each node of the plan; None for a turn that was skipped."""
        views: list[View | None] = [None] * len(self.plan.nodes)
        turns = [(*t.node[:2], turn[0].round) for t in self.episode.trajectories for turn in t.turns]
        for name, index, round in (*turns, *self.episode.failures):
            views[self._place(name, index, round)] = self.turn(name, index, round)
        return views

    def turn(self, name: str, index: int, round: int) -> View:
        """Return the view of a turn that ran, with the turn's reward and whether its trajectory is right.

        Args:
            name: The role.
            index: Number of the instance.
            round: Round of the turn, counted through all loops around the role.
        """
        node = self.plan.nodes[self._place(name, index, round)]
        trajectory = self._trajectories[name, index]
        steps = [step for step in trajectory.steps if step.round == round]
        failure = self.episode.failures.get(NodeId(name, index, round))
        cause = None if failure is None else FailureName(failure["name"])
        is_reward = cause is not None and cause.cause == "reward"
        view = recorded_view(trajectory, steps, cause)
        view = view._replace(round=node.round, lineage=node.lineage, outer=node.outer)
        is_unrated = is_reward or (cause is None and bool(steps) and steps[-1].masked)
        if view.ok is UNKNOWN or is_unrated:
            return view
        correct = trajectory.is_correct if name in self.plan.judged else UNKNOWN
        return view._replace(reward=steps[-1].reward if steps else 0.0, right=correct, terms=trajectory.terms)

    def last_turn(self, trajectory: Trajectory) -> View:
        """Return the view of a trajectory's last turn, with the reward of the trajectory."""
        view = self.turn(*trajectory.node[:2], trajectory.steps[-1].round)
        return view if view.reward is UNKNOWN else view._replace(reward=trajectory.reward or 0.0)

    @cached_property
    def _trajectories(self) -> Mapping[tuple[str, int], Trajectory]:
        return {(trajectory.name, trajectory.index): trajectory for trajectory in self.episode.trajectories}

    def of_turn(self, trajectory: Trajectory, round: int, sees: frozenset[str]) -> Mapping[str, Any]:
        """Return the variables of a template that is rendered for one recorded turn.

        The names in the role's `needs` are as in its prompt. Other roles are read as rewards read them.

        Args:
            trajectory: The trajectory.
            round: Round of the turn.
            sees: Hidden fields of the task that the text may read.
        """
        index, role = self._place(trajectory.name, trajectory.index, round), self.roles[trajectory.name]
        node = self.plan.nodes[index]
        hidden_fields = self.plan.hidden.difference(sees)
        task = {name: value for name, value in self.episode.task.items() if name not in hidden_fields}
        edges = (*self.plan.signal_inputs.get(index, ()), *self.plan.blocks[node.block].inputs)
        views = {edge.name: self._read(edge) for edge in edges}
        return {"task": task, SELF: self._self(trajectory, node, index, role), **views}

    def _self(self, trajectory: Trajectory, node: Node, place: int, role: RolePlan) -> Mapping[str, Any]:
        earlier_turns = range(place - role.count * (node.id.round - 1), place, role.count)
        view = self._views[place]
        assert view is not None
        first_call = next(step for step in trajectory.steps if step.round == node.id.round)
        prompt = first_call.chat_completions[:-1]
        return {
            **{name: getattr(view, name) for name in TURN_FIELDS},
            "count": role.count,
            "times": role.times,
            "history": Views([seen for turn in earlier_turns if (seen := self._views[turn]) is not None]),
            "prompt": str(prompt[-1].get("content")) if prompt else "",
        }

    def _read(self, edge: InputEdge) -> Views:
        """Return the views of the turns that an edge of the role's `needs` names, without skipped turns."""
        return Views([view for _, view in turns_taken(edge, self._views)])

    def _place(self, name: str, index: int, round: int) -> int:
        role = self.roles[name]
        return role.nodes.start + (round - 1) * role.count + index - 1
