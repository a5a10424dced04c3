"""Fields that real servers take, with their ranges: a table for each, so that stand-ins refuse what they do.

vLLM 0.32: `entrypoints/openai/completion/protocol.py`, and `_verify_args` in `sampling_params.py`; unknown
fields are ignored. SGLang of November 2026: `GenerateReqInput`, and `verify` in `sampling_params.py`; an
unknown sampling parameter is refused. Tinker: the types of SDK 0.38, which TuFT's server takes as they are.
SkyRL of November 2026: `skyrl/tinker/api.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, StringConstraints, TypeAdapter, ValidationError, model_validator
from starlette.responses import JSONResponse, Response
from tinker import types

Fraction = Annotated[float, Field(ge=0, le=1)]
TopP = Annotated[float, Field(gt=0, le=1)]
Penalty = Annotated[float, Field(ge=-2, le=2)]
Token = Annotated[int, Field(ge=0)]
Seed = Annotated[int, Field(ge=-(2**63), lt=2**63)]
Nonempty = Annotated[str, Field(min_length=1)]
Ids = Annotated[list[Token], Field(min_length=1)]


class VLLMCompletion(BaseModel, extra="allow", strict=True):
    """Request to vLLM's `/v1/completions`."""

    model: str
    prompt: Ids
    logprobs: Annotated[int, Field(ge=-1, le=20)] | None = None
    """At most `--max-logprobs`."""
    max_tokens: Annotated[int, Field(ge=1)] = 16
    n: Annotated[int, Field(ge=1)] = 1
    seed: Seed | None = None
    stop: list[Nonempty] = []
    temperature: Annotated[float, Field(ge=0, le=2)] = 1.0
    top_p: TopP = 1.0
    top_k: Annotated[int, Field(ge=-1)] = 0
    min_p: Fraction = 0.0
    repetition_penalty: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1.0
    presence_penalty: Penalty = 0.0
    frequency_penalty: Penalty = 0.0
    stop_token_ids: list[int] = []
    skip_special_tokens: bool = True
    return_token_ids: bool = False
    return_tokens_as_token_ids: bool = False
    cache_salt: Annotated[str, StringConstraints(pattern=r"^[^@/\\\\]{1,128}$")] | None = None


class SGLangSampling(BaseModel, extra="forbid", strict=True):
    """`sampling_params` of a request to SGLang's `/generate`."""

    max_new_tokens: Annotated[int, Field(ge=0)] = 128
    stop: list[str] = []
    stop_token_ids: list[int] = []
    temperature: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 1.0
    top_p: TopP = 1.0
    top_k: Annotated[int, Field(ge=-1)] = -1
    min_p: Fraction = 0.0
    frequency_penalty: Penalty = 0.0
    presence_penalty: Penalty = 0.0
    repetition_penalty: Annotated[float, Field(gt=0, le=2)] = 1.0
    skip_special_tokens: bool = True
    sampling_seed: Seed | None = None


class SGLangGenerate(BaseModel, strict=True):
    """Request to SGLang's `/generate`."""

    input_ids: Ids
    sampling_params: SGLangSampling
    return_logprob: bool = False
    logprob_start_len: int = -1
    top_logprobs_num: Annotated[int, Field(ge=0)] = 0
    lora_path: str | None = None
    extra_key: str | None = None


def check_context(tokens: int, limit: int, context: int) -> str | None:
    """Return vLLM's refusal of a prompt and an answer that exceed the context; None where they fit."""
    if tokens + limit <= context:
        return None
    return (
        f"This model's maximum context length is {context} tokens. However, you requested {limit} output "
        f"tokens and your prompt contains {tokens} input tokens, for a total of {tokens + limit} tokens. "
        "Please reduce the length of the input prompt or the number of requested output tokens."
    )


_Name = Annotated[str, StringConstraints(pattern=r"^[a-zA-Z0-9_-]+$", max_length=255)]


class SkyRLSampling(BaseModel):
    """`sampling_params` of a request to sample."""

    max_tokens: Annotated[int, Field(gt=0)]
    seed: int | None = None
    stop: list[int] | list[str] | None = None
    temperature: float = 1
    top_k: int = -1
    top_p: float = 1


class SkyRLSample(BaseModel):
    """Request to sample."""

    num_samples: int = 1
    sampling_params: SkyRLSampling
    base_model: str | None = None
    model_path: str | None = None
    sampling_session_id: str | None = None
    seq_id: int | None = None
    topk_prompt_logprobs: Annotated[int, Field(ge=0)] = 0

    @model_validator(mode="after")
    def _has_one_source(self) -> SkyRLSample:
        if self.sampling_session_id is not None:
            if self.seq_id is None:
                raise ValueError("'seq_id' must be provided when 'sampling_session_id' is used")
        elif (self.base_model is None) == (self.model_path is None):
            raise ValueError("exactly one of 'base_model' or 'model_path' must be provided")
        return self


class SkyRLAdam(BaseModel):
    """Settings of an update."""

    learning_rate: Annotated[float, Field(ge=0)] = 1e-4
    beta1: Annotated[float, Field(ge=0, lt=1)] = 0.9
    beta2: Annotated[float, Field(ge=0, lt=1)] = 0.95
    eps: Annotated[float, Field(gt=0)] = 1e-12
    weight_decay: Annotated[float, Field(ge=0)] = 0.0


class SkyRLUpdate(BaseModel):
    """Request for an update."""

    model_id: str
    adam_params: SkyRLAdam
    seq_id: int | None = None


class SkyRLSave(BaseModel):
    """Request to save weights."""

    model_id: str
    path: _Name
    seq_id: int | None = None


class SkyRLSaveForSampler(BaseModel):
    """Request to save weights to sample from."""

    model_id: str
    path: _Name | None = None
    sampling_session_seq_id: int | None = None
    seq_id: int | None = None

    @model_validator(mode="after")
    def _has_a_place(self) -> SkyRLSaveForSampler:
        if not self.path and (self.sampling_session_seq_id is None or self.seq_id is None):
            raise ValueError("Either 'path' or both 'sampling_session_seq_id' and 'seq_id' must be provided")
        return self


class SkyRLLora(BaseModel):
    """`lora_config` of a new model."""

    rank: int
    seed: int | None = None


class SkyRLModel(BaseModel):
    """Request for a new model."""

    session_id: str
    base_model: str
    lora_config: SkyRLLora


Operation = Literal["asample", "optim_step", "save_weights", "save_weights_for_sampler", "create_model"]
TINKER: Mapping[Operation, Any] = {
    "asample": types.SampleRequest,
    "optim_step": types.OptimStepRequest,
    "save_weights": types.SaveWeightsRequest,
    "save_weights_for_sampler": types.SaveWeightsForSamplerRequest,
    "create_model": types.CreateModelRequest,
}
SKYRL: Mapping[Operation, Any] = {
    "asample": SkyRLSample,
    "optim_step": SkyRLUpdate,
    "save_weights": SkyRLSave,
    "save_weights_for_sampler": SkyRLSaveForSampler,
    "create_model": SkyRLModel,
}


def refusal_of(kind: Any, body: object) -> Response | None:
    """Return a server's refusal of a body that is no request of a kind; None for one that is taken."""
    try:
        TypeAdapter(kind).validate_python(body)
    except ValidationError as error:
        said = "; ".join(f"{'.'.join(map(str, it['loc']))}: {it['msg']}" for it in error.errors())
        return JSONResponse({"error": {"message": said, "type": "BadRequestError", "code": 400}}, 400)
    return None
