"""Tests of `rolegraph graph`, whose output format follows the file's suffix."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import networkx as nx
import pytest

import rolegraph as rg
from tests.cli.conftest import Command


def test_graph_prints_mermaid(rolegraph: Command) -> None:
    done = rolegraph("graph", "debate", "roles.debater.count=5")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("flowchart TD\n")
    assert "debater × 5" in done.stdout


@pytest.mark.parametrize(
    ("file", "begins"),
    [("g.mmd", "flowchart"), ("g.md", "```mermaid\n"), ("g.SVG", "<svg")],
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
    assert rolegraph("graph", "debate", "--format", "svg", "--out", "graph").returncode == 0
    assert (tmp_path / "graph").read_text().startswith("<svg")


@pytest.mark.parametrize("name", ["solver_judge", "debate"])
def test_networkx_reads_back_the_turns(rolegraph: Command, tmp_path: Path, name: str) -> None:
    printed = rolegraph("graph", name, "--format", "json")
    assert printed.returncode == 0, printed.stderr
    assert rolegraph("graph", name, "--out", "g.json").returncode == 0
    for text in (printed.stdout, (tmp_path / "g.json").read_text("utf-8")):
        graph, read = rg.load(name).graph, nx.node_link_graph(json.loads(text), edges="edges")
        assert {**read.nodes} == {**graph.nodes}
        assert {*read.edges} == {*graph.edges}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--out", "g.svq"), "g.svq has no ending of a drawing; did you mean .svg?"),
        (("--out", "g"), "g has no ending of a drawing; expected one of .svg, .png, .mmd, .md, .json"),
        (("--format", "png"), "a PNG cannot be printed; give --out FILE.png"),
    ],
)
def test_what_has_no_form_is_the_person_s_mistake(
    rolegraph: Command, words: tuple[str, ...], said: str
) -> None:
    done = rolegraph("graph", "debate", *words)
    assert (done.returncode, done.stderr) == (2, f"error: {said}\n")
