"""Tests that each limit has a unique name, is enforced, and is defined only in a file of limits."""

from __future__ import annotations

import re
from pathlib import Path

from rolegraph.engine.limits import Limit, answers, prompts, records, specs, tools
from rolegraph.local import limits
from rolegraph.local.limit_list import LIMITS
from rolegraph.serving import limits as served

MODULES = (answers, limits, prompts, records, served, specs, tools)
NAMES = {
    name: value for module in MODULES for name, value in vars(module).items() if isinstance(value, Limit)
}
ROOT = Path(__file__).parents[1]
READERS = (
    "engine/spec",
    "engine/prompts",
    "engine/compile",
    "engine/records",
    "sandbox",
    "roles",
    "integrations",
)


def test_each_limit_has_a_name_of_its_own_and_a_reason() -> None:
    assert len({limit.name for limit in LIMITS}) == len(LIMITS) > 80
    assert all(limit.most > 0 and reason for limit, reason in LIMITS.items())


def test_the_list_has_every_limit() -> None:
    assert set(LIMITS) == {*NAMES.values()}


def test_each_limit_is_kept_by_some_code() -> None:
    code = "\n".join(
        path.read_text(encoding="utf-8")
        for path in (ROOT / "rolegraph").rglob("*.py")
        if "limits" not in path.parts and path.stem != "limits"
    )
    names = [f"limits.{name}" if f"limits.{name}" in code else name for name in NAMES]
    assert not [name for name in names if not re.search(rf"\b{re.escape(name)}\b", code)]


def test_whoever_reads_what_others_wrote_has_its_limits_from_there() -> None:
    own = re.compile(r"^_?(MAX|MOST|DEEPEST|LIMIT)\w* = [\d_*<. ]+$", re.MULTILINE)
    assert not {
        str(path.relative_to(ROOT)): found
        for folder in READERS
        for path in (ROOT / "rolegraph" / folder).rglob("*.py")
        if (found := own.findall(path.read_text(encoding="utf-8")))
    }
