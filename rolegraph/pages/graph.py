"""Drawing of a spec's roles, and the turns of an episode as data: `rolegraph graph`."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from rolegraph.api.workflow import Workflow
from rolegraph.engine.compile import Plan
from rolegraph.engine.compile.structure import untyped
from rolegraph.engine.errors import UsageError, did_you_mean
from rolegraph.engine.records.ownership import write_output
from rolegraph.pages.drawing import Picture, picture_of
from rolegraph.pages.drawing.mermaid import mermaid
from rolegraph.pages.drawing.png import png_of
from rolegraph.pages.drawing.svg import svg


@dataclass(frozen=True, slots=True, repr=False)
class Graph:
    """A drawing of a spec's roles; a notebook shows it as an SVG."""

    picture: Picture
    plan: Plan
    """The compiled spec; `json` has its turns instead of its roles."""

    def mermaid(self) -> str:
        """Return the drawing as a Mermaid flowchart."""

        return mermaid(self.picture)

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
            form: `svg`, `png`, `mmd` or `md` (Mermaid in a fence); `json` for the turns, as
                `networkx.node_link_graph` reads them; by default the file's ending.

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
            form: `svg`, `png`, `mmd`, `md` or `json`.
        """
        forms: dict[str, Callable[[], str | bytes]] = {
            "svg": self.svg,
            "png": self.png,
            "mmd": self.mermaid,
            "md": lambda: f"```mermaid\n{self.mermaid()}```\n",
            "json": self._turns,
        }
        if form not in forms:
            names = ", ".join(f".{name}" for name in forms)
            hint = did_you_mean(form, forms, ".{}") or f"expected one of {names}"
            raise UsageError(f"a graph has no form .{form}; {hint}")
        made = forms[form]()
        return made.encode() if isinstance(made, str) else made

    def _turns(self) -> str:
        return json.dumps(untyped.node_link_data(self.plan.graph, edges="edges"), indent=1) + "\n"

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
