"""Fixture of a training on a scripted service whose model writes calls of functions."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from rolegraph.engine.models.tokenizer import load_tokenizer
from tests.models.edges import write_tokenizer
from tests.models.tinker_edge import tinker_service
from tests.prompts.templates import HERMES
from tests.training.edge import Training, Workflow


@pytest.fixture
def training(tmp_path: Path) -> Iterator[Training]:
    """Return a training of a model with a token for each byte, so that no prompt is tokenized by chance."""
    template = HERMES.replace("<|im_start|>", "<|start|>").replace("<|im_end|>", "<|end|>")
    folder = write_tokenizer(tmp_path / "tokenizer", template)
    workflow = Workflow(load_tokenizer(folder))
    with tinker_service(workflow, context=400_000) as workflow.service:
        yield Training(workflow, folder, tmp_path / "trained")
