"""What a test of the door makes known is known to no other test."""

from __future__ import annotations

import pytest

from engine.vocabulary import datasets, estimators, metrics, parsers, rewards


@pytest.fixture(autouse=True)
def registries(monkeypatch: pytest.MonkeyPatch) -> None:
    for registry in (rewards, parsers, estimators, metrics, datasets):
        for table in ("_factories", "_definitions", "_adapters"):
            monkeypatch.setattr(registry, table, dict(getattr(registry, table)))
