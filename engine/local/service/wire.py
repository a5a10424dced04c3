"""Requests and results of the Tinker API on the wire of SDK 0.38: JSON, and protobuf for the large ones.

Pure: bytes and dictionaries in, the service's own types out, and back. A request that does not fit raises
`RequestError`.
"""

# torch, peft and transformers leave parts of their types unknown.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Annotated, Any, Literal, Self

import numpy as np
import torch
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator
from torch import Tensor

from rolegraph.engine.errors import first_line
from rolegraph.engine.limits import service as limits
from rolegraph.engine.local.service.batcher import SampleJob
from rolegraph.engine.local.service.checkpoints import SaveOptions
from rolegraph.engine.local.service.fields import Count, Name, Seed, Stop, Temperature, TopK, at_most
from rolegraph.engine.local.service.messages import public
from rolegraph.engine.local.service.policy import LoraShape, TopTokens
from rolegraph.engine.local.service.sampling import SampleRequest
from rolegraph.engine.local.service.trainer import Datum, RequestError

_NUMPY = {public.DTYPE_FLOAT32: np.float32, public.DTYPE_INT64: np.int64, public.DTYPE_INT32: np.int32}

NO_LOGPROB = -99999.0
"""Where the SDK is to find no likeliest token."""


_LABELS = {"type", "user_metadata", "tags", "sdk_version", "project_id", "display_name"}
"""What the SDK says of a request, of which nothing in the answer depends."""


class _Body(BaseModel):
    """What the SDK sends. A field of a newer one may be there, where it asks for nothing."""

    model_config = ConfigDict(extra="allow", strict=True, protected_namespaces=())

    @model_validator(mode="after")
    def _served(self) -> Self:
        asked = [name for name, value in (self.model_extra or {}).items() if value and name not in _LABELS]
        if asked:
            raise ValueError(f"{asked[0][:40]} is not served here")
        return self


class SessionStart(_Body):
    """create_session."""

    user_metadata: dict[str, Any] | None = None


class OneSession(_Body):
    """session_heartbeat."""

    session_id: Name


class OneModel(_Body):
    """get_info and unload_model."""

    model_id: Name


class OneRequest(_Body):
    """retrieve_future and cancel_future."""

    request_id: Name
    allow_metadata_only: bool = False
    """Whether an answer may say that a result lies elsewhere, which none here does."""


class OnePath(_Body):
    """weights_info."""

    tinker_path: Name


class LoraBody(_Body):
    """`lora_config` of create_model."""

    rank: Annotated[int, Field(ge=1), at_most(limits.RANK)]
    seed: Annotated[int, Field(ge=-(2**63), lt=2**64)] | None = None
    train_unembed: bool = True
    train_mlp: bool = True
    train_attn: bool = True

    def shape(self) -> LoraShape:
        """The adapter it asks for."""
        return LoraShape(
            self.rank,
            train_attn=self.train_attn,
            train_mlp=self.train_mlp,
            train_unembed=self.train_unembed,
            seed=self.seed,
        )


class OptimizerBody(_Body):
    """`optimizer_config` of create_model."""

    type: Name


class CreateModelBody(_Body):
    """create_model."""

    session_id: Name
    model_seq_id: Count
    base_model: Name
    lora_config: LoraBody | None = None
    optimizer_config: OptimizerBody | None = None


def _adam(value: object) -> object:
    if value is None:
        return None
    from tinker import AdamParams  # takes seconds to import, and only training needs it

    adam = AdamParams.model_validate(value)
    for name, number in adam.model_dump().items():
        if isinstance(number, float) and not abs(number) <= limits.RATE.most:
            raise ValueError(f"{name} is no number, or beyond {limits.RATE.most:g} ({limits.RATE.label})")
    for name in ("beta1", "beta2"):
        if not 0 <= getattr(adam, name) < 1:
            raise ValueError(f"{name} is {getattr(adam, name):g}; expected a number from 0 to below 1")
    if adam.eps < 0:
        raise ValueError(f"eps is {adam.eps:g}; expected no number below 0")
    return adam


def _brief(metadata: dict[str, str]) -> dict[str, str]:
    if sum(len(name) + len(value) for name, value in metadata.items()) > limits.METADATA.most:
        raise ValueError(limits.METADATA.exceeded("has"))
    return metadata


class OptimStepBody(_Body):
    """optim_step; `adam_params` are tinker's AdamParams, None for another optimizer's step."""

    model_id: Name
    seq_id: Count | None = None
    adam_params: Annotated[Any, BeforeValidator(_adam)] = None
    optimizer_params: Any = None
    """Another optimizer's settings."""


class SaveBody(_Body):
    """save_weights, save_weights_for_sampler and save_weights_external."""

    model_id: Name
    path: Name | None = None
    seq_id: Count | None = None
    sampling_session_seq_id: Count | None = None
    ttl_seconds: int | None = None
    overwrite: bool = False
    """Of save_weights; the others replace what has their name."""
    kind: Name = "snapshot"
    """Of save_weights_for_sampler."""
    user_metadata: Annotated[dict[str, str], AfterValidator(_brief)] | None = None
    age_encryption_recipients: list[str] | None = None

    def terms(self) -> SaveOptions:
        """What it asks besides the weights."""
        return SaveOptions(
            self.ttl_seconds,
            self.user_metadata,
            listed=self.path is not None,
            recipients=tuple(self.age_encryption_recipients or ()),
        )


class LoadBody(_Body):
    """load_weights: onto a model (`model_id`), or into a new one (`session_id` and `model_seq_id`)."""

    path: Name
    base_model: Name | None = None
    optimizer: bool = False
    model_id: Name | None = None
    seq_id: Count | None = None
    session_id: Name | None = None
    model_seq_id: Count | None = None


class SessionBody(_Body):
    """create_sampling_session."""

    session_id: Name
    sampling_session_seq_id: Count
    base_model: Name | None = None
    model_path: Name | None = None


class _Chunk(BaseModel):
    # There may be a hundred thousand: no function of Python's is called for each.
    model_config = ConfigDict(extra="ignore", strict=True)

    type: Annotated[str, Field(max_length=limits.NAME.most)] = "encoded_text"
    tokens: Annotated[list[int], Field(fail_fast=True)] = []


class _Prompt(_Body):
    chunks: Annotated[list[_Chunk], Field(fail_fast=True)]


class _Params(_Body):
    max_tokens: Annotated[int, Field(ge=1), at_most(limits.NUMBER)] | None = None
    seed: Seed | None = None
    stop: Stop | None = None
    temperature: Temperature = 1.0
    top_k: TopK = -1
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0


class SampleBody(_Body):
    """asample."""

    prompt: _Prompt
    sampling_params: _Params
    num_samples: Annotated[int, Field(ge=1), at_most(limits.SAMPLES)] = 1
    sampling_session_id: Name | None = None
    seq_id: Count | None = None
    prompt_logprobs: bool | None = None
    prompt_logprobs_last_n: Count | None = None
    topk_prompt_logprobs: Annotated[int, Field(ge=0), at_most(limits.TOP)] = 0
    topk_sample_logprobs: int = 0
    prompt_alt_tokens_k: int = 0
    target_prompt_logprobs: Any = None
    record_stability_info: bool | None = None

    def sample_requests(
        self, *, context: int, vocabulary: int, end_ids: frozenset[int]
    ) -> list[SampleRequest]:
        """The sequences it asks for; raises Refused."""
        unserved = (
            "topk_sample_logprobs",
            "prompt_alt_tokens_k",
            "target_prompt_logprobs",
            "record_stability_info",
        )
        for name in unserved:
            if getattr(self, name):
                raise RequestError(f"{name} is not served here")
        prompt = [token for chunk in self.prompt.chunks for token in _tokens(chunk)]
        if not prompt or min(prompt) < 0 or max(prompt) >= vocabulary:
            raise RequestError("the prompt is empty, or has a token that the model does not know")
        room = context - len(prompt)
        if room < 1:
            raise RequestError(
                f"the prompt has {len(prompt)} tokens; the model's context holds {context} with the answer"
            )
        params = self.sampling_params
        stop = params.stop
        texts = (stop,) if isinstance(stop, str) else tuple(s for s in stop or () if isinstance(s, str))
        ids = end_ids if stop is None else frozenset(s for s in stop if isinstance(s, int))
        return [
            SampleRequest(
                prompt,
                max_tokens=min(params.max_tokens or room, room),
                temperature=params.temperature,
                top_p=params.top_p,
                top_k=params.top_k,
                seed=None if params.seed is None else (params.seed % (limits.SEED.most + 1), number),
                stop_ids=ids,
                stop_texts=texts,
            )
            for number in range(self.num_samples)
        ]


def _tokens(chunk: _Chunk) -> list[int]:
    if chunk.type != "encoded_text":
        raise RequestError(f"{chunk.type} in a prompt is not served here; only text is")
    return chunk.tokens


def sample_response(job: SampleJob, last_n: int | None) -> bytes:
    """A SampleResponse."""
    message = public.SampleResponse()
    for request in job.requests:
        reason = public.STOP_REASON_STOP if request.reason == "stop" else public.STOP_REASON_LENGTH
        message.sequences.add(
            stop_reason=reason,
            tokens=np.asarray(request.tokens, np.int32).tobytes(),
            logprobs=np.asarray(request.logprobs, np.float32).tobytes(),
        )
    unscored = 0 if last_n is None else max(0, len(job.requests[0].prompt) - last_n)
    if job.want_prompt_logprobs:
        values = np.asarray(job.prompt_logprobs, np.float32)
        values[:unscored] = np.nan
        message.prompt_logprobs = values.tobytes()
    if job.prompt_top:
        rows = [TopTokens([0] * job.prompt_top, [NO_LOGPROB] * job.prompt_top)] * max(1, unscored)
        rows += job.top_prompt[len(rows) - 1 :]
        message.topk_prompt_logprobs.length, message.topk_prompt_logprobs.k = len(rows), job.prompt_top
        message.topk_prompt_logprobs.token_ids = np.asarray([ids for ids, _ in rows], np.int32).tobytes()
        message.topk_prompt_logprobs.logprobs = np.asarray([x for _, x in rows], np.float32).tobytes()
    return message.SerializeToString()


class TrainRequest:
    """A ForwardBackwardRequest, decoded."""

    def __init__(self, body: bytes) -> None:
        message = public.ForwardBackwardRequest()
        try:
            message.ParseFromString(body)
        except Exception as error:  # protobuf's own DecodeError has no stable home
            raise RequestError(f"not a ForwardBackwardRequest: {error}") from error
        self.model_id, self.seq_id = message.model_id[: limits.NAME.most], message.seq_id
        self.loss, self.backward = message.loss_fn[: limits.NAME.most], not message.forward_only
        self.config: dict[str, float] = dict(message.loss_fn_config)
        for name, value in message.loss_fn_config_v2.items():
            if value.HasField("text"):
                raise RequestError(f"the setting {name} is text, which no loss here takes")
            self.config[name] = value.number
        parts = sum(1 + len(datum.model_input) + len(datum.loss_fn_inputs) for datum in message.data)
        if parts > limits.PARTS.most:
            raise RequestError(limits.PARTS.exceeded(f"{len(message.data)} datums of {parts:,} parts are"))
        self.data = [_datum(position, datum) for position, datum in enumerate(message.data)]


def _datum(position: int, message: public.Datum) -> Datum:
    tokens: list[int] = []
    for chunk in message.model_input:
        if not chunk.HasField("encoded_text"):
            raise RequestError(f"datum {position} has an input that is not text, which is not served here")
        try:
            tokens += np.frombuffer(chunk.encoded_text.tokens, np.int32).tolist()
        except ValueError as error:
            raise RequestError(f"datum {position}: its tokens are no whole number of int32") from error
    inputs = {name: _tensor(position, name, tensor) for name, tensor in message.loss_fn_inputs.items()}
    return Datum(tokens, inputs)


def _tensor(position: int, name: str, message: public.Tensor) -> Tensor:
    if message.dtype not in _NUMPY:
        raise RequestError(f"datum {position}: {name} must be a tensor of float32 or int64")
    shape = list(message.shape)
    try:
        if message.HasField("sparse_csr"):
            return _densified(message.sparse_csr, _NUMPY[message.dtype], shape)
        values = torch.from_numpy(np.frombuffer(message.dense, _NUMPY[message.dtype]).copy())
        return values.reshape(shape) if shape else values
    except (ValueError, RuntimeError, IndexError, OverflowError) as error:
        raise RequestError(
            f"datum {position}: {name} is no tensor of shape {shape[:8]}: {first_line(error)}"
        ) from error


def _densified(message: public.SparseCsr, dtype: Any, shape: Sequence[int]) -> Tensor:
    """A matrix of which only some values were sent, the others being 0. Raises ValueError or IndexError."""
    rows, columns = shape
    if not 0 <= rows * columns <= limits.TARGETS.most:
        raise ValueError(limits.TARGETS.exceeded("it has"))
    values = np.frombuffer(message.values, dtype)
    ends, at = (np.frombuffer(data, np.int64) for data in (message.crow_indices, message.col_indices))
    if len(ends) != rows + 1 or ends[0] != 0 or ends[-1] != len(values) or len(at) != len(values):
        raise ValueError("its indices do not fit its values")
    if len(at) and at.min() < 0:
        raise IndexError("a column below 0")
    dense = np.zeros((rows, columns), dtype)
    dense[np.repeat(np.arange(rows), np.diff(ends)), at] = values
    return torch.from_numpy(dense)


def train_response(loss: float, logprobs: Sequence[Tensor]) -> bytes:
    """A ForwardBackwardOutput: the loss summed over tokens, and each datum's log-probabilities."""
    message = public.ForwardBackwardOutput(loss_fn_output_type="ArrayRecord", metrics={"loss:sum": loss})
    # A record holds datums that have equally many targets at a token.
    for trailing, group in groupby(logprobs, key=lambda values: tuple(values.shape[1:])):
        values = [one.float().flatten() for one in group]
        flat = torch.cat(values).numpy()
        ends = np.cumsum([0, *map(len, values)], dtype=np.int64) * flat.itemsize
        record = message.loss_fn_outputs.add(type_tag="ArrayRecord", num_datums=len(values))
        record.fields["logprobs"].data = flat.tobytes()
        record.fields["logprobs"].offsets = ends.tobytes()
        record.fields["logprobs"].dtype = public.DTYPE_FLOAT32
        record.fields["logprobs"].trailing_shape.extend(trailing)
    return message.SerializeToString()


Category = Literal["user", "server"]


def failure(message: str, category: Category) -> Mapping[str, str]:
    """An operation that was taken on and failed."""
    return {"error": message, "category": category}
