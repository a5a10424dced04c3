"""Tests of `rolegraph limits`, which lists each limit by the name used in messages."""

from __future__ import annotations

from tests.cli.conftest import Command


def test_every_limit_is_shown_with_its_name_size_and_reason(rolegraph: Command) -> None:
    lines = rolegraph("limits").stdout.splitlines()
    assert any(line.startswith("prompt_work ") and "15,000,000 units of work" in line for line in lines)
    assert len({line.split()[0] for line in lines}) == len(lines)
