"""What a spec says of training: the policies, and how they learn."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from rolegraph.engine.limits.specs import SPEC_COUNT, SPEC_RANK, SPEC_STALENESS
from rolegraph.engine.spec.base import Count, SpecModel
from rolegraph.engine.spec.sources import ModelRef, Sampling

RateCurve = Literal["constant", "linear", "cosine"]


class Schedule(SpecModel):
    """How the learning rate goes on after the warm-up."""

    SHORT = RateCurve
    kind: RateCurve = "constant"
    """`linear` and `cosine` fall to `floor` at the last step."""
    warmup: Annotated[int, Field(ge=0, le=SPEC_COUNT.most), SPEC_COUNT] = 0
    """Steps in which the rate rises from 0."""
    floor: Annotated[float, Field(ge=0.0, le=1.0)] = 0.0
    """The share of the learning rate that is left at the end."""

    @classmethod
    def expand_shorthand(cls, value: object) -> object:
        """A kind stands for `{kind: kind}`."""
        return {"kind": value} if isinstance(value, str) else value


class Lora(SpecModel):
    """The adapter that training changes."""

    rank: Annotated[int, Field(ge=1, le=SPEC_RANK.most), SPEC_RANK] = 32
    """Its rank."""
    attention: bool = True
    """Whether it changes the attention layers."""
    mlp: bool = True
    """Whether it changes the feed-forward layers."""
    unembed: bool = True
    """Whether it changes the layer that gives the logits."""


class Policy(SpecModel):
    """Weights that roles share, trained apart from others; what is left out is the spec's."""

    model: ModelRef | None = None
    """The model that it starts from."""
    checkpoint: str | None = None
    """Weights that it starts from: a training's folder (its best; `FOLDER#POLICY` where it trained several),
    or a `tinker://` path."""
    lora: Lora | None = None
    """The adapter; what it leaves out is that of `train.lora`."""
    learning_rate: Annotated[float, Field(gt=0.0, le=1.0)] | None = None
    """Adam's, under the one schedule."""
    sampling: Sampling | None = None
    """How answers are drawn from it, unless a role says otherwise; what it leaves out is the spec's."""


class Validation(SpecModel):
    """How the policy is measured on the validation data, with the same seeds every time."""

    every: Annotated[int, Field(ge=0, le=SPEC_COUNT.most), SPEC_COUNT] = 10
    """Steps between measurements; 0 measures only before and after. Both of these are always made."""
    tasks: Count = 128
    """How many tasks, from the first on."""
    rollouts: Count = 2
    """Episodes for each."""
    best: str = "correct"
    """The figure by which the best checkpoint is chosen: `correct`, or one of the spec's metrics."""


class Train(SpecModel):
    """How the roles are trained."""

    rollouts: Count = 8
    """K, the episodes for each task."""
    batch_size: Count = 16
    """Tasks in a step."""
    steps: Count | None = None
    """Updates of the policy; None follows from `epochs`."""
    epochs: Count | None = None
    """Times through the training data, in a new order each; with `steps` too, whichever ends first. Neither
    is one epoch."""
    learning_rate: Annotated[float, Field(gt=0.0, le=1.0)] = 1e-4
    """Adam's."""
    schedule: Schedule = Schedule()
    """`constant`, `linear`, `cosine`, or a mapping with `kind`, `warmup` and `floor`."""
    gradient_clip: Annotated[float, Field(ge=0.0, le=SPEC_COUNT.most), SPEC_COUNT] = 1.0
    """The largest norm of the gradient of the mean loss over a step's trajectories; 0 does not clip."""
    lora: Lora = Lora()
    """The adapter."""
    validation: Validation = Validation()
    """How it is measured on the way."""
    checkpoint_every: Count = 10
    """Steps between checkpoints. The best and the last are kept besides."""
    staleness: Annotated[int, Field(ge=0, le=SPEC_STALENESS.most), SPEC_STALENESS] = 0
    """Updates by which rollouts may be behind: 0 waits for each update; n makes the rollouts of n batches
    while earlier ones are learnt from, and says so in each Step. A run that is resumed begins with none
    ahead, so its figures are those of one that was not stopped only with 0."""
