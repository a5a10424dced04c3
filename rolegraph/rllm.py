"""Specs under rLLM's own trainer, for `train --trainer rllm` and `eject`."""

from rolegraph.engine.backends import Backend
from rolegraph.engine.rllm_bridge.estimators import estimator_map
from rolegraph.engine.rllm_bridge.launch import RllmJob, describe, launch, prepare, script

__all__ = ["Backend", "RllmJob", "describe", "estimator_map", "launch", "prepare", "script"]
