"""Colours and text of all drawings; the colours suit a white and a black background."""

from __future__ import annotations

import re
from html import escape

PALETTE = ("#3b82f6", "#e5761b", "#1fa971", "#dd4f4f", "#9061f0", "#d6459b", "#1695b8", "#8a8f36")
INK = "#768390"
_NOT_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def in_xml(value: object) -> str:
    """Replace characters that XML does not allow; nothing is escaped."""
    return _NOT_XML.sub("\ufffd", str(value))


def text(value: object) -> str:
    """Escape a value for XML, with the characters replaced that XML does not allow."""
    return escape(in_xml(value))
