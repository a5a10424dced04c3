"""`rolegraph graph`: the roles of a spec as a picture."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from rolegraph.engine.drawing import Picture, picture_of
from rolegraph.engine.errors import UsageError, WorldError, did_you_mean
from rolegraph.workflow import Workflow

SCALE = 2
"""Pixels of a PNG for each of the SVG's."""


@dataclass(frozen=True, slots=True)
class Graph:
    """The roles of a spec, to be drawn. A notebook shows it as it is."""

    picture: Picture

    def mermaid(self) -> str:
        """As Mermaid."""
        from rolegraph.engine.drawing.text_forms import mermaid

        return mermaid(self.picture)

    def dot(self) -> str:
        """As DOT, for Graphviz."""
        from rolegraph.engine.drawing.text_forms import dot

        return dot(self.picture)

    def svg(self) -> str:
        """As an SVG file that stands alone."""
        from rolegraph.engine.drawing.svg import svg

        return svg(self.picture)

    def png(self) -> bytes:
        """As a PNG file on white. Raises UsageError where the library for it is missing."""
        try:
            library: Any = import_module("resvg_py")  # it may not be there to take types from
        except ImportError as error:
            raise UsageError("a PNG needs the library resvg-py: pip install 'rolegraph[png]'") from error
        return bytes(library.svg_to_bytes(svg_string=self.svg(), background="white", zoom=SCALE))

    def save(self, file: str | Path, form: str | None = None) -> Path:
        """Write it in a form, by default the one that the file's ending says, and return where.

        Forms are `svg`, `png`, `mmd`, `md` (Mermaid in a fence) and `dot`. Raises UsageError for another one,
        and WorldError where it cannot be written.
        """
        path = Path(file)
        form = form or path.suffix.removeprefix(".").lower()
        if not form:
            raise UsageError(f"{path}: the ending says the form; give {path.name}.svg, or say --format")
        data = self.as_bytes(form)
        try:
            path.write_bytes(data)
        except OSError as error:
            raise WorldError(f"cannot write {path}: {error.strerror}") from error
        return path

    def as_bytes(self, form: str) -> bytes:
        """What a file of that form holds. Raises UsageError."""
        forms: dict[str, Callable[[], str | bytes]] = {
            "svg": self.svg,
            "png": self.png,
            "mmd": self.mermaid,
            "md": lambda: f"```mermaid\n{self.mermaid()}```\n",
            "dot": self.dot,
        }
        if form not in forms:
            known = did_you_mean(form, forms, ".{}") or f"there is {', '.join(f'.{name}' for name in forms)}"
            raise UsageError(f"a graph has no form .{form}; {known}")
        made = forms[form]()
        return made.encode() if isinstance(made, str) else made

    def _repr_svg_(self) -> str:
        return self.svg()


def graph(flow: Workflow) -> Graph:
    """The roles of a workflow as a picture: edges with their joins and rounds, loops, tools, conditions, and
    policies by colour."""
    return Graph(picture_of(flow.plan.spec))
