"""A picture as DOT, the language of Graphviz."""

from __future__ import annotations

from collections.abc import Iterator

from rolegraph.engine.drawing.ink import INK, PALETTE
from rolegraph.engine.drawing.picture import Box, Picture

_SHAPES = {"trained": "box", "asked": "box", "tool": "parallelogram"}
_STYLES = {"trained": "rounded,bold", "asked": "rounded", "tool": "solid"}


def dot(picture: Picture) -> str:
    """The graph's text."""
    return "\n".join(_lines(picture)) + "\n"


def _lines(picture: Picture) -> Iterator[str]:
    yield f"digraph {_text(picture.name)} {{"
    yield '  node [fontname="Helvetica", fontsize=11]; edge [fontname="Helvetica", fontsize=9];'
    for number, cluster in enumerate(picture.clusters):
        yield f"  subgraph cluster_{number} {{"
        yield f'    label={_text(cluster.label)}; style="rounded,dashed"; fontsize=10;'
        yield from (f"    {_node(box)}" for box in picture.boxes if box.loop == cluster.name)
        yield "  }"
    yield from (f"  {_node(box)}" for box in picture.boxes if box.loop is None)
    for arrow in picture.arrows:
        options = [f"label={_text(arrow.label)}"] if arrow.label else []
        options += ["style=dashed", "constraint=false"] if arrow.earlier else []
        shown = f" [{', '.join(options)}]" if options else ""
        yield f"  {_text(arrow.source)} -> {_text(arrow.target)}{shown};"
    yield "}"


def _node(box: Box) -> str:
    colour = PALETTE[box.policies[0] % len(PALETTE)] if box.policies else INK
    label = _text("\n".join([box.title, *box.lines]))
    shape, style = _SHAPES[box.kind], _STYLES[box.kind]
    return f'{_text(box.name)} [label={label}, shape={shape}, style="{style}", color="{colour}"];'


def _text(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'
