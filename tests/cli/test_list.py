"""Tests of `rolegraph list`, which shows the items that a spec may use, with their options."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
import yaml

from tests.cli.conftest import ENVIRONMENT, Command
from tests.forks import ForkedCommand


def test_everything_there_is_has_a_line(rolegraph: Command) -> None:
    done = rolegraph("list")
    assert done.returncode == 0
    for word in ("specs", "solver_judge", "parsers", "tag", "reverse_kl", "datasets", "huggingface"):
        assert word in done.stdout


def test_one_kind_alone(rolegraph: Command) -> None:
    done = rolegraph("list", "signals")
    assert [line.split()[0] for line in done.stdout.splitlines()] == ["signals", "imitation", "reverse_kl"]


@pytest.mark.parametrize("form", [[], ["--json"], ["--csv"]])
def test_a_kind_without_items_is_an_empty_list(form: list[str], rolegraph: Command) -> None:
    done = rolegraph("list", "metrics", *form)
    assert (done.returncode, done.stdout.strip()) == (0, "")
    assert "expressions" in done.stderr


def test_an_item_is_shown_as_a_spec_writes_it_with_what_each_option_means(rolegraph: Command) -> None:
    summary, blank, heading, *rows = rolegraph("list", "parsers", "choice").stdout.splitlines()
    assert (bool(summary), blank, heading) == (True, "", "roles.ROLE.parser:")
    assert [row.partition("  # ")[0].rstrip() for row in rows] == [
        "  choice: …",
        '  tag: "answer"',
        "  default: null",
    ]


def test_every_option_has_its_type_its_default_and_its_line(rolegraph: Command) -> None:
    rows = rolegraph("list", "parsers", "tag").stdout.splitlines()[3:]
    assert [re.split(r"\s{2,}(?:# )?", row.strip()) for row in rows] == [
        ["tag: …", "text, required", "the tag, without angle brackets"],
        [
            'as: "text"',
            "a list of texts, or text, or a mapping",
            "what the text is: text, number, json, a list of words, or another parser",
        ],
        ["keep_tag: false", "true or false", "leave the tags on a text"],
        ["ignore_case: true", "true or false", "take <Answer> for <answer>"],
        [
            "default: null",
            "anything",
            "the action that later roles see where nothing can be read; beside a list of words, also another",
        ],
    ]


def test_an_item_without_a_value_has_its_options_below_its_name(rolegraph: Command) -> None:
    shown = rolegraph("list", "datasets", "countdown").stdout.partition("\n\n")[2]
    (written,) = yaml.safe_load(shown).values()
    assert written["countdown"]["numbers"] == [2, 3]
    assert written["countdown"]["operators"] == "+-*/"


def test_an_environment_is_shown_where_a_loop_names_it(rolegraph: Command) -> None:
    shown = rolegraph("list", "environments", "tic_tac_toe").stdout.partition("\n\n")[2]
    assert yaml.safe_load(shown) == {
        "loops.NAME.env": {"tic_tac_toe": {"opening": 0, "illegal": "loses"}},
    }


def test_an_item_without_options_is_its_name(rolegraph: Command) -> None:
    assert rolegraph("list", "parsers", "text").stdout.endswith("\nroles.ROLE.parser: text\n")


def test_a_spec_is_shown_as_it_is_written(rolegraph: Command) -> None:
    assert rolegraph("list", "specs", "solver_judge").stdout.startswith("rolegraph: 2\nname: solver_judge\n")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("parsers", "tga"), "unknown parser 'tga'; did you mean 'tag'?"),
        (("signals", "xyz"), "unknown signal 'xyz'; expected one of imitation, reverse_kl"),
        (("specs", "solver_jugde"), "did you mean solver_judge?"),
    ],
)
def test_a_name_that_is_not_there_brings_the_nearest(
    rolegraph: Command, words: tuple[str, str], said: str
) -> None:
    done = rolegraph("list", *words)
    assert done.returncode == 2
    assert said in done.stderr


@pytest.mark.parametrize("words", [["list"], ["list", "keys"], ["--help"], ["validate", "solver_judge"]])
def test_a_reader_that_has_seen_enough_ends_any_command_as_sigpipe_does(
    words: list[str], tmp_path: Path
) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    done = ForkedCommand(words, cwd=tmp_path, env=ENVIRONMENT, stdout=writing)
    os.close(writing)
    _, noted = done.communicate()
    assert (done.returncode, noted) == (141, "")
