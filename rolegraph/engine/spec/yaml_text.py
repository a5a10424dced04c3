"""Values as YAML text: the one caller of PyYAML's `safe_dump`, whose stubs differ from release to release."""

from __future__ import annotations

import yaml

_NEVER = 10**9
"""Width of a line, in characters, beyond any value's length."""


def dump_yaml(
    value: object, *, one_line: bool = False, quoted: bool = False, ascii_only: bool = False
) -> str:
    """Return a value of plain data as YAML; keys keep their order.

    Args:
        value: Mappings, lists, strings, numbers, booleans and None.
        one_line: True to write the flow style on a single line, without a line break at its end.
        quoted: True to write strings in double quotes, in which every character can be written.
        ascii_only: True to escape characters outside of ASCII.

    Returns:
        The text; its lines end with a line break unless `one_line` is set.
    """
    text = yaml.safe_dump(  # pyright: ignore[reportUnknownMemberType]
        value,
        allow_unicode=not ascii_only,
        default_flow_style=one_line,
        default_style='"' if quoted else None,
        sort_keys=False,
        width=_NEVER if one_line else None,
    )
    return text.removesuffix("\n").removesuffix("\n...") if one_line else text
