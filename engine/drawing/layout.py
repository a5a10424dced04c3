"""Layout of a picture in layers from top to bottom; a loop is one box around layers of its own.

Roles that wait for nothing are on top, all others below the roles that they wait for; networkx finds the
layers. Within a layer, boxes are placed near the boxes that they are joined to. Sizes are in pixels.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import networkx as nx

from rolegraph.engine.drawing.picture import Arrow, Box, Cluster, Picture

WIDEST = 1240.0
"""Width of a layer at most; a wider one is broken into rows."""
GAP_X, GAP_Y = 26.0, 46.0
PAD = 18.0
"""Space between a loop's border and its boxes."""
HEAD = 24.0
"""Height of a loop's label."""
TITLE_CHAR, LINE_CHAR, LABEL_CHAR = 7.7, 6.5, 6.2
"""Average width of a character in the sans-serif fonts of titles, lines and labels."""
TITLE_HEIGHT, LINE_HEIGHT = 18.0, 15.0
MOST_PASSED = 5_000
"""Layers that all arrows together pass at most; beyond, arrows are straight lines behind the boxes."""
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


@dataclass(frozen=True, slots=True)
class GraphLayout:
    """Coordinates of a picture's boxes, loops (`clusters`) and arrows, in pixels.

    `ways` has the points that an arrow down passes between its ends, `lanes` the x coordinate at which an
    arrow back runs up on the right.
    """

    width: float
    height: float
    boxes: Mapping[str, Rect]
    clusters: Mapping[str, Rect]
    ways: Mapping[Arrow, Sequence[Point]]
    """Points that an arrow passes between its ends, one in each layer."""
    lanes: Mapping[Arrow, float]
    """Horizontal position of the vertical part of arrows to an earlier round."""


class _Size(NamedTuple):
    width: float
    height: float


class _Placed(NamedTuple):
    """Positions of the boxes on one level of a graph, and for each edge the points it bends at."""

    size: _Size
    items: Mapping[Hashable, Rect]
    ways: Mapping[tuple[Hashable, Hashable], Sequence[Point]]


def lay_out(picture: Picture) -> GraphLayout:
    """Compute the layout of a picture, whose arrows within a round have no cycle."""
    cluster_of = {role: cluster.name for cluster in picture.clusters for role in cluster.roles}
    forward = [arrow for arrow in picture.arrows if not arrow.earlier]
    inner: dict[str, _Placed] = {}
    for cluster in picture.clusters:
        inside = [box for box in picture.boxes if box.name in cluster.roles]
        edges = [(a.source, a.target) for a in forward if {a.source, a.target} <= {*cluster.roles}]
        inner[cluster.name] = _placed({box.name: size_of(box) for box in inside}, edges)
    sizes: dict[Hashable, _Size] = {}
    for box in picture.boxes:
        if box.name not in cluster_of:
            sizes["box", box.name] = size_of(box)
        elif ("loop", cluster_of[box.name]) not in sizes:
            sizes["loop", cluster_of[box.name]] = _around(picture, cluster_of[box.name], inner)

    def item(role: str) -> tuple[str, str]:
        return ("loop", cluster_of[role]) if role in cluster_of else ("box", role)

    top = _placed(sizes, [(item(a.source), item(a.target)) for a in forward])
    alone = [box.name for box in picture.boxes if box.name not in cluster_of]
    boxes = {role: top.items["box", role] for role in alone}
    clusters = {cluster.name: top.items["loop", cluster.name] for cluster in picture.clusters}
    ways: dict[Arrow, Sequence[Point]] = {}
    lanes: dict[Arrow, float] = {}
    for cluster in picture.clusters:
        at, placed = clusters[cluster.name], inner[cluster.name]
        aside = _aside(picture, cluster)
        x, y = at.x + (at.width - placed.size.width - aside) / 2, at.y + PAD + HEAD
        for role, rect in placed.items.items():
            boxes[str(role)] = rect.moved(x, y)
        for arrow in forward:
            if way := placed.ways.get((arrow.source, arrow.target)):
                ways[arrow] = [Point(point.x + x, point.y + y) for point in way]
        for number, arrow in enumerate(_back(picture, cluster), 1):
            lanes[arrow] = x + placed.size.width + LANE * number
    for arrow in forward:
        if way := top.ways.get((item(arrow.source), item(arrow.target))):
            ways[arrow] = way
    return GraphLayout(top.size.width, top.size.height, boxes, clusters, ways, lanes)


def size_of(box: Box) -> _Size:
    """Return the size of a box for its texts."""
    width = max([len(box.title) * TITLE_CHAR, *(len(line) * LINE_CHAR for line in box.lines)])
    return _Size(max(84.0, width + 26), TITLE_HEIGHT + LINE_HEIGHT * len(box.lines) + 16)


def _around(picture: Picture, name: str, inner: Mapping[str, _Placed]) -> _Size:
    """Return the width and height of a loop's frame, with room for its boxes, its label and arrows on its
    right."""
    (cluster,) = (cluster for cluster in picture.clusters if cluster.name == name)
    size = inner[name].size
    width = max(size.width + _aside(picture, cluster), len(cluster.label) * LABEL_CHAR)
    return _Size(width + 2 * PAD, size.height + HEAD + 2 * PAD)


def _back(picture: Picture, cluster: Cluster) -> list[Arrow]:
    return [arrow for arrow in picture.arrows if arrow.earlier and arrow.target in cluster.roles]


def _aside(picture: Picture, cluster: Cluster) -> float:
    """Return the width on the right of a loop's boxes for the arrows back."""
    back = _back(picture, cluster)
    return LANE * (len(back) + 1) + max(len(a.label) for a in back) * LABEL_CHAR if back else 0.0


LANE = 14.0
"""Space between arrows back that run side by side."""


def _placed(sizes: Mapping[Hashable, _Size], edges: Iterable[tuple[Hashable, Hashable]]) -> _Placed:
    """Lay out one level: items of given sizes, and the edges between them."""
    graph: nx.DiGraph[Hashable] = nx.DiGraph()
    graph.add_nodes_from(sizes)
    graph.add_edges_from((a, b) for a, b in edges if a != b)
    layers = [row for layer in nx.topological_generations(graph) for row in _rows(layer, sizes)]
    layer_of = {item: number for number, layer in enumerate(layers) for item in layer}
    size = dict(sizes)
    above: dict[Hashable, list[Hashable]] = {}
    chains: dict[tuple[Hashable, Hashable], list[Hashable]] = {}
    passed = sum(layer_of[b] - layer_of[a] - 1 for a, b in graph.edges)
    for a, b in graph.edges:
        chain: list[Hashable] = [a]
        for number in range(layer_of[a] + 1, layer_of[b] if passed <= MOST_PASSED else 0):
            passing = ("way", a, b, number)
            size[passing] = _Size(10.0, 0.0)
            layers[number].append(passing)
            chain.append(passing)
        chains[a, b] = [*chain, b]
        for one, other in pairwise(chains[a, b]):
            above.setdefault(other, []).append(one)
    below: dict[Hashable, list[Hashable]] = {}
    for item, before in above.items():
        for one in before:
            below.setdefault(one, []).append(item)
    centre = _centres(layers, size, above, below)
    rects: dict[Hashable, Rect] = {}
    y = 0.0
    for layer in layers:
        height = max(size[item].height for item in layer)
        for item in layer:
            width, own = size[item]
            rects[item] = Rect(centre[item] - width / 2, y + (height - own) / 2, width, own)
        y += height + GAP_Y
    width = max((rect.x + rect.width for rect in rects.values()), default=0.0)
    ways = {
        ends: [Point(rects[i].middle, rects[i].y) for i in chain[1:-1]]
        for ends, chain in chains.items()
        if len(chain) > 2
    }
    return _Placed(_Size(width, max(0.0, y - GAP_Y)), {item: rects[item] for item in sizes}, ways)


def _rows(layer: Sequence[Hashable], sizes: Mapping[Hashable, _Size]) -> list[list[Hashable]]:
    """Break a layer of boxes into rows, each at most `WIDEST` pixels wide."""
    rows: list[list[Hashable]] = [[]]
    width = 0.0
    for item in layer:
        if rows[-1] and width + sizes[item].width > WIDEST:
            rows.append([])
            width = 0.0
        rows[-1].append(item)
        width += sizes[item].width + GAP_X
    return rows


def _centres(
    layers: Sequence[list[Hashable]],
    size: Mapping[Hashable, _Size],
    above: Mapping[Hashable, Sequence[Hashable]],
    below: Mapping[Hashable, Sequence[Hashable]],
) -> dict[Hashable, float]:
    """Return the horizontal centre of each item, and sort the layers by it."""
    centre: dict[Hashable, float] = {}
    for layer in layers:
        x = 0.0
        for item in layer:
            centre[item] = x + size[item].width / 2
            x += size[item].width + GAP_X

    def wish(near: Mapping[Hashable, Sequence[Hashable]]) -> Callable[[Hashable], float]:
        def of(item: Hashable) -> float:
            others = near.get(item, ())
            return sum(centre[other] for other in others) / len(others) if others else centre[item]

        return of

    for sweep in range(2 * SWEEPS):
        down = sweep % 2 == 0
        wished = wish(above if down else below)
        for layer in layers if down else reversed(layers):
            wishes = {item: wished(item) for item in layer}
            layer.sort(key=wishes.__getitem__)
            _spread(layer, wishes, size, centre)
    left = min((centre[item] - size[item].width / 2 for item in centre), default=0.0)
    return {item: x - left for item, x in centre.items()}


def _spread(
    layer: Sequence[Hashable],
    wishes: Mapping[Hashable, float],
    size: Mapping[Hashable, _Size],
    centre: dict[Hashable, float],
) -> None:
    """Place a layer's items at the wished centres: pushed apart until none overlap, then shifted together
    to make the mean distance from the wishes 0."""
    places: list[float] = []
    for item in layer:
        half = size[item].width / 2
        least = places[-1] + size[layer[len(places) - 1]].width / 2 + GAP_X + half if places else wishes[item]
        places.append(max(wishes[item], least))
    off = sum(wishes[item] - place for item, place in zip(layer, places, strict=True)) / max(1, len(layer))
    for item, place in zip(layer, places, strict=True):
        centre[item] = place + off
