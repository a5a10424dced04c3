"""What a run's folder says of the run, but for its episodes: what it is of, its checkpoints and controls.

Files that an earlier version wrote are read too: what they lack has a default, what is not known is ignored.
"""

from __future__ import annotations

import re
from datetime import datetime
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict

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


class Resumed(_Record):
    """One time that a training was taken up again."""

    time: datetime
    command: Typed


class RunInfo(_Record):
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
    resumed: tuple[Resumed, ...] = ()
    spec: Typed = ""
    """The spec as it was given: a file, or the name of a shipped one."""
    overrides: tuple[Typed, ...] = ()
    imports: tuple[Typed, ...] = ()
    """The Python files that `--import` named."""
    allowed: tuple[Typed, ...] = ()
    """What `--allow` named."""
    model_flag: Typed | None = None
    base_url: Typed | None = None
    model: Typed = ""
    """The model's name."""
    seed: int = 0
    steps: int = 0
    """How many training steps were planned; 0 where it is not known."""
    roles: dict[str, RoleInfo]
    metrics: tuple[str, ...] = ()
    """The spec's figures, such as `judge_acc`."""
    templates: dict[str, str] = {}
    """Each template's text, by a name that a person knows it by."""
    figures: dict[str, float] = {}
    """Of a run: `episodes`, `correct`, its metrics, `failures/{role}/{name}`. Of a training: `step`, and its
    validation's figures, the last under `validation/` and those of the best checkpoint under `best/`."""


class Control(_Record):
    """A figure measured beside the run, to compare with: its mean and an interval over n tasks."""

    name: str
    figure: str
    mean: float
    low: float
    high: float
    n: int = 0


class Checkpoint(_Record):
    """A place to go on from: after `step` batches, `version` of which changed the weights."""

    step: int
    version: int
    state: str
    """Path of the weights with the optimizer's state."""
    sampler: str
    """Path of the weights to sample from."""
    best: bool = False
    """Whether its validation was the best so far."""
    validation: dict[str, float] = {}
