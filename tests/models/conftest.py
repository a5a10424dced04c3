"""Fixtures for all tests of models."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def no_keys(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Remove this machine's keys and URLs from the tests' environment."""
    for variable in ("OPENAI_API_KEY", "OPENAI_BASE_URL", "OPENAI_CUSTOM_HEADERS"):
        monkeypatch.delenv(variable, raising=False)
    for variable in ("VLLM_API_KEY", "VLLM_BASE_URL", "SGLANG_API_KEY", "SGLANG_BASE_URL"):
        monkeypatch.delenv(variable, raising=False)
    for variable in ("TINKER_API_KEY", "TINKER_BASE_URL", "TINKER_CREDENTIAL_CMD"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
