"""Colours, text and frame of all drawings; the colours suit a white and a black background."""

from __future__ import annotations

import re
from collections.abc import Iterable
from html import escape
from pathlib import Path

from rolegraph.engine.records.plain import in_xml

PALETTE = ("#3b82f6", "#e5761b", "#1fa971", "#dd4f4f", "#9061f0", "#d6459b", "#1695b8", "#8a8f36")
INK = "#768390"
_GROUND = ".ground{fill:#fff}@media(prefers-color-scheme:dark){.ground{fill:#181c22}}"
"""Style of the background, which follows the reader's colour scheme."""


def text(value: object) -> str:
    """Escape a value for XML, with the characters replaced that XML does not allow."""
    return escape(in_xml(value))


def document(
    title: str, width: float, height: float, css: Path, parts: Iterable[str], attributes: str = ""
) -> str:
    """Return an SVG document that stands alone.

    Args:
        title: Title, not yet escaped.
        width: Width in pixels.
        height: Height in pixels.
        css: CSS file of the document, in which INK stands for the colour of lines and text, HUE0 to HUE7 for
            the colours of the palette.
        parts: Elements, each as text.
        attributes: Further attributes of the root element.
    """
    colours = {"INK": INK} | {f"HUE{index}": colour for index, colour in enumerate(PALETTE)}
    style = re.sub("INK|HUE[0-7]", lambda name: colours[name[0]], css.read_text("utf-8")).replace("\n", "")
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg"{attributes} viewBox="0 0 {width:g} {height:g}" '
        f'width="{width:g}" height="{height:g}" role="img">\n<title>{text(title)}</title>\n'
        f'<style>{_GROUND}{style}</style>\n<rect class="ground" width="100%" height="100%"/>\n'
        + "\n".join(parts)
        + "\n</svg>\n"
    )
