"""Drawing of a spec's roles, and the turns of an episode as data: `rolegraph graph`."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from rolegraph.api.workflow import Workflow
from rolegraph.engine.compile import Plan
from rolegraph.engine.compile.structure import untyped
from rolegraph.pages.drawing import Picture, picture_of
from rolegraph.pages.drawing.drawing import Drawing
from rolegraph.pages.drawing.mermaid import mermaid
from rolegraph.pages.drawing.svg import svg


@dataclass(frozen=True, repr=False)
class Graph(Drawing):
    """Drawing of a spec's roles, also as a Mermaid flowchart (`mmd`, and `md` in a fence).

    As `json`, it is the turns of an episode in place of the roles, as `networkx.node_link_graph` reads them.
    """

    picture: Picture
    plan: Plan

    @property
    def forms(self) -> Mapping[str, Callable[[], bytes]]:
        """Functions that return the drawing in a form, by the ending of a file in that form."""
        return {
            **super().forms,
            "mmd": lambda: self.mermaid().encode(),
            "md": lambda: f"```mermaid\n{self.mermaid()}```\n".encode(),
            "json": self._turns,
        }

    def mermaid(self) -> str:
        """Return the drawing as a Mermaid flowchart."""
        return mermaid(self.picture)

    def _turns(self) -> bytes:
        return (json.dumps(untyped.node_link_data(self.plan.graph, edges="edges"), indent=1) + "\n").encode()

    def __repr__(self) -> str:
        return f"Graph of {self.plan.name}: {len(self.plan.roles)} roles"


def graph(flow: Workflow) -> Graph:
    """Draw the roles of a workflow: edges, joins, rounds, loops, tools, conditions, policies by colour.

    Args:
        flow: The workflow.

    Returns:
        The drawing, to be saved or shown in a notebook.
    """
    picture = picture_of(flow.plan.spec)
    return Graph(svg(picture), picture, flow.plan)
