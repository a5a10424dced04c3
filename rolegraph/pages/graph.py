"""Drawing of a spec's roles, and the turns of an episode as data: `rolegraph graph`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from rolegraph.api.workflow import Workflow
from rolegraph.engine.compile import Plan
from rolegraph.engine.errors import UsageError, did_you_mean
from rolegraph.engine.records.ownership import write_output
from rolegraph.pages.drawing import Picture, picture_of
from rolegraph.pages.drawing.png import png_of
from rolegraph.pages.drawing.svg import svg
from rolegraph.pages.drawing.text_forms import dot, mermaid
from rolegraph.pages.drawing.turn_forms import gml, graphml, node_link


@dataclass(frozen=True, slots=True, repr=False)
class Graph:
    """A drawing of a spec's roles; a notebook shows it as an SVG."""

    picture: Picture
    plan: Plan
    """The compiled spec, whose turns `graphml`, `gml` and `json` list in place of the roles."""

    def mermaid(self) -> str:
        """Return the drawing as a Mermaid flowchart."""

        return mermaid(self.picture)

    def dot(self) -> str:
        """Return the drawing as DOT, for Graphviz."""

        return dot(self.picture)

    def svg(self) -> str:
        """Return the drawing as a self-contained SVG file."""

        return svg(self.picture)

    def png(self) -> bytes:
        """Return the drawing as a PNG file on white; raises UsageError where resvg-py is not installed."""
        return png_of(self.svg())

    def save(self, file: str | Path, form: str | None = None) -> Path:
        """Write the drawing to a file.

        Args:
            file: Path of the file.
            form: `svg`, `png`, `mmd`, `md` (Mermaid in a fence) or `dot`; `graphml`, `gml` or `json`
                (node-link data) for the turns, as in `Workflow.graph`; by default the file's ending.

        Returns:
            The path.

        Raises:
            UsageError: An unknown form, or resvg-py is not installed.
            WorldError: The file cannot be written.
        """
        path = Path(file)
        form = form or path.suffix.removeprefix(".").lower()
        if not form:
            raise UsageError(f"{path} has no ending for its form; give {path.name}.svg, or --format")
        data = self.as_bytes(form)
        write_output(path, data, form)
        return path

    def as_bytes(self, form: str) -> bytes:
        """Return the contents of a file of a form; raises UsageError for an unknown form.

        Args:
            form: `svg`, `png`, `mmd`, `md`, `dot`, `graphml`, `gml` or `json`.
        """
        forms: dict[str, Callable[[], str | bytes]] = {
            "svg": self.svg,
            "png": self.png,
            "mmd": self.mermaid,
            "md": lambda: f"```mermaid\n{self.mermaid()}```\n",
            "dot": self.dot,
            "graphml": lambda: graphml(self.plan.graph),
            "gml": lambda: gml(self.plan.graph),
            "json": lambda: node_link(self.plan.graph),
        }
        if form not in forms:
            names = ", ".join(f".{name}" for name in forms)
            hint = did_you_mean(form, forms, ".{}") or f"expected one of {names}"
            raise UsageError(f"a graph has no form .{form}; {hint}")
        made = forms[form]()
        return made.encode() if isinstance(made, str) else made

    def __repr__(self) -> str:
        return f"Graph of {self.plan.name}: {len(self.plan.roles)} roles"

    def _repr_svg_(self) -> str:
        return self.svg()


def graph(flow: Workflow) -> Graph:
    """Draw the roles of a workflow: edges, joins, rounds, loops, tools, conditions, policies by colour.

    Args:
        flow: The workflow.

    Returns:
        The drawing, to be saved or shown in a notebook.
    """
    return Graph(picture_of(flow.plan.spec), flow.plan)
