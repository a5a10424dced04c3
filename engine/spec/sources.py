"""Where prompts and answers come from, and how answers are drawn."""

from __future__ import annotations

from typing import Annotated, Literal, get_args

from pydantic import Field, StringConstraints

from rolegraph.engine.spec.base import Count, SpecModel, Strings


class PromptSource(SpecModel):
    """A template: the name of a file, or `{inline: "…"}`."""

    SHORT = str
    file: str | None = None
    """Looked up beside the spec, then in `prompts/`, then among the shipped ones."""
    inline: str | None = None
    """The template itself."""

    @classmethod
    def expand_shorthand(cls, value: object) -> object:
        """A file's name stands for `{file: name}`."""
        return {"file": value} if isinstance(value, str) else value


def api_of(provider: str) -> str:
    """Whose API the models of a provider are reached by: a local service speaks Tinker's."""
    return "tinker" if provider == "local" else provider


Provider = Literal["local", "tinker", "openai", "replay"]


class ModelRef(SpecModel):
    """Where answers come from: `provider:name`, or a mapping with these keys."""

    SHORT = Annotated[str, StringConstraints(pattern=rf"^({'|'.join(get_args(Provider))})(:|$)")]
    provider: Provider = "local"
    """`local` (a folder of this machine, served for the run), `tinker`, `openai` (any compatible endpoint)
    or `replay`."""
    name: str | None = None
    """A model folder (local; None is the shipped base model), a model's name (tinker, openai), or an episodes
    file or the folder of a run (replay). What a spec names lies beside it or below."""
    base_url: str | None = None
    """The endpoint; None is the provider's own."""
    checkpoint: str | None = None
    """Weights: a `tinker://` path, a training's folder (its best; `FOLDER#POLICY` where it trained several),
    or None (as it is)."""
    concurrency: Count = 512
    """How many calls may be under way at once."""
    replay_any: bool = False
    """Whether a replay answers prompts that have changed since they were recorded, too."""

    @classmethod
    def expand_shorthand(cls, value: object) -> object:
        """`provider:name`, or a provider alone, stands for a mapping."""
        if not isinstance(value, str):
            return value
        provider, colon, name = value.partition(":")
        return {"provider": provider, "name": name} if colon else {"provider": provider}

    @property
    def served_here(self) -> bool:
        """Whether this machine is to serve it; a local model with an endpoint is served already."""
        return self.provider == "local" and self.base_url is None


class Sampling(SpecModel):
    """How answers are drawn."""

    temperature: Annotated[float, Field(ge=0.0, le=10.0)] = 1.0
    """0 takes the likeliest token."""
    top_p: Annotated[float, Field(gt=0.0, le=1.0)] = 1.0
    """Draw from the smallest set of tokens with this much probability."""
    max_tokens: Count = 1024
    """The longest answer, in tokens."""
    stop: Strings = []
    """Texts that end an answer."""
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] | None = None
    """Draw the same answers every time; None follows the run's seed."""
