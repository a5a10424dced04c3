"""Pictures as text: Mermaid, which forges and many editors draw, and DOT, the language of Graphviz."""

from __future__ import annotations

from collections.abc import Iterator

from rolegraph.engine.drawing.ink import INK, PALETTE
from rolegraph.engine.drawing.picture import Box, Picture

_MERMAID_SHAPES = {"trained": ('["', '"]'), "asked": ('("', '")'), "tool": ('[/"', '"/]')}
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
    """Return a picture as a Mermaid flowchart."""
    return "\n".join(_mermaid_lines(picture)) + "\n"


def _mermaid_lines(picture: Picture) -> Iterator[str]:
    ids = {box.name: f"r{number}" for number, box in enumerate(picture.boxes)}
    yield "flowchart TD"
    yield from _mermaid_level(picture, ids, None)
    for arrow in picture.arrows:
        line = "-.->" if arrow.earlier else "-->"
        label = f'|"{_mermaid_text(arrow.label)}"|' if arrow.label else ""
        yield f"  {ids[arrow.source]} {line}{label} {ids[arrow.target]}"
    for number in range(len(picture.policies)):
        members = [ids[box.name] for box in picture.boxes if box.policies[:1] == (number,)]
        if members:
            yield f"  classDef p{number} stroke:{PALETTE[number % len(PALETTE)]},stroke-width:2px"
            yield f"  class {','.join(members)} p{number}"


def _mermaid_level(picture: Picture, ids: dict[str, str], inside: str | None) -> Iterator[str]:
    """Yield the loops and boxes inside a loop, or at the top."""
    for number, cluster in enumerate(picture.clusters):
        if cluster.outer == inside:
            yield f'  subgraph l{number}["{_mermaid_text(cluster.label)}"]'
            yield "    direction TB"
            yield from (f"  {line}" for line in _mermaid_level(picture, ids, cluster.name))
            yield "  end"
    yield from (f"  {_mermaid_node(ids, box)}" for box in picture.boxes if box.loop == inside)


def _mermaid_node(ids: dict[str, str], box: Box) -> str:
    opening, closing = _MERMAID_SHAPES[box.kind]
    lines = [f"<b>{_mermaid_text(box.title)}</b>", *map(_mermaid_text, box.lines)]
    return f"{ids[box.name]}{opening}{'<br>'.join(lines)}{closing}"


def _mermaid_text(text: str) -> str:
    return "".join(_UNSAFE.get(letter, letter) for letter in text)


_DOT_SHAPES = {"trained": "box", "asked": "box", "tool": "parallelogram"}
_DOT_STYLES = {"trained": "rounded,bold", "asked": "rounded", "tool": "solid"}


def dot(picture: Picture) -> str:
    """Return a picture as a DOT digraph."""
    return "\n".join(_dot_lines(picture)) + "\n"


def _dot_lines(picture: Picture) -> Iterator[str]:
    yield f"digraph {_dot_text(picture.name)} {{"
    yield '  node [fontname="Helvetica", fontsize=11]; edge [fontname="Helvetica", fontsize=9];'
    yield from _dot_level(picture, None)
    for arrow in picture.arrows:
        options = [f"label={_dot_text(arrow.label)}"] if arrow.label else []
        options += ["style=dashed", "constraint=false"] if arrow.earlier else []
        shown = f" [{', '.join(options)}]" if options else ""
        yield f"  {_dot_text(arrow.source)} -> {_dot_text(arrow.target)}{shown};"
    yield "}"


def _dot_level(picture: Picture, inside: str | None) -> Iterator[str]:
    """Yield the loops and boxes inside a loop, or at the top."""
    for number, cluster in enumerate(picture.clusters):
        if cluster.outer == inside:
            yield f"  subgraph cluster_{number} {{"
            yield f'    label={_dot_text(cluster.label)}; style="rounded,dashed"; fontsize=10;'
            yield from (f"  {line}" for line in _dot_level(picture, cluster.name))
            yield "  }"
    yield from (f"  {_dot_node(box)}" for box in picture.boxes if box.loop == inside)


def _dot_node(box: Box) -> str:
    colour = PALETTE[box.policies[0] % len(PALETTE)] if box.policies else INK
    label = _dot_text("\n".join([box.title, *box.lines]))
    shape, style = _DOT_SHAPES[box.kind], _DOT_STYLES[box.kind]
    return f'{_dot_text(box.name)} [label={label}, shape={shape}, style="{style}", color="{colour}"];'


def _dot_text(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'
