"""Tests that charts are well-formed SVG for any numbers and labels."""

from __future__ import annotations

import json
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rolegraph.engine.records.numbers import number
from rolegraph.pages.report.charts import (
    MOST_POINTS,
    ChartLine,
    ChartLink,
    Stroke,
    interval,
    line_chart,
    nice_ticks,
    ruler,
    scale,
    share_bar,
    share_ends,
    stack_chart,
)

NUMBERS = st.floats(allow_nan=False, allow_infinity=False, min_value=-1e12, max_value=1e12)
POINTS = st.lists(st.tuples(st.integers(0, 10_000).map(float), NUMBERS), max_size=20).map(sorted)


@given(label=st.text(), points=POINTS, stroke=st.sampled_from(Stroke))
def test_any_line_is_well_formed(label: str, points: list[tuple[float, float]], stroke: Stroke) -> None:
    band = [(step, value - 1, value + 1) for step, value in points]
    chart = ElementTree.fromstring(line_chart(label, [ChartLine(label, points, 1, stroke, band)]))
    assert len(json.loads(chart.attrib["data-hover"])) == len({step for step, _ in points})


@given(label=st.text(), points=POINTS.map(lambda points: [(step, abs(value)) for step, value in points]))
def test_any_stack_is_well_formed(label: str, points: list[tuple[float, float]]) -> None:
    ElementTree.fromstring(stack_chart(label, [(label, "good", points), ("b", "c0", points)]))


@given(NUMBERS, NUMBERS)
def test_ticks_cover_their_range_in_equal_round_steps(a: float, b: float) -> None:
    low, high = min(a, b), max(a, b)
    ticks = nice_ticks(low, high)
    slack = 1e-6 * (ticks[1] - ticks[0])
    assert ticks[0] <= low + slack
    assert ticks[-1] >= high - slack
    assert 2 <= len(ticks) <= 8


def test_ticks_are_the_numbers_a_person_would_choose() -> None:
    assert nice_ticks(0, 1, 4) == [0, 0.25, 0.5, 0.75, 1]
    assert nice_ticks(3, 27) == [0, 5, 10, 15, 20, 25, 30]


def test_the_parts_of_a_stack_stand_on_one_another() -> None:
    layers = [("a", "good", [(1.0, 0.5)]), ("b", "hard", [(1.0, 0.25)])]
    bars = ElementTree.fromstring(stack_chart("x", layers, whole=1.0)).findall("rect")
    tops, heights = ([float(bar.attrib[key].rstrip("%")) for bar in bars] for key in ("y", "height"))
    assert tops[1] + heights[1] == pytest.approx(tops[0], abs=0.2)
    assert heights[0] == pytest.approx(2 * heights[1], abs=0.2)


def test_a_very_long_line_is_drawn_by_means() -> None:
    points = [(float(step), 3.0) for step in range(100_000)]
    chart = ElementTree.fromstring(line_chart("x", [ChartLine("x", points)]))
    line = chart.find(".//polyline")
    assert line is not None
    assert len(line.attrib["points"].split()) <= MOST_POINTS


def test_one_point_is_a_dot() -> None:
    assert "<circle" in line_chart("x", [ChartLine("x", [(1.0, 2.0)])])


@given(href=st.text(), title=st.text())
def test_a_point_of_a_line_links_to_a_page(href: str, title: str) -> None:
    line = ChartLine("x", [(1.0, 0.2), (2.0, 0.4)], links=[ChartLink(2.0, 0.4, href, title)])
    chart = ElementTree.fromstring(line_chart("x", [line]))
    link, dot = chart.find("a"), chart.find("a/circle")
    assert link is not None and dot is not None
    assert "href" in link.attrib and dot.attrib["cx"] == "100.00%"


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0, "0"),
        (0.5, "0.500"),
        (12, "12"),
        (12.345, "12.3"),
        (1234.5, "1,234"),
        (4e-5, "4e-5"),
        (2e6, "2,000,000"),
    ],
)
def test_numbers_are_short(value: float, shown: str) -> None:
    assert number(value) == shown


def test_an_interval_of_one_value_is_drawn() -> None:
    drawn = interval(0.5, 0.5, 0.5, scale([0.5, 0.5]))
    assert [*ElementTree.fromstring(drawn)], "a mark"
    assert "nan" not in drawn and "inf" not in drawn


def test_intervals_and_their_ruler_have_one_scale_with_0_marked() -> None:
    axis = scale([0.0, -0.2, 0.1])
    drawn = ElementTree.fromstring(interval(-0.1, -0.2, 0.1, axis, "down"))
    (zero,) = (line for line in drawn.iter("line") if line.attrib["class"] == "zero")
    ticks = {tick.text: tick.attrib["x"] for tick in ElementTree.fromstring(ruler(axis)).iter("text")}
    assert zero.attrib["x1"] == ticks["0"]
    (circle,) = drawn.iter("circle")
    assert circle.attrib["cx"] == ticks["−0.1"]


def test_the_parts_of_a_bar_fill_it_in_order() -> None:
    bar = ElementTree.fromstring(share_bar("<groups>", [("good", 1), ("hard", 3), ("rest", 0)]))
    assert [part.attrib["x"] for part in bar] == ["0.00%", "25.00%", "100.00%"]
    assert [part.attrib["width"] for part in bar] == ["25.00%", "75.00%", "0.00%"]
    ElementTree.fromstring(share_bar("none", []))


def test_the_axis_of_a_share_runs_from_0_to_1() -> None:
    points = [(0.0, 0.42), (4.0, 0.58)]
    share = line_chart("correct", [ChartLine("correct", points)], ends=share_ends(v for _, v in points))
    ticks = [element.text for element in ElementTree.fromstring(share).iter() if element.tag == "text"]
    assert {"0", "1.00"} <= {*ticks}
    assert share_ends([0.2, 1.2]) is None
