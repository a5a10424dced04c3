"""Models of the JSON files in a run's folder, except for its episodes: run.json, checkpoints and controls.

Files of earlier versions are read too: missing keys have defaults, unknown keys are ignored.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, OnErrorOmit

from rolegraph.engine.records.identity import MAIN
from rolegraph.engine.records.schema import Figure
from rolegraph.engine.records.source import Source
from rolegraph.engine.secrets import without_secrets

Kind = Literal["run", "train"]
_EVER = ("id", "question")
"""Task fields that are shown for runs of earlier versions, which do not record hidden fields."""


UNREADABLE = "\N{REPLACEMENT CHARACTER}"
"""Character for a byte of a path that is not UTF-8."""
Typed = Annotated[str, AfterValidator(without_secrets)]
"""Text typed by the user, without secrets."""


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore", defer_build=True)


class RoleInfo(_Record):
    """Training settings of a role."""

    estimator: str | None = None
    """Name of the advantage estimator; None for a role without one."""
    loss: str | None = None
    """Name of the loss; None for a role that is not trained."""
    trainable: bool = True
    """True for a trained role."""
    policies: tuple[str, ...] = ()
    """Name of the policy of each instance, or one name for all of them; empty for an untrained model."""
    answers: tuple[str, ...] = ()
    """All answers that the role's parser allows; empty if it allows any answer."""
    default: str = ""
    """Action that stands in for an unreadable answer; empty for a role without a default."""
    when: str = ""
    """Condition of the role's turns; empty for a role without `when`."""


class ResumeRecord(_Record):
    """Entry of `run.json` for one `--resume`: its time and its command line."""

    time: datetime
    """Start of the resumed run."""
    command: Typed
    """Command line."""


class SourceRecord(_Record):
    """Record of a Source (spec, overrides, imports, permissions and model) in a JSON file, without
    secrets."""

    spec: Typed = ""
    """Path of the spec file, or the name of a shipped spec."""
    overrides: tuple[Typed, ...] = ()
    """Overrides as typed, such as `train.steps=10`."""
    imports: tuple[Typed, ...] = ()
    """Python files that `--import` named."""
    allowed: tuple[Typed, ...] = ()
    """Permissions that `--allow` named."""
    model_flag: Typed | None = None
    """Model that `--model` named."""
    base_url: Typed | None = None
    """Address that `--base-url` named."""

    @property
    def source(self) -> Source:
        """Return the Source that this record describes."""
        return Source(
            self.spec or None, self.overrides, self.model_flag, self.base_url, self.imports, self.allowed
        )


def source_fields(source: Source) -> dict[str, Any]:
    """Return the fields of a SourceRecord for a source; `UNREADABLE` replaces bytes that are not UTF-8, which
    JSON cannot hold."""

    def text(value: str) -> str:
        return value.encode("utf-8", "surrogateescape").decode("utf-8", "replace")

    return {
        "spec": text(source.named_spec),
        "overrides": tuple(map(text, source.overrides)),
        "imports": tuple(map(text, source.imports)),
        "allowed": tuple(map(text, source.allow)),
        "model_flag": source.model and text(source.model),
        "base_url": source.base_url and text(source.base_url),
    }


class RunInfo(SourceRecord):
    """`run.json`: settings and results of a run or training."""

    kind: Kind = "train"
    """Kind of the folder: `run` for `rolegraph run`, `train` for `rolegraph train`."""
    name: str
    """Name of the spec."""
    hash: str = ""
    """Hash of the spec, its templates and the vocabulary that it uses."""
    version: str = ""
    """Version of Rolegraph."""
    command: Typed = ""
    """Command line."""
    started: datetime | None = None
    """Time at which the run was first started, in UTC; resuming the run does not change it."""
    finished: datetime | None = None
    """Time at which the run ended, in UTC; None while the run goes on, and if it was killed."""
    resumed: tuple[ResumeRecord, ...] = ()
    """Resumptions, oldest first."""
    model: Typed = ""
    """Name of the model."""
    seed: int = 0
    """Seed of the run."""
    split: Literal["train", "validation"] | None = None
    """For a run: part of the dataset; None for the default."""
    limit: int | None = None
    """For a run: largest number of tasks; None for no limit."""
    own_tasks: bool = False
    """For a run: True if the tasks were given in Python instead of by the spec."""
    rollouts: int = 0
    """For a run: episodes of each task; 0 in files of earlier versions."""
    left_out: dict[str, tuple[str, ...]] = {}
    """For a run: request fields that servers refused and that were then left out, by model."""
    checkpoint: Typed | None = None
    """For a run: trained weights that answer; None for untrained models."""
    steps: int = 0
    """For a training: number of steps, made steps if `stopped` has a reason, else planned steps; 0 if
    unknown."""
    stopped: str = ""
    """For a training that ended before its last planned step: the reason; else empty."""
    learning_rates: dict[str, Figure] = {}
    """For a training: learning rate of each policy, before the schedule; empty in files of earlier
    versions."""
    roles: dict[str, RoleInfo]
    """Training settings of each role, by name."""
    metrics: tuple[str, ...] = ()
    """Names of the spec's metrics, such as `judge_acc`."""
    validations: tuple[Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")], ...] = ()
    """Names of the workflows that validate a training in place of its own; each has a folder in
    `validations/`."""
    validation_figures: tuple[str, ...] = ()
    """Names of these workflows' metrics: the first workflow's, and `NAME/metric` of the others."""
    can_be_correct: bool = True
    """False if no role that decides `correct` can be right, so that `correct` is always 0."""
    hidden: tuple[str, ...] | None = None
    """Task fields that no prompt may show; None in files of earlier versions."""
    templates: dict[str, str] = {}
    """Text of each template, by a readable name."""
    seconds: float | None = None
    """For a run: time that its episodes took; for a training: time of its latest command. Measured by a
    monotonic clock, without the start of the model; None if unknown."""
    figures: dict[str, float] = {}
    """Results. For a run `episodes`, `correct`, its metrics and `failures/{role}/{name}`; for a training
    `step`, the metrics of the last validation as `validation/…`, and those of the best checkpoint as
    `best/…`."""

    @property
    def duration(self) -> float | None:
        """Seconds, not counting the start of the model; None if unknown, as for a resumed training."""
        return None if self.kind == "train" and self.resumed else self.seconds

    @property
    def trained_roles(self) -> tuple[str, ...]:
        """Names of the trained roles."""
        return tuple(name for name, role in self.roles.items() if role.trainable)

    @property
    def metric_names(self) -> tuple[str, ...]:
        """Names of the spec's metrics and of the validation's, after `correct` if an episode can be
        correct."""
        leading_names = ("correct",) if self.can_be_correct else ()
        return tuple(dict.fromkeys((*leading_names, *self.metrics, *self.validation_figures)))

    @property
    def trained_policies(self) -> tuple[str, ...]:
        """Names of the trained policies, in the order of the roles."""
        names = self.trained_roles
        return tuple(dict.fromkeys(policy for name in names for policy in self.roles[name].policies))

    def is_hidden(self, field: str) -> bool:
        """Return True if a task field is hidden; in runs of earlier versions, all fields except id and
        question are."""
        return field not in _EVER if self.hidden is None else field in self.hidden

    def visible(self, task: Mapping[str, Any]) -> dict[str, Any]:
        """Return the fields of a task that are not hidden."""
        return {name: value for name, value in task.items() if not self.is_hidden(name)}

    def policy_of(self, role: str, index: int) -> str:
        """Return the name of the policy of a role's instance; `index` counts from 1."""
        policies = self.roles[role].policies if role in self.roles else ()
        if not policies:
            return MAIN
        return policies[0] if len(policies) == 1 else policies[index - 1]


class Control(_Record):
    """Reference value for a training: the mean, over n tasks, of a metric of the untrained model or another
    baseline."""

    name: str
    """Name of the measured workflow, such as `untrained`."""
    figure: str
    """Name of the metric, such as `correct`."""
    mean: Figure
    """Mean over the tasks, in the unit of the metric."""
    low: Figure
    """Lower end of the 95 % interval of the mean."""
    high: Figure
    """Upper end of the 95 % interval of the mean."""
    n: int = 0
    """Number of tasks."""


class SavedPolicy(_Record):
    """Paths of a policy's saved weights at the training service."""

    version: int
    """Number of updates of the weights."""
    state: str
    """Path, at the training service, of the weights with the optimizer's state."""
    sampler: str
    """Path, at the training service, of the weights to sample from."""


class PastCopy(_Record):
    """Frozen copy of a policy in training, from an earlier step."""

    version: int
    """Number of updates of the weights."""
    sampler: str | None = None
    """Path, at the training service, of the weights to sample from; None for the policy's start."""


class Checkpoint(_Record):
    """State of a training after a step, from which it can be resumed."""

    step: int
    """Number of training steps before the checkpoint."""
    policies: dict[str, SavedPolicy]
    """Saved weights by the policy's name."""
    best: bool = False
    """True if its validation was the best up to then."""
    validation: dict[str, OnErrorOmit[Figure]] = {}
    """Metrics of the validation after this step, by name; empty if the step was not validated."""
    batches: Annotated[int, Field(ge=0)] = 0
    """Number of batches drawn before the checkpoint."""
    estimators: dict[str, dict[str, Mapping[str, Figure]]] = {}
    """States of the stateful estimators, by role and `Group.part`: numbers by key."""

    past: dict[str, Annotated[tuple[PastCopy, ...], Field(min_length=1)]] = {}
    """Kept copies by the name of the policy of past selves, oldest first."""

    starts: dict[str, str] = {}
    """Path of the starting weights of each policy whose start a teacher or a loss reads, by the policy's
    name."""

    metrics: dict[str, OnErrorOmit[Figure]] | None = None
    """Metrics of a step that was interrupted after its update, before its validation and its line in
    `metrics.jsonl`; None for a complete step."""

    @property
    def whole_steps(self) -> int:
        """Number of the last step with its validation and metrics, after which a resumed training
        continues."""
        return self.step if self.metrics is None else self.step - 1

    def of(self, policy: str | None) -> SavedPolicy | None:
        """Return the saved weights of a policy.

        Args:
            policy: Name of the policy; None stands for the only policy, or for `main` among several.

        Returns:
            The weights; None if the checkpoint has no such policy.
        """
        if policy is None:
            policy = next(iter(self.policies)) if len(self.policies) == 1 else MAIN
        return self.policies.get(policy)
