"""The models of a training for rollouts in other processes: places that a worker opens them at."""

from __future__ import annotations

from collections.abc import Mapping

from rolegraph.engine.models import ServedModel
from rolegraph.engine.run import EpisodeMaker
from rolegraph.engine.spec import ModelRef
from rolegraph.engine.training.policies import Policies


class RemoteModels:
    """The workers of a cluster, and the places of the models that they sample from.

    The weights of each version are saved at the service for the time of their rollouts.

    Args:
        maker: The workers, which open the models that a job names.
        policies: The policies in training.
        frozen: The places of the models that are not trained.
        staleness: Updates by which rollouts may be behind the policy.
    """

    def __init__(
        self, maker: EpisodeMaker, policies: Policies, frozen: Mapping[ModelRef, ServedModel], staleness: int
    ) -> None:
        self.maker, self.frozen = maker, frozen
        self._policies, self._staleness = policies, staleness
        self._saved: dict[str, dict[int, ServedModel]] = {}
        """By policy and version, the saved weights that rollouts may still use."""

    async def current(self, policy: str) -> ServedModel:
        """Return the place of a policy's current weights; save them first, once for each version.

        Raises:
            WorldError: The service refuses or fails.
        """
        version, saved = self._policies.version(policy), self._saved.setdefault(policy, {})
        if version not in saved:
            path = await self._policies.save_copy(policy, f"rollouts-{version:06d}")
            saved[version] = self._policies.located_copy(policy, path, version)
            await self._delete(policy, below=version - self._staleness)
        return saved[version]

    async def close(self) -> None:
        """Delete the saved weights at the service."""
        for policy in self._saved:
            await self._delete(policy, below=None)

    async def _delete(self, policy: str, below: int | None) -> None:
        saved = self._saved[policy]
        for version in [version for version in saved if below is None or version < below]:
            if (path := saved.pop(version).ref.checkpoint) is not None:
                await self._policies.delete_copy(policy, path)
