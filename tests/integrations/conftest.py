"""The command in this process, and registries restored after each test."""

from __future__ import annotations

import pytest

from tests.cli.conftest import rolegraph as rolegraph


@pytest.fixture(autouse=True)
def _forgotten(registries: None) -> None: ...
