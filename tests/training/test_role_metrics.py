"""Tests that one row declares a metric: its value, its place in the table and the report, and its docs."""

from __future__ import annotations

import pytest

from rolegraph.engine.training.analysis.role_metrics import POLICY_METRICS, ROLE_METRICS, StepMetric
from tests.documents import TRAINING


@pytest.mark.parametrize("metric", [*ROLE_METRICS, *POLICY_METRICS], ids=lambda metric: metric.name)
def test_the_pages_of_training_explain_a_metric(metric: StepMetric) -> None:
    text = "\n".join(page.read_text("utf-8") for page in TRAINING)
    name = metric.name.format("{role}")
    families = [f"{name[:end]}/*" for end, letter in enumerate(name) if letter == "/"]
    names = [name, name.removesuffix("/{role}"), *families]
    assert any(f"`{it}`" in text for it in names), f"docs/training lacks `{name}`"


def test_a_metric_that_decides_on_a_column_is_a_metric_of_the_table() -> None:
    names = [metric.name for metric in ROLE_METRICS]
    assert len({*names}) == len(names)
    assert {metric.rare for metric in ROLE_METRICS} - {""} <= {*names}


def test_a_metric_is_shown_somewhere() -> None:
    assert [
        it.name for it in (*ROLE_METRICS, *POLICY_METRICS) if not (it.column or it.chart or it.line)
    ] == []
