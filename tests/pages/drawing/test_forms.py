"""Tests of drawings in each format, with any text in the spec."""

from __future__ import annotations

import json
import re
from pathlib import Path
from xml.etree import ElementTree

from rolegraph.engine.compile import compile_file
from rolegraph.engine.spec import load_spec
from rolegraph.pages.drawing import Picture, picture_of
from rolegraph.pages.drawing.ink import PALETTE
from rolegraph.pages.drawing.mermaid import mermaid
from rolegraph.pages.drawing.svg import svg
from tests.documents import ROOT
from tests.edge import write_spec

HOSTILE = """task.question == '</text><script>alert(1)</script>"#&`|{}'"""


def shipped(name: str) -> Picture:
    return picture_of(load_spec(name).spec)


def texts(drawn: str) -> list[str]:
    return [element.text or "" for element in ElementTree.fromstring(drawn).iter() if "text" in element.tag]


def test_an_arrow_says_its_join_and_its_round() -> None:
    arrows = {(a.source, a.target): a for a in shipped("solver_verifier_loop").arrows}
    assert arrows["solver", "verifier"].label == "each"
    assert arrows["verifier", "solver"].label == "branch, previous round"
    assert arrows["verifier", "solver"].earlier
    assert not arrows["solver", "verifier"].earlier


def test_a_box_says_how_many_there_are_what_it_runs_and_when() -> None:
    malt = {box.name: box for box in shipped("malt").boxes}
    assert malt["refiner"].title == "refiner × 27"
    assert (malt["vote"].kind, [*malt["vote"].lines]) == ("tool", ["runs majority"])
    (agent,) = shipped("react").boxes
    assert "calls calculator, mcp" in agent.lines
    careful = next(box for box in shipped("router").boxes if box.name == "careful")
    assert 'when router.action == "hard"' in careful.lines


def test_policies_are_told_apart_by_colour_and_named() -> None:
    picture = shipped("router")
    assert picture.policies == ["main", "careful"]
    drawn = svg(picture)
    assert {"main", "careful"} <= {*texts(drawn)}
    assert all(colour in drawn and colour in mermaid(picture) for colour in PALETTE[:2])
    assert "main" not in texts(svg(shipped("debate")))


def test_a_loop_is_a_cluster_around_its_roles() -> None:
    picture = shipped("debate")
    assert 'subgraph l0["debate: 2 rounds"]\n    direction TB\n    r0["<b>debater × 3</b>' in mermaid(picture)
    assert "debate: 2 rounds" in texts(svg(picture))


def test_words_of_a_stranger_stay_words(tmp_path: Path) -> None:
    role = f"  one: {{prompt: a, when: {json.dumps(HOSTILE)}}}\n"
    plan = compile_file(
        write_spec(tmp_path, f"rolegraph: 2\nname: own\ndata: {{train: countdown}}\nroles:\n{role}")
    )
    picture = picture_of(plan.spec)
    (line,) = (line for line in picture.boxes[0].lines if line.startswith("when"))
    assert line in texts(svg(picture))
    assert "<script" not in svg(picture) + mermaid(picture)
    (node,) = re.findall(r"r0\(\"(.*)\"\)", mermaid(picture))
    assert not re.search(r'["`]|<(?!/?b>|br>)', node)


def test_the_picture_in_the_documents_is_what_is_drawn() -> None:
    text = (ROOT / "docs" / "command" / "write.md").read_text("utf-8")
    assert f"```mermaid\n{mermaid(shipped('solver_verifier_loop'))}```" in text
