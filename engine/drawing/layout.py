"""Layout of a picture in layers from top to bottom; a loop is one box around layers of its own.

Roles that wait for nothing are on top, all others below the roles that they wait for; networkx finds the
layers. Within a layer, boxes are placed near the boxes that they are joined to. Sizes are in pixels.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
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
    items: Mapping[_Item, Rect]
    ways: Mapping[tuple[Hashable, Hashable], Sequence[Point]]


def lay_out(picture: Picture) -> GraphLayout:
    """Compute the layout of a picture, whose arrows within a round have no cycle."""
    levels = _Levels(picture)
    boxes: dict[str, Rect] = {}
    clusters: dict[str, Rect] = {}
    ways: dict[Arrow, Sequence[Point]] = {}
    lanes: dict[Arrow, float] = {}
    todo: list[tuple[Cluster | None, float, float]] = [(None, 0.0, 0.0)]
    for cluster, x, y in todo:  # grows while it is read
        placed = levels.placed(cluster)
        for (kind, name), rect in placed.items.items():
            if kind == "box":
                boxes[name] = rect.moved(x, y)
                continue
            inner, at = levels.clusters[name], rect.moved(x, y)
            clusters[name] = at
            free = at.width - levels.placed(inner).size.width - levels.aside(inner)
            todo.append((inner, at.x + free / 2, at.y + PAD + HEAD))
        for arrow, ends in levels.joined(cluster):
            if way := placed.ways.get(ends):
                ways[arrow] = [Point(point.x + x, point.y + y) for point in way]
        for number, arrow in enumerate(levels.back(cluster) if cluster else (), 1):
            lanes[arrow] = x + placed.size.width + LANE * number
    top = levels.placed(None).size
    return GraphLayout(top.width, top.height, boxes, clusters, ways, lanes)


_Item = tuple[str, str]
"""`box` or `loop`, and its name; a loop has all that is inside it."""


class _Levels:
    """Levels of a picture: the top, and the inside of each loop."""

    def __init__(self, picture: Picture) -> None:
        self._picture = picture
        self.clusters = {cluster.name: cluster for cluster in picture.clusters}
        self._loop_of = {box.name: box.loop for box in picture.boxes}
        self._placed: dict[Cluster | None, _Placed] = {}

    def placed(self, cluster: Cluster | None) -> _Placed:
        """Return the positions of the items of a level; None is the top."""
        if cluster not in self._placed:
            sizes: dict[_Item, _Size] = {}
            for box in self._picture.boxes:
                item = self._item(box.name, cluster)
                if item is not None and item not in sizes:
                    kind, name = item
                    sizes[item] = size_of(box) if kind == "box" else self._around(self.clusters[name])
            self._placed[cluster] = _placed(sizes, [ends for _, ends in self.joined(cluster)])
        return self._placed[cluster]

    def joined(self, cluster: Cluster | None) -> Iterator[tuple[Arrow, tuple[_Item, _Item]]]:
        """Yield the arrows down that join two items of a level, with the items."""
        for arrow in self._picture.arrows:
            source, target = self._item(arrow.source, cluster), self._item(arrow.target, cluster)
            if not arrow.earlier and source is not None and target is not None and source != target:
                yield arrow, (source, target)

    def back(self, cluster: Cluster) -> list[Arrow]:
        """Return the arrows back to an earlier round of a loop, not of one in it."""
        return [arrow for arrow in self._picture.arrows if arrow.earlier and self._shared(arrow) == cluster]

    def aside(self, cluster: Cluster) -> float:
        """Return the width on the right of a loop's boxes for the arrows back."""
        back = self.back(cluster)
        return LANE * (len(back) + 1) + max(len(a.label) for a in back) * LABEL_CHAR if back else 0.0

    def _around(self, cluster: Cluster) -> _Size:
        """Return the width and height of a loop's frame, with room for its boxes, its label and arrows on
        its right."""
        size = self.placed(cluster).size
        width = max(size.width + self.aside(cluster), len(cluster.label) * LABEL_CHAR)
        return _Size(width + 2 * PAD, size.height + HEAD + 2 * PAD)

    def _item(self, role: str, cluster: Cluster | None) -> _Item | None:
        """Return the item of a level that a role is, or is in; None for a role outside of the level."""
        item: _Item = ("box", role)
        around = self._loop_of[role]
        while around is not None:
            loop = self.clusters[around]
            if loop == cluster:
                return item
            item, around = ("loop", around), loop.outer
        return item if cluster is None else None

    def _shared(self, arrow: Arrow) -> Cluster | None:
        """Return the innermost loop around both ends of an arrow."""
        around = self._loop_of[arrow.target]
        while around is not None and self._item(arrow.source, self.clusters[around]) is None:
            around = self.clusters[around].outer
        return None if around is None else self.clusters[around]


def size_of(box: Box) -> _Size:
    """Return the size of a box for its texts."""
    width = max([len(box.title) * TITLE_CHAR, *(len(line) * LINE_CHAR for line in box.lines)])
    return _Size(max(84.0, width + 26), TITLE_HEIGHT + LINE_HEIGHT * len(box.lines) + 16)


LANE = 14.0
"""Space between arrows back that run side by side."""


def _placed(sizes: Mapping[_Item, _Size], edges: Iterable[tuple[_Item, _Item]]) -> _Placed:
    """Lay out one level: items of given sizes, and the edges between them."""
    graph: nx.DiGraph[Hashable] = nx.DiGraph()
    graph.add_nodes_from(sizes)
    graph.add_edges_from((a, b) for a, b in edges if a != b)
    size: dict[Hashable, _Size] = {**sizes}
    layers = [row for layer in nx.topological_generations(graph) for row in _rows(layer, size)]
    layer_of = {item: number for number, layer in enumerate(layers) for item in layer}
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
