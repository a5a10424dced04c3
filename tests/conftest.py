"""What several rooms' tests need of the machine: a local service, and a small training on it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from engine.local.launcher import Running


@pytest.fixture(scope="session")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """The shipped model, served for all tests of a process."""
    pytest.importorskip("torch", reason="needs the extra `local`")
    from engine.local.launcher import BASE_MODEL, running

    with running(BASE_MODEL, state_dir=tmp_path_factory.mktemp("weights"), threads=1) as found:
        yield found


@pytest.fixture(scope="session")
def whole(service: Running, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small training that was not interrupted."""
    from tests.trainings import SMALL, train

    return train(tmp_path_factory.mktemp("whole") / "run", "solver_judge", *SMALL, service=service).folder
