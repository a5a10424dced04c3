"""What a run's folder says of the run, but for its episodes: what it is of, its checkpoints and controls.

Files that an earlier version wrote are read too: what they lack has a default, what is not known is ignored.
"""

from __future__ import annotations

import re
from datetime import datetime
from typing import Annotated, Any, Literal, cast

from pydantic import AfterValidator, BaseModel, ConfigDict, model_validator

from rolegraph.engine.records.identity import MAIN
from rolegraph.engine.records.schema import Figure
from rolegraph.engine.records.source import Source

Kind = Literal["run", "train"]


def without_credentials(text: str) -> str:
    """A text without the user and password of the URLs in it."""
    return re.sub(r"://[^/?#\s]*@", "://", text)


Typed = Annotated[str, AfterValidator(without_credentials)]
"""What a person typed, less the credentials in its URLs."""


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore", defer_build=True)


class RoleInfo(_Record):
    """How a role learns; None where it does not."""

    estimator: str | None = None
    loss: str | None = None
    trainable: bool = True
    policies: tuple[str, ...] = ()
    """Whose weights each instance has; one for all of them stands once. None for models as they are."""


class ResumeRecord(_Record):
    """One time that a run or a training was taken up again."""

    time: datetime
    command: Typed


class SourceRecord(_Record):
    """Fields of a Source in a file, without the credentials of its URLs."""

    spec: Typed = ""
    """Path of the spec file, or the name of a shipped spec."""
    overrides: tuple[Typed, ...] = ()
    imports: tuple[Typed, ...] = ()
    """Python files that `--import` named."""
    allowed: tuple[Typed, ...] = ()
    """Permissions that `--allow` named."""
    model_flag: Typed | None = None
    """Model that `--model` named."""
    base_url: Typed | None = None

    @property
    def source(self) -> Source:
        """Source that these fields hold."""
        return Source(
            self.spec or None, self.overrides, self.model_flag, self.base_url, self.imports, self.allowed
        )


def source_fields(source: Source) -> dict[str, Any]:
    """Return the fields of a SourceRecord that holds a source."""
    return {
        "spec": source.named_spec,
        "overrides": source.overrides,
        "imports": source.imports,
        "allowed": source.allow,
        "model_flag": source.model,
        "base_url": source.base_url,
    }


class RunInfo(SourceRecord):
    """`run.json`: what a run is of, and what it came to."""

    kind: Kind = "train"
    name: str
    hash: str = ""
    """Of the spec, its templates and the vocabulary it uses."""
    version: str = ""
    """Rolegraph's."""
    command: Typed = ""
    """The command line."""
    started: datetime | None = None
    finished: datetime | None = None
    """None while it goes on, and where it was killed."""
    resumed: tuple[ResumeRecord, ...] = ()
    model: Typed = ""
    """The model's name."""
    seed: int = 0
    split: Literal["train", "validation"] | None = None
    """Of a run: which tasks, if not the default ones."""
    limit: int | None = None
    """Of a run: how many tasks at most."""
    own_tasks: bool = False
    """Of a run: whether its tasks were given in Python, and are not the spec's."""
    rollouts: int = 0
    """Of a run: episodes of each task; 0 where an earlier version did not note it."""
    checkpoint: Typed | None = None
    """Of a run: the trained weights that it was made with, if not with the models as they are."""
    steps: int = 0
    """How many training steps were planned; 0 where it is not known."""
    roles: dict[str, RoleInfo]
    metrics: tuple[str, ...] = ()
    """The spec's figures, such as `judge_acc`."""
    hidden: tuple[str, ...] | None = None
    """The task fields that no prompt sees; None where an earlier version did not note them."""
    templates: dict[str, str] = {}
    """Each template's text, by a name that a person knows it by."""
    figures: dict[str, float] = {}
    """Of a run: `episodes`, `correct`, its metrics, `failures/{role}/{name}`. Of a training: `step`, and its
    validation's figures, the last under `validation/` and those of the best checkpoint under `best/`."""

    @property
    def trained_policies(self) -> tuple[str, ...]:
        """The policies that it trained, in the order of its roles."""
        roles = [role for role in self.roles.values() if role.trainable]
        return tuple(dict.fromkeys(policy for role in roles for policy in role.policies))

    def policy_of(self, role: str, index: int) -> str:
        """The policy of a role's instance."""
        policies = self.roles[role].policies if role in self.roles else ()
        if not policies:
            return MAIN
        return policies[0] if len(policies) == 1 else policies[index - 1]


class Control(_Record):
    """A figure measured beside the run, to compare with: its mean and an interval over n tasks."""

    name: str
    figure: str
    mean: Figure
    low: Figure
    high: Figure
    n: int = 0


class SavedPolicy(_Record):
    """A policy's weights after `version` updates."""

    version: int
    state: str
    """Path of the weights with the optimizer's state."""
    sampler: str
    """Path of the weights to sample from."""


class Checkpoint(_Record):
    """A place to go on from: after `step` batches."""

    step: int
    policies: dict[str, SavedPolicy]
    """By name."""
    best: bool = False
    """Whether its validation was the best so far."""
    validation: dict[str, Figure] = {}

    @model_validator(mode="before")
    @classmethod
    def _of_one_policy(cls, value: Any) -> Any:
        """Earlier versions wrote the one policy's paths beside the step."""
        if isinstance(value, dict) and "policies" not in value and "state" in value:
            written = cast("dict[str, Any]", value)
            main = {key: written[key] for key in ("version", "state", "sampler") if key in written}
            return {**written, "policies": {MAIN: main}}
        return cast("object", value)

    def of(self, policy: str | None) -> SavedPolicy | None:
        """A policy's weights; without a name those of `main`, or of the only one there is."""
        if policy is None:
            policy = next(iter(self.policies)) if len(self.policies) == 1 else MAIN
        return self.policies.get(policy)
