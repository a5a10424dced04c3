"""Pictures as text: Mermaid, which forges and many editors draw, and DOT, the language of Graphviz."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from rolegraph.pages.drawing.ink import INK, PALETTE
from rolegraph.pages.drawing.picture import Box, Cluster, Picture

_MERMAID_SHAPES = {"trained": ('["', '"]'), "asked": ('("', '")'), "tool": ('[/"', '"/]')}
_ENTITIES = {'"': "#quot;", "<": "#lt;", ">": "#gt;", "&": "#amp;"}
_UNSAFE = str.maketrans(_ENTITIES | {letter: f"#{ord(letter)};" for letter in "#`{}"})


def mermaid(picture: Picture) -> str:
    """Return a picture as a Mermaid flowchart."""
    return "\n".join(_mermaid_lines(picture)) + "\n"


def _mermaid_lines(picture: Picture) -> Iterator[str]:
    ids = {box.name: f"r{number}" for number, box in enumerate(picture.boxes)}

    def opening(number: int, cluster: Cluster) -> Sequence[str]:
        return f'subgraph l{number}["{_mermaid_text(cluster.label)}"]', "  direction TB"

    def node(box: Box) -> str:
        left, right = _MERMAID_SHAPES[box.kind]
        lines = [f"<b>{_mermaid_text(box.title)}</b>", *map(_mermaid_text, box.lines)]
        return f"{ids[box.name]}{left}{'<br>'.join(lines)}{right}"

    yield "flowchart TD"
    yield from _level(picture, None, opening, "end", node)
    for arrow in picture.arrows:
        line = "-.->" if arrow.earlier else "-->"
        label = f'|"{_mermaid_text(arrow.label)}"|' if arrow.label else ""
        yield f"  {ids[arrow.source]} {line}{label} {ids[arrow.target]}"
    for number in range(len(picture.policies)):
        members = [ids[box.name] for box in picture.boxes if box.policies[:1] == (number,)]
        if members:
            yield f"  classDef p{number} stroke:{PALETTE[number % len(PALETTE)]},stroke-width:2px"
            yield f"  class {','.join(members)} p{number}"


def _mermaid_text(text: str) -> str:
    return text.translate(_UNSAFE)


_DOT_STYLES = {
    "trained": ("box", "rounded,bold"),
    "asked": ("box", "rounded"),
    "tool": ("parallelogram", "solid"),
}


def dot(picture: Picture) -> str:
    """Return a picture as a DOT digraph."""
    return "\n".join(_dot_lines(picture)) + "\n"


def _dot_lines(picture: Picture) -> Iterator[str]:
    def opening(number: int, cluster: Cluster) -> Sequence[str]:
        style = f'  label={_dot_text(cluster.label)}; style="rounded,dashed"; fontsize=10;'
        return f"subgraph cluster_{number} {{", style

    def node(box: Box) -> str:
        colour = PALETTE[box.policies[0] % len(PALETTE)] if box.policies else INK
        label, (shape, style) = _dot_text("\n".join([box.title, *box.lines])), _DOT_STYLES[box.kind]
        return f'{_dot_text(box.name)} [label={label}, shape={shape}, style="{style}", color="{colour}"];'

    yield f"digraph {_dot_text(picture.name)} {{"
    yield '  node [fontname="Helvetica", fontsize=11]; edge [fontname="Helvetica", fontsize=9];'
    yield from _level(picture, None, opening, "}", node)
    for arrow in picture.arrows:
        options = [f"label={_dot_text(arrow.label)}"] if arrow.label else []
        options += ["style=dashed", "constraint=false"] if arrow.earlier else []
        shown = f" [{', '.join(options)}]" if options else ""
        yield f"  {_dot_text(arrow.source)} -> {_dot_text(arrow.target)}{shown};"
    yield "}"


def _dot_text(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


def _level(
    picture: Picture,
    inside: str | None,
    opening: Callable[[int, Cluster], Sequence[str]],
    closing: str,
    node: Callable[[Box], str],
) -> Iterator[str]:
    """Yield the lines of text for all loops and boxes inside a loop, or at the top for None.

    `opening`, `closing` and `node` write a loop and a box in the language of the drawing.
    """
    for number, cluster in enumerate(picture.clusters):
        if cluster.outer == inside:
            inner = _level(picture, cluster.name, opening, closing, node)
            yield from (f"  {line}" for line in (*opening(number, cluster), *inner, closing))
    yield from (f"  {node(box)}" for box in picture.boxes if box.loop == inside)
