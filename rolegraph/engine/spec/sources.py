"""References to prompts and models, and sampling settings."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, Literal, Self

from pydantic import Field, StringConstraints, model_validator

from rolegraph.engine.plugins import plugin_names
from rolegraph.engine.shipped import BASE_NAME, MODELS
from rolegraph.engine.spec.base import Count, SpecModel, Texts
from rolegraph.engine.spec.body import Body, JsonObject
from rolegraph.engine.vocabulary import SCHEDULED

TEMPLATE_ENDING = ".j2"
"""Ending of the names of template files."""


def names_file(text: str) -> bool:
    """Return True for a text of a spec that names a template's file: one word that ends in `.j2`.

    The file is beside the spec, in `prompts/`, or among the shipped templates. Any other text is a template.
    """
    return text.endswith(TEMPLATE_ENDING) and not re.search(r"\s|\{\{", text)


def api_of(provider: str) -> str:
    """Return the provider whose API serves `provider`: `tinker` for `local`, else `provider`."""
    return "tinker" if provider == "local" else provider


OWN_PROVIDERS = ("local", "tinker", "openai", "replay")
"""Providers of this project; packages add others (`rolegraph.models`)."""
NO_BODY = ("local", "tinker", "replay", "sglang", "vllm")
"""Providers whose requests take no `body`."""
_PARTS = plugin_names("models")
PROVIDERS = tuple(
    dict.fromkeys(it for it in (*OWN_PROVIDERS[:3], *_PARTS, "replay") if it != "local" or it in _PARTS)
)
if TYPE_CHECKING:
    Provider = str
else:
    Provider = Literal[PROVIDERS]


Dollars = Annotated[float, Field(ge=0.0, le=1e6)]


class Price(SpecModel):
    """Price of a million tokens of a model, in dollars."""

    prompt: Dollars = 0.0
    """Price of prompt tokens."""
    response: Dollars = 0.0
    """Price of response tokens."""
    train: Dollars = 0.0
    """Price of training on prompt and response tokens, added to `prompt` and `response`."""

    def of(self, prompt: float, response: float, trained: float = 0.0) -> float:
        """Return the dollars for numbers of tokens."""
        return (prompt * self.prompt + response * self.response + trained * self.train) / 1e6


class ModelRef(SpecModel):
    """A model: `provider:name`, the `tinker://` path of trained weights, or a mapping with these keys."""

    SHORT = Annotated[str, StringConstraints(pattern=rf"^({'|'.join(map(re.escape, PROVIDERS))})(:|$)")]
    provider: Provider = "local"
    """`local` (a folder on this machine, served during the run), `tinker`, `openai` (any compatible
    endpoint), `litellm` (a provider with an API of its own), `vllm` or `sglang` (such a server, with exact
    tokens) or `replay` (recorded answers)."""
    name: str | None = None
    """A model folder or the name of a fetched model (local; None is the checkpoint's model, or else the
    shipped base model), the service's name of a model (tinker, openai, vllm, sglang), or an episodes file or
    run folder (replay). A path in a spec lies beside the spec or below."""
    base_url: str | None = None
    """URL of the endpoint; None is the provider's default."""
    checkpoint: str | None = None
    """Weights of a local or a tinker model: the folder of a training (its best checkpoint; `FOLDER#POLICY`
    where it trained several policies), or a `tinker://` path, which brings its model and service along if a
    training in `runs/` saved it. None takes the model unchanged. A replay has the answers of the weights that
    were recorded."""
    concurrency: Count = 512
    """Largest number of concurrent calls."""
    replay_any: bool = False
    """True to let a replay answer prompts that have changed since the recording."""
    escape_markers: bool | None = None
    """True to write a space into chat markers such as `<|im_end|>` in the texts that are sent to an `openai`
    endpoint, false to send them as they are. None sends them, with a warning of `rolegraph validate`. Other
    models need no escape."""

    bf16: bool = False
    """True to compute a local model in bfloat16, which is faster on a processor with AMX or AVX512-BF16 and
    slower on others (`rolegraph doctor` says which yours is). False is float32; on a GPU, bfloat16."""

    body: Body = JsonObject()
    """Further fields of each request to an `openai` or a `litellm` model, such as `{top_k: 20}`; null leaves
    a field out, such as `{seed: null}`. Fields of a role's or a policy's model replace them."""

    price: Price | None = None
    """Price of the model's tokens, such as `{prompt: 0.4, response: 1.2, train: 2}`, for the tables of runs
    and trainings, for forecasts and for `--budget '$5'`. A cost that the endpoint reports is used instead."""

    @classmethod
    def expand_shorthand(cls, value: object) -> object:
        """Expand `provider:name`, a provider without a name, or the `tinker://` path of weights."""
        if not isinstance(value, str):
            return value
        if value.startswith("tinker://"):
            return {"checkpoint": value}
        provider, colon, name = value.partition(":")
        return {"provider": provider, "name": name} if colon else {"provider": provider}

    @model_validator(mode="after")
    def _bf16_is_served_here(self) -> Self:
        if self.bf16 and not self.served_here:
            raise ValueError(
                "`bf16` is for a `local` model without `base_url`; a service is started with `serve --bf16`"
            )
        return self

    @property
    def is_shipped(self) -> bool:
        """True for a shipped model with its original weights."""
        shipped = self.provider == "local" and (self.name or BASE_NAME) in MODELS
        return shipped and self.base_url is None and self.checkpoint is None

    @property
    def is_trainable(self) -> bool:
        """True for a model of the Tinker API, which trains it and gives the log-probabilities of tokens."""
        return api_of(self.provider) == "tinker"

    @property
    def served_here(self) -> bool:
        """True for a local model without an endpoint, which the run must serve."""
        return self.provider == "local" and self.base_url is None

    @property
    def names_model(self) -> bool:
        """False for a bare `local`, which stands for the checkpoint's model, or for the shipped model."""
        return self.name is not None or not self.served_here

    @property
    def weights(self) -> str | None:
        """Checkpoint whose weights answer; None for the unchanged model, and for a provider without
        checkpoints."""
        return self.checkpoint if self.is_trainable else None

    def __str__(self) -> str:
        return f"{self.provider}:{self.name}" if self.name else self.provider


class Sampling(SpecModel):
    """Sampling settings of a model call."""

    temperature: Annotated[float, Field(ge=0.0, le=10.0), SCHEDULED] = 1.0
    """Sampling temperature; 0 takes the likeliest token."""
    top_p: Annotated[float, Field(gt=0.0, le=1.0)] = 1.0
    """Nucleus sampling: draw from the smallest set of tokens with this total probability."""
    max_tokens: Count = 1024
    """Largest number of tokens in an answer."""
    stop: Texts = []
    """Strings that end an answer."""
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] | None = None
    """Seed of the sampling; None derives one from the seed of the run."""
