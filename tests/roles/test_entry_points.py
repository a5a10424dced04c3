"""Installed packages add their own names to the vocabulary."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.registry import Call
from roles import parsers


def test_a_parser_of_another_package_is_found_by_its_entry_point(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "shouting.py").write_text(
        "from roles.vocabulary import Parser\n\n\n"
        "def shout(*, mark: str = '!'):\n"
        '    """Everything in capitals."""\n'
        "    return Parser(lambda text, upstream: text.upper() + mark)\n"
    )
    info = tmp_path / "shouting-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: shouting\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[rolegraph.parsers]\nshout = shouting:shout\n")
    monkeypatch.syspath_prepend(str(tmp_path))

    assert "shout" in parsers.names()
    assert parsers.summary("shout") == "Everything in capitals."
    assert parsers.build(Call.parse({"shout": {"mark": "?"}})).parse("hey", {}) == "HEY?"
