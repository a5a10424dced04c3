"""Arguments of the commands after a training: to run and to export its best weights."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from rolegraph.api.workflow import Workflow
from rolegraph.engine.compile import Plan
from rolegraph.engine.records import MAIN, PolicyPath, RunFolder, Source
from rolegraph.engine.spec.yaml_text import dump_yaml


def trained_source(flow: Workflow, folder: Path, policies: Sequence[str]) -> Source:
    """Return the source of a workflow whose models have the best weights of a training.

    Args:
        flow: The workflow as it was trained; its overrides, model and permissions are kept.
        folder: Folder of the training.
        policies: Names of the trained policies.

    Returns:
        The workflow's source with an override for the weights of each policy.
    """
    overrides = (word for name in policies for word in _weights(flow.plan, folder, name))
    return replace(flow.source, overrides=(*flow.source.overrides, *overrides))


def _weights(plan: Plan, folder: Path, name: str) -> Iterator[str]:
    """Yield the `key=value` overrides of the spec that make a policy use its trained weights in `folder`."""
    policy, model = plan.spec.policy_named(name), plan.spec.model
    if policy.lora is not None:
        yield f"policies.{name}.lora=null"  # the checkpoint sets the shape of the adapter
    has_untrained = any(e.model == model and e.policy is None and e.past is None for e in plan.endpoints)
    is_model = name == MAIN and policy.checkpoint is None and not has_untrained
    path = PolicyPath(str(folder), None if name == MAIN else name)
    yield f"{'model' if is_model else f'policies.{name}'}.checkpoint={dump_yaml(str(path), one_line=True)}"


def export_arguments(checkpoint: str | Path) -> list[list[str]]:
    """Return the arguments of `rolegraph export` for each policy of a training that is not exported yet.

    Args:
        checkpoint: Folder of a training, or one of its policies as `FOLDER#POLICY`; for a `tinker://` path
            the result is empty.

    Raises:
        UsageError: The training saved no checkpoint.
    """
    policy_path = PolicyPath.parse(str(checkpoint))
    if policy_path is None:
        return []
    folder = Path(policy_path.folder)
    policies = [*RunFolder(folder).best().policies]
    policy_names: Sequence[str | None] = [None] if len(policies) == 1 else policies
    if policy_path.policy is not None:
        policy_names = [policy_path.policy]
    export_folders = {name: folder / (f"adapter-{name}" if name else "adapter") for name in policy_names}
    flags = {name: ["--policy", name] if name else [] for name in policy_names}
    return [[str(folder), *flags[name]] for name, place in export_folders.items() if not place.exists()]
