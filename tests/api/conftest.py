"""Fixtures: registries restored after each test, and one training of each shipped spec."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

import rolegraph as rg
from rolegraph.local.launcher import LocalService
from tests.cli.conftest import rolegraph as rolegraph


@pytest.fixture(autouse=True)
def _forgotten(registries: None) -> None: ...


@pytest.fixture(scope="session")
def one_step(service: LocalService, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], rg.Run]:
    """Return a function that trains a shipped spec for one step, once per spec; its result is read-only."""
    from tests.api.test_specs import ALLOWED, SPECS, overrides
    from tests.trainings import STEP, train

    paths = {path.stem: path for path in SPECS}

    @cache
    def trained(spec: str) -> rg.Run:
        words = (*overrides(paths[spec]), *STEP, "sampling.max_tokens=24")
        folder: Path = tmp_path_factory.mktemp(spec) / "run"
        return train(folder, spec, *words, service=service, allow=ALLOWED)

    return trained
