"""Tests of the layout: nothing overlaps, loops enclose their roles, and arrows point down."""

from __future__ import annotations

from itertools import combinations, permutations
from xml.etree import ElementTree

from hypothesis import given

from rolegraph.engine.compile import Plan
from rolegraph.pages.drawing import picture_of
from rolegraph.pages.drawing.layout import WIDEST, Rect, lay_out
from rolegraph.pages.drawing.picture import Box, Picture
from rolegraph.pages.drawing.svg import svg
from tests.examples import examples
from tests.workflows import Workflow, compiled, workflows


def inside(a: Rect, b: Rect) -> bool:
    return b.x <= a.x and a.x + a.width <= b.x + b.width and b.y <= a.y and a.y + a.height <= b.y + b.height


def apart(a: Rect, b: Rect) -> bool:
    across = a.x + a.width <= b.x or b.x + b.width <= a.x
    return across or a.y + a.height <= b.y or b.y + b.height <= a.y


@examples(100)
@given(workflows())
def test_boxes_of_any_spec_lie_apart_inside_their_loops_and_below_what_they_need(workflow: Workflow) -> None:
    plan: Plan = compiled(workflow)
    picture = picture_of(plan.spec)
    layout = lay_out(picture)
    whole = Rect(-0.01, -0.01, layout.width + 0.02, layout.height + 0.02)
    assert {*layout.boxes} == {role.name for role in plan.roles}
    assert all(inside(rect, whole) for rect in (*layout.boxes.values(), *layout.clusters.values()))
    assert all(apart(a, b) for a, b in combinations(layout.boxes.values(), 2))
    outer = {cluster.name: cluster.outer for cluster in picture.clusters}
    for one, other in permutations(layout.clusters, 2):
        if outer[other] != one:
            is_right = inside if outer[one] == other else apart
            assert is_right(layout.clusters[one], layout.clusters[other])
    for box in picture.boxes:
        for name, rect in layout.clusters.items():
            is_inside = box.loop is not None and name in (box.loop, outer[box.loop])
            assert (inside if is_inside else apart)(layout.boxes[box.name], rect)
    for arrow in picture.arrows:
        if not arrow.earlier:
            source, target = layout.boxes[arrow.source], layout.boxes[arrow.target]
            assert source.y + source.height <= target.y
    ElementTree.fromstring(svg(picture))


def test_what_is_too_wide_goes_on_below() -> None:
    boxes = [Box(f"role_{number}", f"role_{number}", (), "trained", (0,)) for number in range(30)]
    layout = lay_out(Picture("wide", boxes, (), (), ("main",)))
    assert layout.width <= WIDEST
    assert len({rect.y for rect in layout.boxes.values()}) > 1
