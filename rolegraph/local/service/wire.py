"""Messages of the Tinker API in protobuf, for SDK 0.24 to 0.38: requests to train, and results.

Pure functions. A request that does not fit raises `RequestError`. The SDK takes longer to import than torch,
so only its message classes are imported, under their names in the SDK; an SDK that is imported later uses the
same classes.
"""

# torch leaves parts of its types unknown.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from itertools import groupby
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from rolegraph.engine.errors import first_line
from rolegraph.local import limits
from rolegraph.local.service.batcher import SampleJob
from rolegraph.local.service.errors import RequestError
from rolegraph.local.service.local_model import TopTokens
from rolegraph.local.service.trainer import Datum
from rolegraph.serving.limits import NAME

_NAME = "tinker.proto.tinker_public_pb2"

if TYPE_CHECKING:
    from tinker.proto import tinker_public_pb2 as public
elif _NAME in sys.modules:
    public = sys.modules[_NAME]
else:
    file = Path(find_spec("tinker").origin).parent / "proto" / "tinker_public_pb2.py"
    spec = spec_from_file_location(_NAME, file)
    public = sys.modules[_NAME] = module_from_spec(spec)
    spec.loader.exec_module(public)

_NUMPY = {public.DTYPE_FLOAT32: np.float32, public.DTYPE_INT64: np.int64, public.DTYPE_INT32: np.int32}

NO_LOGPROB = -99999.0
"""Log-probability with which the SDK marks a missing entry among the likeliest tokens."""


def sample_response(job: SampleJob, last_n: int | None) -> bytes:
    """Serialize a finished job as a SampleResponse.

    Args:
        job: The finished job.
        last_n: The number of the prompt's last tokens whose log-probabilities are returned; None for all.
    """
    message = public.SampleResponse()
    for request in job.requests:
        reason = public.STOP_REASON_STOP if request.reason == "stop" else public.STOP_REASON_LENGTH
        sequence = message.sequences.add(
            stop_reason=reason,
            tokens=np.asarray(request.tokens, np.int32).tobytes(),
            logprobs=np.asarray(request.logprobs, np.float32).tobytes(),
        )
        if request.top:
            _fill(sequence.topk_sampled_logprobs, request.top_tokens, request.top)
    skipped_tokens = 0 if last_n is None else max(0, len(job.requests[0].prompt) - last_n)
    if job.want_prompt_logprobs:
        values = np.asarray(job.prompt_logprobs, np.float32)
        values[:skipped_tokens] = np.nan
        message.prompt_logprobs = values.tobytes()
    if job.prompt_top:
        rows = [TopTokens([0] * job.prompt_top, [NO_LOGPROB] * job.prompt_top)] * max(1, skipped_tokens)
        rows += job.top_prompt[len(rows) - 1 :]
        _fill(message.topk_prompt_logprobs, rows, job.prompt_top)
    return message.SerializeToString()


def _fill(message: public.TopkLogprobs, rows: Sequence[TopTokens], count: int) -> None:
    """Write the `count` likeliest tokens of each position into `message`."""
    message.length, message.k = len(rows), count
    message.token_ids = np.asarray([ids for ids, _ in rows], np.int32).tobytes()
    message.logprobs = np.asarray([logprobs for _, logprobs in rows], np.float32).tobytes()


class TrainRequest:
    """A decoded ForwardBackwardRequest. Raises RequestError if it is malformed or too large."""

    def __init__(self, body: bytes) -> None:
        message = public.ForwardBackwardRequest()
        try:
            message.ParseFromString(body)
        except Exception as error:  # protobuf's DecodeError moves between its modules
            raise RequestError(f"not a ForwardBackwardRequest: {error}") from error
        self.model_id, self.seq_id = message.model_id[: NAME.most], message.seq_id
        self.loss, self.backward = message.loss_fn[: NAME.most], not message.forward_only
        self.config: dict[str, float] = dict(message.loss_fn_config)
        for name, value in message.loss_fn_config_v2.items():
            if value.HasField("text"):
                raise RequestError(f"the setting {name} is text, which no loss here takes")
            self.config[name] = value.number
        count = sum(1 + len(datum.model_input) + len(datum.loss_fn_inputs) for datum in message.data)
        if count > limits.PARTS.most:
            raise RequestError(limits.PARTS.exceeded(f"{len(message.data)} datums of {count:,} parts are"))
        sparse_sizes = [
            prod(map(abs, tensor.shape))
            for datum in message.data
            for tensor in datum.loss_fn_inputs.values()
            if tensor.HasField("sparse_csr")
        ]
        if sum(sparse_sizes) > limits.TARGETS.most:
            raise RequestError(limits.TARGETS.exceeded("the sparse tensors together have"))
        self.has_spans = any(datum.model_input_spans for datum in message.data)
        """True if datums name the samples that their tokens come from, which no loss here reads."""
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
            csr = message.sparse_csr
            rows, columns = (_values(data, np.int64) for data in (csr.crow_indices, csr.col_indices))
            values = _values(csr.values, _NUMPY[message.dtype])
            return torch.sparse_csr_tensor(rows, columns, values, shape, check_invariants=True).to_dense()
        values = _values(message.dense, _NUMPY[message.dtype])
        return values.reshape(shape) if shape else values
    except (ValueError, RuntimeError, IndexError, OverflowError) as error:
        raise RequestError(
            f"datum {position}: {name} is no tensor of shape {shape[:8]}: {first_line(error)}"
        ) from error


def _values(data: bytes, dtype: Any) -> Tensor:
    return torch.from_numpy(np.frombuffer(data, dtype).copy())


def train_response(loss: float, logprobs: Sequence[Tensor]) -> bytes:
    """Serialize a loss, summed over tokens, and each datum's log-probabilities as a ForwardBackwardOutput."""
    message = public.ForwardBackwardOutput(loss_fn_output_type="ArrayRecord", metrics={"loss:sum": loss})
    # A record holds datums with the same number of targets at each token.
    for trailing_shape, group in groupby(logprobs, key=lambda values: tuple(values.shape[1:])):
        values = [tensor.float().flatten() for tensor in group]
        flat_logprobs = torch.cat(values).numpy()
        ends = np.cumsum([0, *map(len, values)], dtype=np.int64) * flat_logprobs.itemsize
        record = message.loss_fn_outputs.add(type_tag="ArrayRecord", num_datums=len(values))
        field = record.fields["logprobs"]
        field.data, field.offsets, field.dtype = flat_logprobs.tobytes(), ends.tobytes(), public.DTYPE_FLOAT32
        field.trailing_shape.extend(trailing_shape)
    return message.SerializeToString()
