"""Requests and results of the Tinker API for SDK 0.24 to 0.38: JSON, and protobuf for large ones.

Pure functions and models. A request that does not fit raises pydantic's ValidationError or `RequestError`.
"""

# torch leaves parts of its types unknown.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from math import prod
from typing import Annotated, Any, Literal

import numpy as np
import torch
from pydantic import AfterValidator, BaseModel, ConfigDict, Field
from torch import Tensor

from rolegraph.engine.errors import first_line
from rolegraph.engine.limits import service as limits
from rolegraph.engine.local.service.batcher import SampleJob
from rolegraph.engine.local.service.bodies import (
    AdamSettings,
    Count,
    Name,
    Positive,
    SamplingFields,
    TinkerBody,
    at_most,
)
from rolegraph.engine.local.service.checkpoints import SaveOptions
from rolegraph.engine.local.service.errors import RequestError
from rolegraph.engine.local.service.local_model import LocalModel, LoraShape, TopTokens
from rolegraph.engine.local.service.tinker_proto import public
from rolegraph.engine.local.service.trainer import Datum

_NUMPY = {public.DTYPE_FLOAT32: np.float32, public.DTYPE_INT64: np.int64, public.DTYPE_INT32: np.int32}

NO_LOGPROB = -99999.0
"""Log-probability with which the SDK marks positions without likeliest tokens."""


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
    """Permission to answer with a result's address in place of the result, which this service never does."""


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

    @property
    def shape(self) -> LoraShape:
        """The requested shape of an adapter."""
        return LoraShape(**self.model_dump(include=set(LoraBody.model_fields)))


class OptimizerBody(TinkerBody):
    """`optimizer_config` of create_model."""

    type: Literal["adamw"]


class CreateModelBody(TinkerBody):
    """Body of create_model."""

    session_id: Name
    model_seq_id: Count
    base_model: Name
    lora_config: LoraBody
    optimizer_config: OptimizerBody | None = None


class OptimStepBody(TinkerBody):
    """Body of optim_step."""

    model_id: Name
    seq_id: Count | None = None
    adam_params: AdamSettings


def _check_metadata(metadata: dict[str, str]) -> dict[str, str]:
    if sum(len(name) + len(value) for name, value in metadata.items()) > limits.METADATA.most:
        raise ValueError(limits.METADATA.exceeded("has"))
    return metadata


class SaveBody(TinkerBody):
    """Body of save_weights, save_weights_for_sampler and save_weights_external."""

    model_id: Name
    path: Name | None = None
    seq_id: Count | None = None
    sampling_session_seq_id: Count | None = None
    ttl_seconds: int | None = None
    overwrite: bool = False
    """For save_weights only: the other kinds always replace a checkpoint of the same name."""
    kind: Literal["snapshot"] = "snapshot"
    """For save_weights_for_sampler only."""
    user_metadata: Annotated[dict[str, str], AfterValidator(_check_metadata)] | None = None

    def options(self) -> SaveOptions:
        """Return the options of the checkpoint; one without a name is not listed."""
        return SaveOptions(self.ttl_seconds, self.user_metadata, listed=self.path is not None)


class LoadBody(TinkerBody):
    """Body of load_weights: into a model (`model_id`), or a new one (`session_id` and `model_seq_id`)."""

    path: Name
    base_model: Name | None = None
    optimizer: bool = False
    model_id: Name | None = None
    seq_id: Count | None = None
    session_id: Name | None = None
    model_seq_id: Count | None = None


class SamplingSessionBody(TinkerBody):
    """Body of create_sampling_session."""

    session_id: Name
    sampling_session_seq_id: Count
    base_model: Name | None = None
    model_path: Name | None = None


class _PromptChunk(BaseModel):
    # A prompt may have a hundred thousand chunks, so no Python validator is called for each.
    model_config = ConfigDict(extra="ignore", strict=True)

    type: Annotated[str, Field(max_length=limits.NAME.most)] = "encoded_text"
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
    prompt_logprobs_last_n: Count | None = None
    topk_prompt_logprobs: Annotated[int, Field(ge=0), at_most(limits.TOP)] = 0

    def job(self, model: LocalModel, path: str | None, owner: str) -> SampleJob:
        """Return the job to sample for a client `owner` from a checkpoint path (None: the base model).

        Raises:
            RequestError: the prompt has other content than text, unknown tokens, or does not fit the context.
        """
        prompt = [token for chunk in self.prompt.chunks for token in _chunk_tokens(chunk)]
        if not prompt or min(prompt) < 0 or max(prompt) >= model.vocabulary:
            raise RequestError("the prompt is empty, or has a token that the model does not know")
        params = self.sampling_params
        stop_ids = (
            model.end_ids
            if params.stop is None
            else frozenset(stop for stop in params.stop if isinstance(stop, int))
        )
        requests = params.requests(
            prompt,
            model.context,
            max_tokens=params.max_tokens,
            stop_ids=stop_ids,
            count=self.num_samples,
        )
        return SampleJob(
            path,
            requests,
            want_prompt_logprobs=bool(self.prompt_logprobs),
            prompt_top=min(self.topk_prompt_logprobs, model.vocabulary),
            owner=owner,
        )


def _chunk_tokens(chunk: _PromptChunk) -> list[int]:
    if chunk.type != "encoded_text":
        raise RequestError(f"{chunk.type} in a prompt is not served here; only text is")
    return chunk.tokens


def sample_response(job: SampleJob, last_n: int | None) -> bytes:
    """Serialize a finished job as a SampleResponse.

    Args:
        job: the finished job.
        last_n: the number of the prompt's last tokens whose log-probabilities are returned; None for all.
    """
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
        top = message.topk_prompt_logprobs
        top.length, top.k = len(rows), job.prompt_top
        top.token_ids = np.asarray([ids for ids, _ in rows], np.int32).tobytes()
        top.logprobs = np.asarray([logprobs for _, logprobs in rows], np.float32).tobytes()
    return message.SerializeToString()


class TrainRequest:
    """A decoded ForwardBackwardRequest. Raises RequestError if it is malformed or too large."""

    def __init__(self, body: bytes) -> None:
        message = public.ForwardBackwardRequest()
        try:
            message.ParseFromString(body)
        except Exception as error:  # protobuf's DecodeError moves between its modules
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
        sparse = [
            prod(map(abs, tensor.shape))
            for datum in message.data
            for tensor in datum.loss_fn_inputs.values()
            if tensor.HasField("sparse_csr")
        ]
        if sum(sparse) > limits.TARGETS.most:
            raise RequestError(limits.TARGETS.exceeded("the sparse tensors together have"))
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
            return _dense(message.sparse_csr, _NUMPY[message.dtype], shape)
        values = torch.from_numpy(np.frombuffer(message.dense, _NUMPY[message.dtype]).copy())
        return values.reshape(shape) if shape else values
    except (ValueError, RuntimeError, IndexError, OverflowError) as error:
        raise RequestError(
            f"datum {position}: {name} is no tensor of shape {shape[:8]}: {first_line(error)}"
        ) from error


def _dense(message: public.SparseCsr, dtype: Any, shape: Sequence[int]) -> Tensor:
    """Return a compressed sparse row matrix as a dense tensor. Raises ValueError or IndexError."""
    rows, columns = shape
    values = np.frombuffer(message.values, dtype)
    row_ends, columns_of = (
        np.frombuffer(data, np.int64) for data in (message.crow_indices, message.col_indices)
    )
    if len(row_ends) != rows + 1 or row_ends[0] != 0 or not row_ends[-1] == len(columns_of) == len(values):
        raise ValueError("its indices do not fit its values")
    if (row_ends[1:] < row_ends[:-1]).any():  # differences that wrap around crash NumPy's repeat
        raise ValueError("its row ends decrease")
    if len(columns_of) and columns_of.min() < 0:
        raise IndexError("a column index below 0")
    dense = np.zeros((rows, columns), dtype)
    dense[np.repeat(np.arange(rows), np.diff(row_ends)), columns_of] = values
    return torch.from_numpy(dense)


def train_response(loss: float, logprobs: Sequence[Tensor]) -> bytes:
    """Serialize a loss, summed over tokens, and each datum's log-probabilities as a ForwardBackwardOutput."""
    message = public.ForwardBackwardOutput(loss_fn_output_type="ArrayRecord", metrics={"loss:sum": loss})
    # A record holds datums with the same number of targets at each token.
    for trailing, group in groupby(logprobs, key=lambda values: tuple(values.shape[1:])):
        values = [tensor.float().flatten() for tensor in group]
        flat = torch.cat(values).numpy()
        ends = np.cumsum([0, *map(len, values)], dtype=np.int64) * flat.itemsize
        record = message.loss_fn_outputs.add(type_tag="ArrayRecord", num_datums=len(values))
        field = record.fields["logprobs"]
        field.data, field.offsets, field.dtype = flat.tobytes(), ends.tobytes(), public.DTYPE_FLOAT32
        field.trailing_shape.extend(trailing)
    return message.SerializeToString()
