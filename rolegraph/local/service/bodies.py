"""Request bodies in JSON: those of the Tinker API, and what they share with those of OpenAI's API.

A body that does not fit raises pydantic's ValidationError, or `RequestError`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from rolegraph.local import limits
from rolegraph.local.service.batcher import SampleJob
from rolegraph.local.service.errors import RequestError
from rolegraph.local.service.local_model import LocalModel
from rolegraph.local.service.lora import LoraShape
from rolegraph.local.service.sampling import SampleRequest
from rolegraph.serving.chat_bodies import Count, Name, RequestBody, at_most, no_longer
from rolegraph.serving.limits import NAME, NUMBER


def _check_temperature(value: float) -> float:
    limit = limits.TEMPERATURE.most
    if value and not 1 / limit <= value <= limit:
        raise ValueError(f"a temperature is 0, or between {1 / limit:g} and {limits.TEMPERATURE}")
    return value


Positive = Annotated[int, Field(ge=1), at_most(NUMBER)]
Seed = Annotated[int, at_most(limits.SEED)]
StopText = Annotated[str, no_longer(limits.STOP_TEXT)]
Temperature = Annotated[float, Field(ge=0, allow_inf_nan=False), AfterValidator(_check_temperature)]
Rate = Annotated[float, Field(allow_inf_nan=False), at_most(limits.RATE)]
Beta = Annotated[float, Field(ge=0, lt=1)]
TopK = Annotated[int, Field(ge=-1), at_most(NUMBER)]
"""-1 and 0 stand for all tokens."""
TopP = Annotated[float, Field(gt=0, le=1)]
Stop = (
    StopText
    | Annotated[list[StopText], Field(fail_fast=True), no_longer(limits.STOPS)]
    | Annotated[list[Count], Field(fail_fast=True), no_longer(limits.STOPS)]
)


def context_exceeded(size: str, context: int, param: str) -> RequestError:
    """Return the error, in OpenAI's words, for a prompt that exceeds the model's context.

    Args:
        size: Size of the prompt, in words.
        context: Tokens that the context holds.
        param: Field of the body with the prompt.
    """
    return RequestError(
        f"This model's maximum context length is {context} tokens, but the prompt has {size}, which leaves "
        f"no room for an answer; shorten {param}",
        param=param,
        code="context_length_exceeded",
    )


class TinkerBody(RequestBody):
    """A JSON body of the Tinker API."""

    ignored = frozenset({"type", "user_metadata", "tags", "sdk_version", "project_id", "display_name"})


class AdamSettings(TinkerBody):
    """Settings of one step of AdamW, with the SDK's defaults; a `grad_clip_norm` of 0 does not clip."""

    learning_rate: Rate = 1e-4
    beta1: Beta = 0.9
    beta2: Beta = 0.95
    eps: Annotated[Rate, Field(ge=0)] = 1e-12
    weight_decay: Rate = 0.0
    grad_clip_norm: Rate = 0.0


class SamplingFields(RequestBody):
    """Sampling parameters under the names that both APIs share; null stands for the default."""

    temperature: Temperature | None = None
    top_p: TopP | None = None
    top_k: TopK | None = None
    """vLLM's addition to OpenAI's API; None, -1 and 0 stand for all tokens."""
    seed: Seed | None = None
    stop: Stop | None = None
    prompt_field: ClassVar[str] = "prompt"

    @property
    def stop_texts(self) -> tuple[str, ...]:
        """The texts that end an answer."""
        stops = [self.stop] if isinstance(self.stop, str) else self.stop or []
        return tuple(stop for stop in stops if stop and isinstance(stop, str))

    def requests(
        self,
        prompt: Sequence[int],
        context: int,
        max_tokens: int | None,
        stop_ids: frozenset[int],
        *,
        count: int,
        first: int = 0,
        top: int = 0,
    ) -> list[SampleRequest]:
        """Return sequences to sample after one prompt.

        Args:
            prompt: The prompt's token ids.
            context: Tokens that the model's context holds.
            max_tokens: Largest number of tokens of an answer; None for as many as the context holds.
            stop_ids: Token ids that end an answer.
            count: The number of sequences.
            first: Number of the first sequence; sequences of one seed differ by their numbers.
            top: Number of likeliest tokens to return for each position of an answer.

        Raises:
            RequestError: The prompt leaves no room in the context.
        """
        tokens_left = context - len(prompt)
        if tokens_left < (max_tokens != 0):
            raise context_exceeded(f"{len(prompt)} tokens", context, self.prompt_field)
        seed = None if self.seed is None else self.seed % (limits.SEED.most + 1)
        return [
            SampleRequest(
                prompt,
                max_tokens=tokens_left if max_tokens is None else min(max_tokens, tokens_left),
                temperature=1.0 if self.temperature is None else self.temperature,
                top_p=self.top_p or 1.0,
                top_k=self.top_k or -1,
                seed=None if seed is None else (seed, number),
                stop_ids=stop_ids,
                stop_texts=self.stop_texts,
                top=top,
            )
            for number in range(first, first + count)
        ]


class CreateSessionBody(TinkerBody):
    """Body of create_session."""

    user_metadata: dict[str, Any] | None = None


class SessionBody(TinkerBody):
    """Body of session_heartbeat."""

    session_id: Name


class ModelBody(TinkerBody):
    """Body of get_info and unload_model."""

    model_id: Name


class FutureBody(TinkerBody):
    """Body of retrieve_future and cancel_future."""

    request_id: Name
    allow_metadata_only: bool = False
    """Permission to return a result's address instead of the result; this service always returns the
    result."""


class WeightsInfoBody(TinkerBody):
    """Body of weights_info."""

    tinker_path: Name


class TtlBody(TinkerBody):
    """Body of a checkpoint's ttl: seconds until the checkpoint is deleted; None to keep it."""

    ttl_seconds: int | None


class LoraBody(TinkerBody):
    """`lora_config` of create_model."""

    rank: Annotated[int, Field(ge=1), at_most(limits.RANK)]
    seed: Annotated[int, Field(ge=-(2**63), lt=2**64)] | None = None
    train_unembed: bool = True
    train_mlp: bool = True
    train_attn: bool = True

    @model_validator(mode="after")
    def _check_layers(self) -> LoraBody:
        if not (self.train_unembed or self.train_mlp or self.train_attn):
            raise ValueError("nothing to train: train_attn, train_mlp and train_unembed are all false")
        return self

    @property
    def shape(self) -> LoraShape:
        """The requested shape of an adapter."""
        return LoraShape(**self.model_dump(include=set(LoraBody.model_fields)))


class OptimizerBody(TinkerBody):
    """`optimizer_config` of create_model."""

    type: Literal["adamw"]


class CreateModelBody(SessionBody):
    """Body of create_model."""

    model_seq_id: Count
    base_model: Name
    lora_config: LoraBody
    optimizer_config: OptimizerBody | None = None


class OptimStepBody(ModelBody):
    """Body of optim_step."""

    seq_id: Count | None = None
    adam_params: AdamSettings


def _check_metadata(metadata: dict[str, str]) -> dict[str, str]:
    if sum(len(name) + len(value) for name, value in metadata.items()) > limits.METADATA.most:
        raise ValueError(limits.METADATA.exceeded("has"))
    return metadata


class SaveBody(ModelBody):
    """Body of save_weights, save_weights_for_sampler and save_weights_external."""

    path: Name | None = None
    seq_id: Count | None = None
    sampling_session_seq_id: Count | None = None
    ttl_seconds: int | None = None
    overwrite: bool = False
    """Permission to replace a checkpoint, for save_weights only; the other kinds always replace one of the
    same name."""
    kind: Literal["snapshot"] = "snapshot"
    """Kind of an unnamed checkpoint, for save_weights_for_sampler only."""
    user_metadata: Annotated[dict[str, str], AfterValidator(_check_metadata)] | None = None


class LoadBody(TinkerBody):
    """Body of load_weights: into a model (`model_id`), or a new one (`session_id` and `model_seq_id`)."""

    path: Name
    base_model: Name | None = None
    optimizer: bool = False
    model_id: Name | None = None
    seq_id: Count | None = None
    session_id: Name | None = None
    model_seq_id: Count | None = None
    optimizer_config: OptimizerBody | None = None


class SamplingSessionBody(SessionBody):
    """Body of create_sampling_session."""

    sampling_session_seq_id: Count
    base_model: Name | None = None
    model_path: Name | None = None


class _PromptChunk(BaseModel):
    # A prompt may have a hundred thousand chunks, so no Python validator is called for each.
    model_config = ConfigDict(extra="ignore", strict=True)

    type: Annotated[str, Field(max_length=NAME.most)] = "encoded_text"
    tokens: Annotated[list[int], Field(fail_fast=True)] = []


class _ModelInput(TinkerBody):
    chunks: Annotated[list[_PromptChunk], Field(fail_fast=True)]


class _SamplingParams(TinkerBody, SamplingFields):
    max_tokens: Positive | None = None


class SampleBody(TinkerBody):
    """Body of asample."""

    prompt: _ModelInput
    sampling_params: _SamplingParams
    num_samples: Annotated[int, Field(ge=1), at_most(limits.SAMPLES)] = 1
    sampling_session_id: Name
    seq_id: Count | None = None
    prompt_logprobs: bool | None = None
    prompt_logprobs_last_n: Positive | None = None
    topk_prompt_logprobs: Annotated[int, Field(ge=0), at_most(limits.TOP)] = 0
    topk_sample_logprobs: Annotated[int, Field(ge=0), at_most(limits.TOP)] = 0

    def job(self, model: LocalModel, path: str | None, owner: str) -> SampleJob:
        """Return the SampleJob of a request for `owner`, with the weights at `path` (None: the base model).

        Raises:
            RequestError: The prompt has other content than text, unknown tokens, or does not fit the context.
        """
        for chunk in self.prompt.chunks:
            if chunk.type != "encoded_text":
                raise RequestError(f"{chunk.type} in a prompt is not served here; only text is")
        prompt = [token for chunk in self.prompt.chunks for token in chunk.tokens]
        if not prompt or min(prompt) < 0 or max(prompt) >= model.vocabulary:
            raise RequestError("the prompt is empty, or has a token outside the vocabulary of the model")
        if (last_n := self.prompt_logprobs_last_n) and not (self.prompt_logprobs and last_n < len(prompt)):
            raise RequestError(
                f"prompt_logprobs_last_n is {last_n}: it needs prompt_logprobs, and a prompt of more tokens"
            )
        params = self.sampling_params
        # As the SDK's docstring has it, only an empty list lets an answer go on behind the model's end.
        other_ids = frozenset(stop for stop in params.stop or () if isinstance(stop, int))
        stop_ids = frozenset[int]() if params.stop == [] else model.end_ids | other_ids
        count, top = self.num_samples, min(self.topk_sample_logprobs, model.vocabulary)
        requests = params.requests(prompt, model.context, params.max_tokens, stop_ids, count=count, top=top)
        return SampleJob(
            path,
            requests,
            want_prompt_logprobs=bool(self.prompt_logprobs),
            prompt_top=min(self.topk_prompt_logprobs, model.vocabulary),
            owner=owner,
        )
