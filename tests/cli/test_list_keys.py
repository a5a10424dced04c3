"""Tests of `rolegraph list keys`."""

from __future__ import annotations

import re

from rolegraph.engine.spec.role import Role
from tests.cli.conftest import Command, rolegraph

__all__ = ["rolegraph"]


def test_every_key_has_its_place_and_a_line(rolegraph: Command) -> None:
    done = rolegraph("list", "keys")
    lines = [line.split(maxsplit=1) for line in done.stdout.splitlines()[1:]]
    assert done.returncode == 0 and all(len(line) == 2 for line in lines)
    places = {place for place, _ in lines}
    assert {f"roles.NAME.{key}" for key in Role.model_fields} <= places
    assert {"roles.NAME.needs.NAME.round", "train.keep.episodes", "data.split.share"} <= places


def test_the_language_has_few_keys(rolegraph: Command) -> None:
    places = [line.split()[0] for line in rolegraph("list", "keys").stdout.splitlines()[1:]]
    assert sum(place.count(".") == 2 and place.startswith("roles.NAME.") for place in places) <= 26
    # Keys of a model, of a sampling and of an adapter are the same wherever one stands.
    anywhere = r".*\b(model|sampling|lora)(?=\.|$)"
    distinct = {re.sub(anywhere, r"\1", place.replace("sample_from.", "model.")) for place in places}
    assert len(distinct) <= 128


def test_a_key_is_found_by_its_name_or_its_place(rolegraph: Command) -> None:
    one = rolegraph("list", "keys", "roles.NAME.weight").stdout.splitlines()
    assert [line.split()[0] for line in one] == ["roles.NAME.weight"]
    both = rolegraph("list", "keys", "weight").stdout.splitlines()
    assert [line.split()[0] for line in both] == ["roles.NAME.group.weight", "roles.NAME.weight"]
    wrong = rolegraph("list", "keys", "wieght")
    assert (wrong.returncode, wrong.stderr) == (2, "error: no key 'wieght'; did you mean 'weight'?\n")
