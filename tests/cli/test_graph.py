"""Tests of `rolegraph graph`, whose output format follows the file's suffix."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.cli.conftest import Command


def test_it_prints_mermaid(rolegraph: Command) -> None:
    done = rolegraph("graph", "debate", "roles.debater.count=5")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("flowchart TD\n")
    assert "debater × 5" in done.stdout


@pytest.mark.parametrize(
    ("file", "begins"),
    [("g.mmd", "flowchart"), ("g.md", "```mermaid\n"), ("g.dot", "digraph"), ("g.SVG", "<svg")],
)
def test_the_ending_says_the_form(rolegraph: Command, tmp_path: Path, file: str, begins: str) -> None:
    done = rolegraph("graph", "router", "--out", file)
    assert (done.returncode, done.stdout) == (0, f"{file}\n"), done.stderr
    assert (tmp_path / file).read_text("utf-8").startswith(begins)


def test_a_png_is_one(rolegraph: Command, tmp_path: Path) -> None:
    pytest.importorskip("resvg_py", reason="needs the extra `png`")
    assert rolegraph("graph", "malt", "--out", "g.png").returncode == 0
    assert (tmp_path / "g.png").read_bytes().startswith(b"\x89PNG")


def test_a_form_may_be_named(rolegraph: Command, tmp_path: Path) -> None:
    ElementTree.fromstring(rolegraph("graph", "debate", "--format", "svg").stdout)
    assert rolegraph("graph", "debate", "--format", "dot", "--out", "graph").returncode == 0
    assert (tmp_path / "graph").read_text().startswith("digraph")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--out", "g.svq"), "a graph has no form .svq; did you mean .svg?"),
        (("--out", "g"), "g has no ending for its form; give g.svg, or --format"),
        (("--format", "png"), "a PNG cannot be printed; give --out FILE.png"),
    ],
)
def test_what_has_no_form_is_the_person_s_mistake(
    rolegraph: Command, words: tuple[str, ...], said: str
) -> None:
    done = rolegraph("graph", "debate", *words)
    assert (done.returncode, done.stderr) == (2, f"error: {said}\n")
