"""A spec's roles as a graph that a person looks at: Mermaid, DOT, SVG, PNG.

The stages: `picture` (a spec to boxes, edges and clusters), `layout` (where each lies), and one file for each
form. Pure, and without a plan: what a spec says is enough, so that a run's folder can be drawn, too.
"""

from rolegraph.engine.drawing.picture import Picture, picture_of

__all__ = ["Picture", "picture_of"]
