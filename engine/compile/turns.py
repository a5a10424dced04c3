"""Decision whether a role's rewards are compared by turn or by trajectory. Pure; reads the spec alone."""

from __future__ import annotations

from rolegraph.engine.prompts import ALL_OF_SELF, TemplateScope
from rolegraph.engine.prompts.templates import mentions_of
from rolegraph.engine.spec import Grouping, Role

_SELF = TemplateScope({}, own=ALL_OF_SELF, is_condition=True, has_value=True)
_OF_A_TURN = frozenset({"self.round", "self.outer", "self.observation"})
"""Names that differ between the turns of one trajectory."""


def compares_turns(role: Role, *groupings: Grouping) -> bool:
    """Return True where any of a role's groupings, or of those given, compares turns."""
    for grouping in groupings or role.group:
        if (grouping.credit or role.credit).kind != "trajectory" or grouping.by in ("turn", "prompt"):
            return True
        if grouping.is_expression and not _OF_A_TURN.isdisjoint(mentions_of(grouping.by, _SELF)):
            return True
    return False
