"""A picture as Mermaid, which forges and many editors draw."""

from __future__ import annotations

from collections.abc import Iterator

from rolegraph.engine.drawing.ink import PALETTE
from rolegraph.engine.drawing.picture import Box, Picture

_SHAPES = {"trained": ('["', '"]'), "asked": ('("', '")'), "tool": ('[/"', '"/]')}
_UNSAFE = {
    '"': "#quot;",
    "<": "#lt;",
    ">": "#gt;",
    "&": "#amp;",
    "#": "#35;",
    "`": "#96;",
    "{": "#123;",
    "}": "#125;",
}


def mermaid(picture: Picture) -> str:
    """The diagram's text."""
    return "\n".join(_lines(picture)) + "\n"


def _lines(picture: Picture) -> Iterator[str]:
    ids = {box.name: f"r{number}" for number, box in enumerate(picture.boxes)}
    yield "flowchart TD"
    for number, cluster in enumerate(picture.clusters):
        yield f'  subgraph l{number}["{_text(cluster.label)}"]'
        yield "    direction TB"
        yield from (f"    {_node(ids, box)}" for box in picture.boxes if box.loop == cluster.name)
        yield "  end"
    yield from (f"  {_node(ids, box)}" for box in picture.boxes if box.loop is None)
    for arrow in picture.arrows:
        line = "-.->" if arrow.earlier else "-->"
        label = f'|"{_text(arrow.label)}"|' if arrow.label else ""
        yield f"  {ids[arrow.source]} {line}{label} {ids[arrow.target]}"
    for number, _ in enumerate(picture.policies):
        of = [ids[box.name] for box in picture.boxes if box.policies[:1] == (number,)]
        if of:
            yield f"  classDef p{number} stroke:{PALETTE[number % len(PALETTE)]},stroke-width:2px"
            yield f"  class {','.join(of)} p{number}"


def _node(ids: dict[str, str], box: Box) -> str:
    opening, closing = _SHAPES[box.kind]
    lines = [f"<b>{_text(box.title)}</b>", *map(_text, box.lines)]
    return f"{ids[box.name]}{opening}{'<br>'.join(lines)}{closing}"


def _text(text: str) -> str:
    return "".join(_UNSAFE.get(letter, letter) for letter in text)
