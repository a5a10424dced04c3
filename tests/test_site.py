"""Tests of the documentation site: its links, and the generated reference."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


def test_the_reference_is_what_the_models_say() -> None:
    """Generate the reference in a new process, which has no registrations of other tests."""
    write = "import runpy, sys; sys.stdout.write(runpy.run_path('docs/reference.py')['page']())"
    page = subprocess.run(
        [sys.executable, "-c", write], cwd=ROOT, capture_output=True, encoding="utf-8", check=True
    )
    assert page.stdout == (ROOT / "docs" / "reference.md").read_text("utf-8"), "run python docs/reference.py"


@pytest.mark.skipif(importlib.util.find_spec("mkdocs") is None, reason="needs the extra `docs`")
def test_no_link_of_the_site_leads_nowhere(tmp_path: Path) -> None:
    words = ("-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site"))
    built = subprocess.run([sys.executable, *words], cwd=ROOT, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
    assert (tmp_path / "site" / "tutorial.html").exists()
