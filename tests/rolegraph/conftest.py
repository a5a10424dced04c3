"""What a test of the door makes known is known to no other test."""

from __future__ import annotations

import pytest

from tests.cli.conftest import rolegraph as rolegraph


@pytest.fixture(autouse=True)
def _forgotten(registries: None) -> None: ...
