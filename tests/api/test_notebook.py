"""Tests that the notebook of the documentation runs, and that what it shows stays short."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="needs the extra `local`")
pytest.importorskip("pandas")
pytest.importorskip("ipykernel")
nbclient = pytest.importorskip("nbclient")
nbformat = pytest.importorskip("nbformat")

NOTEBOOK = Path(__file__).parents[2] / "docs" / "notebook.ipynb"
MOST = 5_000
"""Characters of an output at most, in any of its forms."""
pytestmark = pytest.mark.service


@pytest.fixture(scope="module")
def outputs(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    """Return the outputs of the notebook's cells, run in an empty folder without widgets."""
    folder = tmp_path_factory.mktemp("notebook")
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    resources = {"metadata": {"path": str(folder)}}
    nbclient.NotebookClient(notebook, timeout=900, resources=resources).execute()
    assert (folder / "curves.svg").read_text(encoding="utf-8").startswith("<svg")
    return [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]


def forms(outputs: list[Any], kind: str) -> list[str]:
    return [it.data[kind] for it in outputs if kind in it.get("data", {})]


def test_no_output_is_long(outputs: list[Any]) -> None:
    lengths = [len(text) for it in outputs for text in [*it.get("data", {}).values(), it.get("text", "")]]
    assert lengths and max(lengths) <= MOST


def test_the_cells_show_tables_curves_and_bars_and_nothing_on_standard_error(outputs: list[Any]) -> None:
    tables = forms(outputs, "text/html")
    assert sum("dataframe" in table for table in tables) >= 5
    assert any("<img" in table and "validation/correct" in table for table in tables), "the training's curve"
    assert any("polyline" in drawing for drawing in forms(outputs, "image/svg+xml"))
    bars = [table for table in tables if "<progress" in table]
    assert any('max="12" value="12"' in bar for bar in bars), "all episodes of the run are counted"
    assert any('max="2" value="2"' in bar for bar in bars), "all steps of the training are counted"
    assert not [it.text for it in outputs if it.get("name") == "stderr"]
