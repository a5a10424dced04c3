"""Pictures as Mermaid flowcharts, which forges and many editors draw."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from rolegraph.pages.drawing.ink import PALETTE
from rolegraph.pages.drawing.picture import Box, Picture

_SHAPES = {"trained": ('["', '"]'), "asked": ('("', '")'), "tool": ('[/"', '"/]')}
_ENTITIES = {'"': "#quot;", "<": "#lt;", ">": "#gt;", "&": "#amp;"}
_UNSAFE = str.maketrans(_ENTITIES | {letter: f"#{ord(letter)};" for letter in "#`{}"})


def mermaid(picture: Picture) -> str:
    """Return a picture as a Mermaid flowchart."""
    return "\n".join(_lines(picture)) + "\n"


def _lines(picture: Picture) -> Iterator[str]:
    ids = {box.name: f"r{number}" for number, box in enumerate(picture.boxes)}
    yield "flowchart TD"
    yield from _level(picture, ids, None)
    for arrow in picture.arrows:
        line = "-.->" if arrow.earlier else "-->"
        label = f'|"{_escaped(arrow.label)}"|' if arrow.label else ""
        yield f"  {ids[arrow.source]} {line}{label} {ids[arrow.target]}"
    for number in range(len(picture.policies)):
        members = [ids[box.name] for box in picture.boxes if box.policies[:1] == (number,)]
        if members:
            yield f"  classDef p{number} stroke:{PALETTE[number % len(PALETTE)]},stroke-width:2px"
            yield f"  class {','.join(members)} p{number}"


def _level(picture: Picture, ids: Mapping[str, str], inside: str | None) -> Iterator[str]:
    """Yield the lines of all loops and boxes inside a loop, or at the top for None."""
    for number, cluster in enumerate(picture.clusters):
        if cluster.outer == inside:
            yield f'  subgraph l{number}["{_escaped(cluster.label)}"]'
            yield "    direction TB"
            yield from (f"  {line}" for line in _level(picture, ids, cluster.name))
            yield "  end"
    yield from (f"  {ids[box.name]}{_shape(box)}" for box in picture.boxes if box.loop == inside)


def _shape(box: Box) -> str:
    left, right = _SHAPES[box.kind]
    return f"{left}{'<br>'.join([f'<b>{_escaped(box.title)}</b>', *map(_escaped, box.lines)])}{right}"


def _escaped(text: str) -> str:
    return text.translate(_UNSAFE)
