"""The DAG of turns as text, for other programs: GraphML, GML, and networkx's node-link data as JSON."""

from __future__ import annotations

import json

import networkx as nx

from rolegraph.engine.compile.structure import untyped


def graphml(graph: nx.DiGraph[str]) -> str:
    """Return a graph as GraphML."""
    return "\n".join(untyped.generate_graphml(graph)) + "\n"


def gml(graph: nx.DiGraph[str]) -> str:
    """Return a graph as GML."""
    return "\n".join(untyped.generate_gml(graph)) + "\n"


def node_link(graph: nx.DiGraph[str]) -> str:
    """Return a graph as JSON, which `networkx.node_link_graph` reads."""
    return json.dumps(untyped.node_link_data(graph, edges="edges"), indent=1) + "\n"
