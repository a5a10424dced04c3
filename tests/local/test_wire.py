"""What comes over the wire is read as the SDK means it."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

pytest.importorskip("torch", reason="needs the extra `local`")
tinker = pytest.importorskip("tinker")

from engine.local.service.wire import OptimStepBody  # noqa: E402


def test_what_a_client_leaves_out_of_adam_is_the_sdk_s_default() -> None:
    body = OptimStepBody.model_validate({"model_id": "m", "adam_params": {"learning_rate": 0.1}})
    assert body.adam_params == tinker.AdamParams(learning_rate=0.1)


def test_a_setting_that_adam_does_not_have_is_refused() -> None:
    with pytest.raises(ValidationError, match="beta3"):
        OptimStepBody.model_validate({"model_id": "m", "adam_params": {"beta3": 0.1}})
