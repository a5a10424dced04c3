"""Adaptation of rLLM, which is written for verl 0.8, to verl 0.9. docs/rllm.md shows the same change as a
patch.

`adapt` changes only the config, because rLLM trains in a Ray actor; there verl builds an object from the
config by calling `checkpoint_config`.
"""

# rLLM is absent where types are checked, so what comes of its modules is unknown there.
# pyright: reportMissingImports=false, reportUnknownVariableType=false, reportUnknownMemberType=false
# pyright: reportUnknownArgumentType=false, reportUnknownParameterType=false

from __future__ import annotations

from functools import cache, wraps
from importlib.metadata import PackageNotFoundError, version
from typing import Any

NEWER = "0.9."
"""Prefix of the versions of verl that need the adaptation."""


def adapt(config: Any) -> None:
    """Change a composed config of rLLM in place for an installed verl 0.9; with verl 0.8 do nothing."""
    from omegaconf import OmegaConf, open_dict

    try:
        is_newer = version("verl").startswith(NEWER)
    except PackageNotFoundError:
        return
    if not is_newer:
        return
    with open_dict(config):
        # trainer/verl/utils.py, _SHARED_KEYS: sync_config copies the key to actor.router_replay, which verl
        # 0.9 moved to the engines. A missing key is not copied, and rLLM reads it as disabled.
        if config.rllm.algorithm.get("router_replay") == "disabled":
            config.rllm.algorithm.pop("router_replay")
        # trainer/verl/verl_backend.py builds this config right before the call that 0.9 refuses.
        key = "actor_rollout_ref.rollout.checkpoint_engine._target_"
        OmegaConf.update(config, key, f"{__name__}.{checkpoint_config.__name__}")


def checkpoint_config(**fields: Any) -> Any:
    """Return verl's CheckpointEngineConfig, after changing the CheckpointEngineManager of this process to
    accept rLLM's argument."""
    from verl.workers.config import CheckpointEngineConfig

    _rename_argument()
    return CheckpointEngineConfig(**fields)


@cache
def _rename_argument() -> None:
    """Let CheckpointEngineManager accept `trainer`, which verl 0.9 renamed to `actor_wg`."""
    from verl.checkpoint_engine import CheckpointEngineManager

    initialize = CheckpointEngineManager.__init__

    @wraps(initialize)
    def renamed(self: Any, *arguments: Any, **named: Any) -> None:
        if "trainer" in named:
            named["actor_wg"] = named.pop("trainer")
        initialize(self, *arguments, **named)

    CheckpointEngineManager.__init__ = renamed
