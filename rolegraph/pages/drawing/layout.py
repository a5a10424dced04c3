"""Layout of a picture in layers from top to bottom; a loop is one box around layers of its own.

Roles that wait for nothing are at the top, all others below the roles that they wait for; networkx finds the
layers. Within a layer, boxes are placed near the boxes that they are joined to. Sizes are in pixels.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import fmean
from typing import NamedTuple

import networkx as nx

from rolegraph.pages.drawing.picture import Arrow, Box, Picture

WIDEST = 1240.0
"""Largest width of a layer; a wider layer is broken into rows."""
GAP_X, GAP_Y = 26.0, 46.0
PAD = 18.0
"""Space between a loop's border and its boxes."""
HEAD = 24.0
"""Height of a loop's label."""
LANE = 14.0
"""Space between upward arrows that run side by side."""
TITLE_CHAR, LINE_CHAR, LABEL_CHAR = 7.7, 6.5, 6.2
"""Average width of a character in the sans-serif fonts of titles, lines and labels."""
TITLE_HEIGHT, LINE_HEIGHT = 18.0, 15.0
MOST_PASSED = 5_000
"""Largest number of layers that all arrows together pass; beyond it, arrows are straight lines behind the
boxes."""
SWEEPS = 6
"""Passes down and up in which boxes move towards their neighbours."""


class Point(NamedTuple):
    """Point, measured from the top left."""

    x: float
    y: float


class Rect(NamedTuple):
    """Rectangle, measured from the top left."""

    x: float
    y: float
    width: float
    height: float

    @property
    def middle(self) -> float:
        """Horizontal centre."""
        return self.x + self.width / 2

    def moved(self, x: float, y: float) -> Rect:
        """Return the rectangle shifted by `x` and `y`."""
        return self._replace(x=self.x + x, y=self.y + y)


@dataclass(slots=True)
class GraphLayout:
    """Coordinates of the boxes, loops (`clusters`) and arrows of a picture or a part of it, in pixels."""

    width: float = 0.0
    height: float = 0.0
    boxes: dict[str, Rect] = field(default_factory=dict[str, Rect])
    clusters: dict[str, Rect] = field(default_factory=dict[str, Rect])
    ways: dict[Arrow, Sequence[Point]] = field(default_factory=dict[Arrow, Sequence[Point]])
    """Points through which a downward arrow passes between its ends, one in each layer."""
    lanes: dict[Arrow, float] = field(default_factory=dict[Arrow, float])
    """X coordinate at which an upward arrow runs, on the right."""

    def add(self, part: GraphLayout, x: float, y: float) -> None:
        """Add the boxes, loops and arrows of another layout to this one, shifted by `x` and `y`."""
        self.boxes.update((name, rect.moved(x, y)) for name, rect in part.boxes.items())
        self.clusters.update((name, rect.moved(x, y)) for name, rect in part.clusters.items())
        for arrow, points in part.ways.items():
            self.ways[arrow] = [Point(point.x + x, point.y + y) for point in points]
        self.lanes.update((arrow, lane + x) for arrow, lane in part.lanes.items())


_Item = tuple[str, str]
"""(`box` or `loop`, name); a loop stands for everything inside it."""
_Arrows = Mapping[Arrow, tuple[Hashable, Hashable]]
"""Arrows between items of one level, each with its two items."""


def lay_out(picture: Picture, inside: str | None = None) -> GraphLayout:
    """Compute the layout of a picture, or of one of its loops together with the loop's frame.

    Args:
        picture: The picture, whose arrows within a round have no cycle.
        inside: Name of the loop; None for the whole picture.
    """
    loops = {cluster.name: cluster for cluster in picture.clusters}
    item_of: dict[str, _Item] = {}
    layouts: dict[Hashable, GraphLayout] = {}
    for box in picture.boxes:
        item, outer_loop = ("box", box.name), box.loop
        while outer_loop not in (inside, None):
            item, outer_loop = ("loop", outer_loop), loops[outer_loop].outer
        if outer_loop != inside:
            continue
        item_of[box.name] = item
        if item not in layouts:
            layouts[item] = _of_box(box) if item[0] == "box" else lay_out(picture, item[1])
    arrows: _Arrows = {
        arrow: (item_of[arrow.source], item_of[arrow.target])
        for arrow in picture.arrows
        if arrow.source in item_of and arrow.target in item_of
    }
    forward = {arrow: ends for arrow, ends in arrows.items() if not arrow.earlier and ends[0] != ends[1]}
    body_layout = _stacked(layouts, forward)
    if inside is None:
        return body_layout
    back = [arrow for arrow in arrows if arrow.earlier and arrow not in body_layout.lanes]
    body_layout.lanes |= {arrow: body_layout.width + LANE * number for number, arrow in enumerate(back, 1)}
    lanes_width = LANE * (len(back) + 1) + max(len(a.label) for a in back) * LABEL_CHAR if back else 0.0
    width = max(body_layout.width + lanes_width, len(loops[inside].label) * LABEL_CHAR) + 2 * PAD
    framed_layout = GraphLayout(width, body_layout.height + HEAD + 2 * PAD)
    framed_layout.clusters[inside] = Rect(0.0, 0.0, framed_layout.width, framed_layout.height)
    framed_layout.add(body_layout, (width - body_layout.width - lanes_width) / 2, PAD + HEAD)
    return framed_layout


def _of_box(box: Box) -> GraphLayout:
    """Return the layout of a single box, sized by the box's texts."""
    width = max([len(box.title) * TITLE_CHAR, *(len(line) * LINE_CHAR for line in box.lines)])
    size = max(84.0, width + 26), TITLE_HEIGHT + LINE_HEIGHT * len(box.lines) + 16
    return GraphLayout(*size, {box.name: Rect(0.0, 0.0, *size)})


def _stacked(parts: Mapping[Hashable, GraphLayout], arrows: _Arrows) -> GraphLayout:
    """Return the layout of one level: its items in rows from top to bottom, with room for the arrows between
    them."""
    graph: nx.DiGraph[Hashable] = nx.DiGraph()
    graph.add_nodes_from(parts)
    graph.add_edges_from(arrows.values())
    widths: dict[Hashable, float] = {item: part.width for item, part in parts.items()}
    layers = [row for layer in nx.topological_generations(graph) for row in _rows(layer, widths)]
    layer_of = {item: number for number, layer in enumerate(layers) for item in layer}
    passed_layers = sum(layer_of[target] - layer_of[source] - 1 for source, target in graph.edges)
    neighbours: nx.DiGraph[Hashable] = nx.DiGraph()
    neighbours.add_nodes_from(graph)
    bends: dict[tuple[Hashable, Hashable], list[Hashable]] = {}
    for source, target in graph.edges:
        layers_between = range(layer_of[source] + 1, layer_of[target] if passed_layers <= MOST_PASSED else 0)
        bends[source, target] = [("way", source, target, number) for number in layers_between]
        for number, bend in zip(layers_between, bends[source, target], strict=True):
            layers[number].append(bend)
            widths[bend] = 10.0
        neighbours.add_edges_from(pairwise([source, *bends[source, target], target]))
    centre = _centres(layers, widths, neighbours)
    stack = GraphLayout(max((middle + widths[item] / 2 for item, middle in centre.items()), default=0.0))
    points: dict[Hashable, Point] = {}
    for layer in layers:
        height = max(parts[item].height for item in layer if item in parts)
        for item in layer:
            points[item] = Point(centre[item], stack.height + height / 2)
            if part := parts.get(item):
                stack.add(part, centre[item] - part.width / 2, stack.height + (height - part.height) / 2)
        stack.height += height + GAP_Y
    stack.height = max(0.0, stack.height - GAP_Y)
    stack.ways |= {arrow: [points[bend] for bend in bends[ends]] for arrow, ends in arrows.items()}
    return stack


def _rows(layer: Sequence[Hashable], widths: Mapping[Hashable, float]) -> list[list[Hashable]]:
    """Split a layer of items into rows that are at most `WIDEST` pixels wide."""
    rows: list[list[Hashable]] = [[]]
    width = 0.0
    for item in layer:
        if rows[-1] and width + widths[item] > WIDEST:
            rows.append([])
            width = 0.0
        rows[-1].append(item)
        width += widths[item] + GAP_X
    return rows


def _centres(
    layers: Sequence[list[Hashable]], widths: Mapping[Hashable, float], near: nx.DiGraph[Hashable]
) -> dict[Hashable, float]:
    """Return the horizontal centre of each item, and sort each layer by the centres of its items in place.

    Each pass puts the items of a layer near the items that they are joined to in the layer before.
    """
    centre: dict[Hashable, float] = {}
    for layer in layers:
        _spread(layer, dict.fromkeys(layer, 0.0), widths, centre)
    for sweep in range(2 * SWEEPS):
        is_downward = sweep % 2 == 0
        others = near.pred if is_downward else near.succ
        for layer in layers if is_downward else reversed(layers):
            wanted_centres = {item: fmean(map(centre.__getitem__, others[item] or (item,))) for item in layer}
            layer.sort(key=wanted_centres.__getitem__)
            _spread(layer, wanted_centres, widths, centre)
    left_edge = min((middle - widths[item] / 2 for item, middle in centre.items()), default=0.0)
    return {item: middle - left_edge for item, middle in centre.items()}


def _spread(
    layer: Collection[Hashable],
    wishes: Mapping[Hashable, float],
    widths: Mapping[Hashable, float],
    centre: dict[Hashable, float],
) -> None:
    """Set in `centre` the centres of a layer's items, close to `wishes` and without overlap.

    Items are pushed apart, then shifted together until their mean distance from the wishes is 0.
    """
    centres: dict[Hashable, float] = {}
    smallest_x = float("-inf")
    for item in layer:
        centres[item] = max(wishes[item], smallest_x + widths[item] / 2)
        smallest_x = centres[item] + widths[item] / 2 + GAP_X
    mean_shift = fmean(wishes[item] - place for item, place in centres.items())
    centre.update((item, place + mean_shift) for item, place in centres.items())
