"""Decoding of requests: Adam's settings, dense and sparse tensors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

pytest.importorskip("torch", reason="needs the extra `local`")
tinker = pytest.importorskip("tinker")

import torch  # noqa: E402

from rolegraph.local.service.bodies import OptimStepBody  # noqa: E402
from rolegraph.local.service.errors import RequestError  # noqa: E402
from rolegraph.local.service.wire import TrainRequest, public  # noqa: E402


def test_what_a_client_leaves_out_of_adam_is_the_sdk_s_default() -> None:
    body = OptimStepBody.model_validate({"model_id": "m", "adam_params": {"learning_rate": 0.1}})
    assert body.adam_params is not None
    assert body.adam_params.model_dump() == tinker.AdamParams(learning_rate=0.1).model_dump()


def test_a_setting_that_adam_does_not_have_is_refused() -> None:
    with pytest.raises(ValidationError, match="beta3"):
        OptimStepBody.model_validate({"model_id": "m", "adam_params": {"beta3": 0.1}})


def weights_of(tensor: public.Tensor) -> Any:
    """Return the weights that the service decodes from a datum with a tensor."""
    message = public.ForwardBackwardRequest(model_id="m", loss_fn="cross_entropy")
    message.data.add().loss_fn_inputs["weights"].CopyFrom(tensor)
    return TrainRequest(message.SerializeToString()).data[0].inputs["weights"]


@given(st.data())
def test_a_sparse_tensor_is_the_dense_one_that_it_stands_for(data: st.DataObject) -> None:
    rows, columns = data.draw(st.integers(1, 6)), data.draw(st.integers(1, 6))
    values = data.draw(st.lists(st.sampled_from([0.0, 0.0, 1.5, -2.0]), min_size=36, max_size=36))
    dense = torch.tensor(values)[: rows * columns].reshape(rows, columns)
    csr = dense.to_sparse_csr()
    tensor = public.Tensor(dtype=public.DTYPE_FLOAT32, shape=[rows, columns])
    tensor.sparse_csr.values = csr.values().numpy().tobytes()
    tensor.sparse_csr.crow_indices = csr.crow_indices().numpy().tobytes()
    tensor.sparse_csr.col_indices = csr.col_indices().numpy().tobytes()
    assert torch.equal(weights_of(tensor), dense)


@pytest.mark.parametrize(
    ("shape", "ends", "at"),
    [
        ([2, 3], [0, 1], [0]),
        ([2, 3], [0, 2, 1], [0]),
        ([2, 3], [0, 1, 1], [3]),
        ([2, 3], [0, 1, 1], [-1]),
        ([2, 3], [0, 0, 1], []),
        ([2, 3], [0, 5, 5], [0]),
        ([3, 3], [0, 2**63 - 1, -2, 1], [0]),
        ([6], [0, 1], [0]),
        ([-1, -1], [], []),
    ],
)
def test_a_sparse_tensor_that_is_none_is_refused(shape: list[int], ends: list[int], at: list[int]) -> None:
    tensor = public.Tensor(dtype=public.DTYPE_FLOAT32, shape=shape)
    tensor.sparse_csr.values = np.ones(1, np.float32).tobytes()
    tensor.sparse_csr.crow_indices = np.array(ends, np.int64).tobytes()
    tensor.sparse_csr.col_indices = np.array(at, np.int64).tobytes()
    with pytest.raises(RequestError, match="datum 0: weights is no tensor of shape"):
        weights_of(tensor)


def test_a_dense_tensor_that_does_not_fill_its_shape_is_refused() -> None:
    tensor = public.Tensor(dtype=public.DTYPE_FLOAT32, shape=[3], dense=np.ones(2, np.float32).tobytes())
    with pytest.raises(RequestError, match=r"weights is no tensor of shape \[3\]"):
        weights_of(tensor)
