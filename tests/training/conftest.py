"""Fixtures of small trainings on a scripted service: a new one, and a finished one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from rolegraph.engine.models.tokenizer import load_tokenizer
from tests.models.edges import write_tokenizer
from tests.models.tinker_edge import tinker_service
from tests.training.edge import Training, Workflow


@pytest.fixture(scope="session")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tokenizer(tmp_path_factory.mktemp("tokenizer"))


@pytest.fixture
def workflow(tokenizer: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Workflow]:
    monkeypatch.setattr("rolegraph.engine.models.limit.FIRST_WAIT", 0.0)
    workflow = Workflow(load_tokenizer(tokenizer))
    with tinker_service(workflow, context=4096) as workflow.service:
        yield workflow


@pytest.fixture
def training(workflow: Workflow, tokenizer: Path, tmp_path: Path) -> Training:
    return Training(workflow, tokenizer, tmp_path / "run")


@pytest.fixture(scope="package")
def finished(tokenizer: Path, tmp_path_factory: pytest.TempPathFactory) -> Training:
    """Return a finished training that tests read and do not change."""
    workflow = Workflow(load_tokenizer(tokenizer))
    with tinker_service(workflow, context=4096) as workflow.service:
        training = Training(workflow, tokenizer, tmp_path_factory.mktemp("finished") / "run")
        training.run()
    return training
