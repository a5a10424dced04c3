"""Past selves: frozen copies of policies in training, and the copy that each task plays against.

The start of a policy is kept in the same way where it is the teacher of a signal.

A copy is a checkpoint to sample from, named by its path at the service. The copies that are kept follow from
the updates alone, and the drawn one from seed, batch and task, so a training that is resumed at a checkpoint,
which names the kept copies, draws as an unbroken one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rolegraph.engine.compile.role_plan import PastPlan
from rolegraph.engine.models import LimitedModel
from rolegraph.engine.records import Checkpoint, PastCopy, Task, derive_seed
from rolegraph.engine.training.policies.policies import Policies

Opponents = Mapping[str, PastCopy]
"""Copy that plays for each past policy, by name."""
STARTING = PastCopy(version=0)


class PastSelves:
    """Copies of each past policy that later steps may play against.

    Args:
        plans: The past policies by name.
        policies: The policies in training.
        start: Checkpoint that the training continues from; None is the beginning.
    """

    def __init__(self, plans: Mapping[str, PastPlan], policies: Policies, start: Checkpoint | None) -> None:
        self._plans, self._policies = plans, policies
        copies = start.past if start else {}
        self.kept: dict[str, tuple[PastCopy, ...]] = {name: copies.get(name, (STARTING,)) for name in plans}
        """Copies of each past policy, oldest first, by name."""
        self.starts: dict[str, str] = dict(start.starts) if start else {}
        """Path of the starting weights of each policy whose start a teacher or a loss reads, by the policy's
        name."""
        self._dropped: list[tuple[str, str]] = []
        """(policy, path) of each copy to delete."""
        self._models: dict[str, LimitedModel] = {}
        """Open models of copies and of starting weights, by path."""

    async def keep_starts(self, names: Sequence[str]) -> None:
        """Save a copy of the starting weights of these policies, unless `starts` has a path for them."""
        for name in names:
            if name not in self.starts:
                self.starts[name] = await self._policies[name].save_copy("start")

    async def start_of(self, name: str) -> LimitedModel:
        """Return a model with the weights that a policy started from, which `keep_starts` saved."""
        return await self._open(name, self.starts[name], 0)

    async def refresh(self) -> None:
        """Save a copy of each policy that has had `every` updates since its last copy, and drop copies beyond
        `keep`."""
        new_paths: dict[tuple[str, int], str] = {}
        for name, plan in self._plans.items():
            version = self._policies[plan.of].version
            if version % plan.every or version <= self.kept[name][-1].version:
                continue
            # Two past policies of one policy share the copies of the same version.
            key = plan.of, version
            if key not in new_paths:
                new_paths[key] = await self._policies[plan.of].save_copy(f"past-{version:06d}")
            copies = (*self.kept[name], PastCopy(version=version, sampler=new_paths[key]))
            self.kept[name] = copies[-plan.keep :]
            self._dropped += [(plan.of, c.sampler) for c in copies[: -plan.keep] if c.sampler is not None]
        held_paths = self._held(self.kept).union(self.starts.values())
        self._models = {path: model for path, model in self._models.items() if path in held_paths}

    def draw(self, tasks: Sequence[Task], seed: int) -> list[Opponents]:
        """Draw the copies that each task plays against in all its rollouts.

        Args:
            tasks: Tasks of a batch.
            seed: Seed of the batch.
        """

        def drawn(name: str, task: Task) -> PastCopy:
            copies = self.kept[name]
            if self._plans[name].pick == "latest":
                return copies[-1]
            return copies[derive_seed(seed, "past", name, task["id"]) % len(copies)]

        return [{name: drawn(name, task) for name in self._plans} for task in tasks]

    async def model(self, name: str, path: str, version: int) -> LimitedModel:
        """Return a model that samples from the copy of a past policy at a path."""
        return await self._open(self._plans[name].of, path, version)

    async def _open(self, policy: str, path: str, version: int) -> LimitedModel:
        if path not in self._models:
            self._models[path] = await self._policies[policy].copied(path, version)
        return self._models[path]

    async def prune(self, checkpoints: Sequence[Checkpoint], dropped: Sequence[Checkpoint]) -> None:
        """Delete the copies that are no longer kept and that no checkpoint names.

        Args:
            checkpoints: The training's checkpoints.
            dropped: Checkpoints that were just removed.
        """
        self._dropped += [
            (self._plans[name].of, path)
            for checkpoint in dropped
            for name, copies in checkpoint.past.items()
            for path in self._held({name: copies})
        ]
        used_paths = self._held(self.kept).union(*(self._held(checkpoint.past) for checkpoint in checkpoints))
        for policy, path in dict.fromkeys(self._dropped):
            if path not in used_paths:
                await self._policies[policy].delete_copy(path)
        self._dropped = []

    @staticmethod
    def _held(copies: Mapping[str, Sequence[PastCopy]]) -> set[str]:
        return {copy.sampler for history in copies.values() for copy in history if copy.sampler is not None}
