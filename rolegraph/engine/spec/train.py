"""Training settings of a spec: policies, schedule, stages, adapter, validation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, model_validator

from rolegraph.engine.limits.specs import (
    SPEC_COUNT,
    SPEC_KEEP,
    SPEC_RANK,
    SPEC_REFILL,
    SPEC_STAGES,
    SPEC_STALENESS,
)
from rolegraph.engine.spec.base import ATOMIC, Count, SpecModel, Strings
from rolegraph.engine.spec.sources import ModelRef, Sampling

RateCurve = Literal["constant", "linear", "cosine"]


class Schedule(SpecModel):
    """Learning-rate schedule after the warm-up."""

    SHORT = RateCurve
    SHORT_KEYS = {str: "kind"}
    kind: RateCurve = "constant"
    """`constant`, or `linear` or `cosine`, which fall to `floor` at the last step."""
    warmup: Annotated[int, Field(ge=0, le=SPEC_COUNT.most)] = 0
    """Number of steps in which the rate rises from 0."""
    floor: Annotated[float, Field(ge=0.0, le=1.0)] = 0.0
    """Share of the learning rate that remains at the end."""


class Lora(SpecModel):
    """LoRA adapter, the weights that training changes."""

    rank: Annotated[int, Field(ge=1, le=SPEC_RANK.most)] = 32
    """Rank of the adapter."""
    attention: bool = True
    """True to adapt the attention layers."""
    mlp: bool = True
    """True to adapt the feed-forward layers."""
    unembed: bool = True
    """True to adapt the layer that computes the logits."""


class Policy(SpecModel):
    """Weights that roles share, trained separately; a key that is left out has the spec's value."""

    model: ModelRef | None = None
    """Model that the training starts from."""
    checkpoint: str | None = None
    """Weights that the training starts from: the folder of a training (its best checkpoint; `FOLDER#POLICY`
    where it trained several policies), or a `tinker://` path."""
    lora: Lora | None = None
    """Adapter; a key that is left out has the value of `train.lora`."""
    learning_rate: Annotated[float, Field(gt=0.0, le=1.0)] | None = None
    """Learning rate of Adam, under the schedule of `train`."""
    sampling: Sampling | None = None
    """Sampling settings of the policy's roles; a key that is left out has the spec's value."""
    of: str | None = None
    """Trained policy of which this one is a past self: frozen copies, never trained. Each task of a step
    plays against one copy in all its rollouts; outside of training steps it is the start."""
    every: Count = 5
    """With `of`: number of updates between two copies. The first copy has the weights before the training."""
    keep: Annotated[int, Field(ge=1, le=SPEC_KEEP.most)] = 4
    """With `of`: number of the newest copies that are kept."""
    pick: Literal["uniform", "latest"] = "uniform"
    """With `of`: the copy that a task plays against: a `uniform` draw of the kept copies, or the `latest`."""


class Validation(SpecModel):
    """Evaluation on the validation data, with the same seeds every time."""

    every: Annotated[int, Field(ge=0, le=SPEC_COUNT.most)] = 10
    """Steps between evaluations. The first is before the training, the last after it; 0 makes only these two.
    """
    tasks: Count = 128
    """Number of tasks: the first tasks of the validation data."""
    rollouts: Count = 2
    """Number of episodes for each task."""
    workflow: Annotated[Strings, ATOMIC] = []
    """Spec, or specs, that validate in place of this one, as paths beside it: their policies are among those
    that are trained here, and their data, prompts and metrics are their own."""
    best: str = "correct"
    """Figure that selects the best checkpoint: `correct`, or one of the spec's metrics; with `workflow`, a
    figure of the first validation workflow, or `NAME/figure` of another."""


BEST: Literal["best"] = "best"
"""Word for the best answers so far, in place of a demonstration."""


def _as_targets(value: object) -> object:
    """Return the mapping form of `imitation`; the word `best` becomes an empty mapping."""
    if value == BEST:
        return {}
    if value == {}:
        raise ValueError("best, or a mapping from roles to what they imitate")
    return value


class Stage(SpecModel):
    """Steps at the beginning of a training, in which roles imitate answers in place of RL."""

    @model_validator(mode="before")
    @classmethod
    def _is_no_word(cls, value: object) -> object:
        if isinstance(value, str):
            raise ValueError("a mapping with `imitation` and `steps`; RL follows the last stage by itself")
        return value

    imitation: Annotated[
        Mapping[str, str],
        BeforeValidator(_as_targets, json_schema_input_type=Literal["best"] | Mapping[str, str]),
        ATOMIC,
    ]
    """Answers that become targets of a cross-entropy, by role: `best` for the answers of each group with the
    highest reward, or a template for the answer to the role's own prompt. The template may read hidden
    fields, because it is no prompt. A bare `best` applies to every trained role with a reward; a role that is
    not named learns from its rewards as in RL."""
    steps: Count
    """Number of training steps in the stage."""
    rollouts: Count | None = None
    """Episodes for each task; None is 1 where every trained role has a template, else `train.rollouts`."""
    learning_rate: Annotated[float, Field(gt=0.0, le=1.0)] | None = None
    """Learning rate of every policy, under the schedule of `train`; None is the training's learning rate."""


class Keep(SpecModel):
    """Parts of a long training that stay on disk; a part without a setting stays whole."""

    checkpoints: Count | None = None
    """Number of the newest checkpoints that stay; the best one stays, too."""
    episodes: Count | None = None
    """Number of the newest steps whose training episodes stay. Those of validations stay."""


class Train(SpecModel):
    """Training of the roles."""

    rollouts: Count = 8
    """Number of episodes for each task in a step, K."""
    batch_size: Count = 16
    """Number of tasks in each step."""
    refill: Annotated[int, Field(ge=0, le=SPEC_REFILL.most)] = 0
    """Number of further batches that a step may draw until `batch_size` tasks are informative: a role's
    compared rewards differ on the task. The step learns from the first `batch_size` informative tasks alone.
    0 learns from the whole first batch. Not with `staleness`."""
    steps: Count | None = None
    """Number of updates of the policies; None follows from `epochs`."""
    epochs: Count | None = None
    """Passes through the training data, each in a new order; with `steps` too, whichever ends first. Without
    both it is one epoch."""
    stages: Annotated[list[Stage], Field(max_length=SPEC_STAGES.most), ATOMIC] = []
    """Stages of imitation, one after the other; RL has the remaining steps."""
    learning_rate: Annotated[float, Field(gt=0.0, le=1.0)] | None = None
    """Learning rate of Adam; None follows the size of the model (docs/training/learning_rate.md): 0.002 for
    the shipped base model."""
    schedule: Schedule = Schedule()
    """`constant`, `linear`, `cosine`, or a mapping with `kind`, `warmup` and `floor`."""
    gradient_clip: Annotated[float, Field(ge=0.0, le=SPEC_COUNT.most)] = 1.0
    """Largest norm of the gradient of the mean loss over a step's trajectories; 0 does not clip."""
    lora: Lora = Lora()
    """LoRA adapter."""
    validation: Validation = Validation()
    """Evaluation during the training."""
    stop: Count | None = None
    """Number of validations in a row without a new best (`validation.best`), after which the training ends;
    None makes all steps."""
    checkpoint_every: Count = 10
    """Steps between checkpoints; the best and the last are always kept."""
    keep: Keep = Keep()
    """Checkpoints and episodes that stay on disk during the training; all of them by default."""
    sample_from: ModelRef | None = None
    """vLLM or SGLang server that samples for the trained policies: `vllm`, or a mapping with `provider` and
    `base_url`. It serves the model that is trained, and loads the adapter after each update. None samples
    from the service that trains."""
    staleness: Annotated[int, Field(ge=0, le=SPEC_STALENESS.most)] = 0
    """Number of updates by which rollouts may be behind the policy: 0 waits for each update; n makes the
    rollouts of n batches during earlier updates, and each Step records the lag. A resumed run starts with no
    batch ahead, so only with 0 does it repeat the figures of an uninterrupted run."""
