"""The local models that a run of rLLM's trainer asks: each served from before it starts until it is over."""

from __future__ import annotations

import os
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

from rolegraph.engine.models import Services
from rolegraph.engine.models.keys import TINKER
from rolegraph.engine.records import RunFolder
from rolegraph.engine.rllm_bridge.config import Launch
from rolegraph.engine.rllm_bridge.prepared import others


def is_served(run: Launch) -> bool:
    """Whether the policy is a model of this machine, for which a service has to be started."""
    return run.backend == "tinker" and run.plan.spec.model.served_here


@contextmanager
def served(run: Launch) -> Generator[tuple[Launch, Services], None, None]:
    """The run with a place for its policy, and what opens its other models, for the time of the block.

    rLLM takes the policy's key from the environment, where it stands for that time.
    """
    state = None if run.folder is None else RunFolder(Path(run.folder)).weights
    with ExitStack() as stack:
        services = stack.enter_context(Services(state_dir=state))
        for ref in others(run.plan):
            services.locate(ref)
        if is_served(run):
            policy = services.locate(run.plan.spec.model)
            stack.enter_context(_key(policy.api_key or ""))
            run = replace(run, base_url=policy.ref.base_url)
        yield run, services


@contextmanager
def _key(value: str) -> Generator[None, None, None]:
    before = os.environ.get(TINKER.key_variable)
    os.environ[TINKER.key_variable] = value
    try:
        yield
    finally:
        if before is None:
            del os.environ[TINKER.key_variable]
        else:
            os.environ[TINKER.key_variable] = before
