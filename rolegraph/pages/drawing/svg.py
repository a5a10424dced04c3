"""Pictures as standalone SVG: readable on white and on black, without a font or the network.

Reports include the SVG in their page, so every rule of its style is for `svg.flow` only.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path

from rolegraph.pages.drawing.ink import INK, PALETTE, document, text
from rolegraph.pages.drawing.layout import (
    HEAD,
    LABEL_CHAR,
    LINE_HEIGHT,
    PAD,
    TITLE_HEIGHT,
    GraphLayout,
    Point,
    Rect,
    lay_out,
)
from rolegraph.pages.drawing.picture import Arrow, Box, Picture

_MARGIN = 16.0
_LEGEND = 26.0
_CSS = Path(__file__).with_name("flow.css")
_TIP = (
    '<defs><marker id="flow-tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" '
    'orient="auto-start-reverse"><path class="tip" d="M0 0 8 4 0 8z"/></marker></defs>'
)
"""SVG definition of the tip of an arrow."""


def svg(picture: Picture) -> str:
    """Return a picture as an SVG document."""
    layout = lay_out(picture)
    has_several = len(picture.policies) > 1
    head = _LEGEND if has_several else 0.0
    legend_entries, keys_width = _legend(picture) if has_several else ("", 0.0)
    width = max(layout.width, keys_width) + 2 * _MARGIN
    height = layout.height + head + 2 * _MARGIN
    legend = f'<g transform="translate({_MARGIN:g} {_MARGIN:g})">{legend_entries}</g>'
    drawing = [f'<g transform="translate({_MARGIN:g} {_MARGIN + head:g})">', *_drawn(picture, layout), "</g>"]
    title = f"The roles of {picture.name}"
    return document(title, width, height, _CSS, [_TIP, legend, *drawing], ' class="flow"')


def _drawn(picture: Picture, layout: GraphLayout) -> Iterator[str]:
    """Yield the SVG elements of a picture from back to front: loops, arrows, boxes, labels of arrows."""
    for cluster in sorted(picture.clusters, key=lambda cluster: cluster.outer is not None):
        rect = layout.clusters[cluster.name]
        yield f'<rect class="loop" {_place(rect)} rx="12"/>'
        yield f'<text x="{rect.x + 12:.1f}" y="{rect.y + HEAD - 5:.1f}">{text(cluster.label)}</text>'
    labels: list[str] = []
    for arrow in picture.arrows:
        path, label = (_back if arrow.earlier else _way)(arrow, layout)
        back_class = " back" if arrow.earlier else ""
        yield f'<path class="way{back_class}" marker-end="url(#flow-tip)" d="{path}"/>'
        if arrow.label:
            anchor = "" if arrow.earlier else " mid"
            labels.append(
                f'<text class="label{anchor}" x="{label.x:.1f}" y="{label.y:.1f}">{text(arrow.label)}</text>'
            )
    for box in picture.boxes:
        yield from _box(box, layout.boxes[box.name])
    yield from labels


def _box(box: Box, rect: Rect) -> Iterator[str]:
    colours = [PALETTE[number % len(PALETTE)] for number in box.policies] or [INK]
    corner = 2 if box.kind == "tool" else 9
    dash = ' stroke-dasharray="2 3"' if box.kind == "tool" else ""
    yield (f'<rect class="box {box.kind}" {_place(rect)} rx="{corner}" style="stroke:{colours[0]}"{dash}/>')
    for number, colour in enumerate(colours[1:], 1):  # instances with other weights
        inset = 3 * number
        inside = Rect(rect.x + inset, rect.y + inset, rect.width - 2 * inset, rect.height - 2 * inset)
        yield f'<rect {_place(inside)} rx="6" style="fill:none;stroke:{colour};stroke-width:1.6"/>'
    x, y = rect.middle, rect.y + TITLE_HEIGHT + 4
    yield f'<text class="title mid" x="{x:.1f}" y="{y:.1f}">{text(box.title)}</text>'
    for number, line in enumerate(box.lines, 1):
        yield f'<text class="mid" x="{x:.1f}" y="{y + LINE_HEIGHT * number:.1f}">{text(line)}</text>'


def _way(arrow: Arrow, layout: GraphLayout) -> tuple[str, Point]:
    """Return (SVG path, position of the label) of an arrow down to a later layer."""
    source, target = layout.boxes[arrow.source], layout.boxes[arrow.target]
    start, end = Point(source.middle, source.y + source.height), Point(target.middle, target.y - 1)
    points = [start, *layout.ways.get(arrow, ()), end]
    # 60 % of the way down from the last bend, where fewer arrows overlap than at the start.
    bend = points[-2]
    return _curve(points), Point(bend.x + (end.x - bend.x) * 0.6, bend.y + (end.y - bend.y) * 0.6 + 4)


def _curve(points: Sequence[Point]) -> str:
    parts = [f"M{points[0].x:.1f} {points[0].y:.1f}"]
    for a, b in pairwise(points):
        bend = (b.y - a.y) / 2
        parts.append(f"C{a.x:.1f} {a.y + bend:.1f} {b.x:.1f} {b.y - bend:.1f} {b.x:.1f} {b.y:.1f}")
    return " ".join(parts)


def _back(arrow: Arrow, layout: GraphLayout) -> tuple[str, Point]:
    """Return (SVG path, position of the label) of an arrow that leads right and then up, to the same or an
    earlier layer."""
    source, target = layout.boxes[arrow.source], layout.boxes[arrow.target]
    x, end_x = source.x + source.width, target.x + target.width + 1
    start, end = source.y + source.height * 0.7, target.y + target.height * 0.3
    lane_x, turn = layout.lanes[arrow], 9 if end < start else -9
    path = (
        f"M{x:.1f} {start:.1f} H{lane_x - 9:.1f} Q{lane_x:.1f} {start:.1f} {lane_x:.1f} {start - turn:.1f} "
        f"V{end + turn:.1f} Q{lane_x:.1f} {end:.1f} {lane_x - 9:.1f} {end:.1f} H{end_x:.1f}"
    )
    return path, Point(lane_x + 5, (start + end) / 2 + 4)


def _legend(picture: Picture) -> tuple[str, float]:
    """Return (SVG, width in pixels) of the legend with the policies' colours."""
    parts: list[str] = []
    x = 0.0
    for number, policy in enumerate(picture.policies):
        colour = PALETTE[number % len(PALETTE)]
        parts.append(f'<rect x="{x:g}" y="1" width="12" height="12" rx="3" style="fill:{colour}"/>')
        parts.append(f'<text x="{x + 18:g}" y="11">{text(policy)}</text>')
        x += 18 + LABEL_CHAR * len(policy) + PAD
    return "".join(parts), x


def _place(rect: Rect) -> str:
    return f'x="{rect.x:.1f}" y="{rect.y:.1f}" width="{rect.width:.1f}" height="{rect.height:.1f}"'
