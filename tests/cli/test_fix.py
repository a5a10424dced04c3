"""Tests of the patches of `rolegraph validate`: as JSON, and as `--fix` applies them to files."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from rolegraph.api import with_own_patches
from rolegraph.engine.compile.compiler import check_file
from rolegraph.engine.errors import did_you_mean, nearest
from rolegraph.engine.shipped import SPECS
from tests.cli.conftest import Command
from tests.examples import repetitions

BROKEN = """\
# a comment that stays
rolegraph: 2
name: mine
data: {train: "countdwn", validation: countdown}  # so does this one
roles:
  slover:
    promt: mine.j2
    parser: {tag: 'answer'}
    reward:   countdown
    estimator: 'gpro'
  judge:
    needs: [solver]
    prompt: "{{ task.qestion }} {{ solver.acton }} <answer>"
    parser: {tag: answer}
    reward: countdown
    estimator: reinforce
episode: {correct: judge.right}
train: {steps: 3}
"""
MENDED = {
    "countdwn": "countdown",
    "slover": "solver",
    "promt": "prompt",
    "gpro": "grpo",
    "qestion": "question",
    "acton": "action",
}
PROMPT = "{{ task.qustion }} Answer in <answer></answer>."


def mended(text: str) -> str:
    for wrong, right in MENDED.items():
        text = text.replace(wrong, right)
    return text


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "mine.yaml").write_text(BROKEN)
    (tmp_path / "prompts").mkdir()
    (tmp_path / "prompts" / "mine.j2").write_text(PROMPT)
    return tmp_path


def rows(rolegraph: Command, *words: str) -> Sequence[dict[str, Any]]:
    done = rolegraph("validate", *words, "--json")
    assert done.returncode in (0, 2), done.stderr
    return json.loads(done.stdout)["specs"]


def test_a_fault_has_its_code_its_keys_the_nearest_name_and_its_patch(
    rolegraph: Command, folder: Path
) -> None:
    (row,) = rows(rolegraph, "mine.yaml")
    faults = {it["hint"].split("'")[1]: it for it in row["diagnostics"] if "'" in it["hint"]}
    key = faults["prompt"]
    assert (key["code"], key["path"], key["nearest"]) == (
        "unknown-key",
        ["roles", "slover", "promt"],
        "prompt",
    )
    assert "estimator" in key["expected"].split(", ")
    place = {"line": 7, "column": 5, "end_line": 7, "end_column": 10}
    assert key["patch"] == {"file": "mine.yaml", **place, "before": "promt", "replacement": "prompt"}
    item = faults["grpo"]  # inside of its quotes
    assert (item["code"], item["patch"]["column"], item["place"]["column"]) == ("unknown-name", 17, 16)
    role = faults["slover"]  # two places say solver, and its key alone slover: the key is wrong
    assert (role["place"]["line"], role["patch"]["line"]) == (12, 6)
    assert role["patch"]["replacement"] == "solver"
    assert (folder / "mine.yaml").read_text() == BROKEN


@pytest.mark.parametrize("ends", ["\n", "\r\n"])
@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_fix_mends_names_and_leaves_every_other_character(
    rolegraph: Command, folder: Path, ends: str, mark: str
) -> None:
    spec = folder / "mine.yaml"
    spec.write_bytes((mark + BROKEN.replace("\n", ends)).encode())
    spec.chmod(0o600)
    done = rolegraph("validate", "mine.yaml", "--fix")
    assert done.returncode == 0, done.stdout + done.stderr
    assert spec.read_bytes() == (mark + mended(BROKEN).replace("\n", ends)).encode()
    assert (folder / "prompts" / "mine.j2").read_text() == PROMPT.replace("qustion", "question")
    assert spec.stat().st_mode & 0o777 == 0o600
    for line in (
        "mine.yaml:7:5: 'promt' is now 'prompt'",
        "prompts/mine.j2:1:9: 'qustion' is now 'question'",
    ):
        assert line in done.stdout.splitlines()
    assert sorted(path.name for path in folder.iterdir()) == ["mine.yaml", "prompts"]
    again = rolegraph("validate", "mine.yaml", "--fix")
    assert (again.returncode, "nothing to fix" in again.stdout) == (0, True)


def test_fix_with_json_lists_its_patches(rolegraph: Command, folder: Path) -> None:
    (row,) = rows(rolegraph, "mine.yaml", "--fix")
    assert row["valid"] and {it["severity"] for it in row["diagnostics"]} == {"warning"}
    assert {(it["before"], it["replacement"]) for it in row["fixed"]} == {
        *MENDED.items(),
        ("qustion", "question"),
    }


def test_what_cannot_be_fixed_is_left_and_the_exit_code_is_that_of_validate(
    rolegraph: Command, folder: Path
) -> None:
    text = BROKEN.replace("'gpro'", "nothing_like_it")
    (folder / "mine.yaml").write_text(text)
    done = rolegraph("validate", "mine.yaml", "--fix")
    assert done.returncode == 2
    assert (folder / "mine.yaml").read_text() == mended(text)
    assert "nothing_like_it" in done.stderr


def test_a_patch_belongs_to_the_file_of_its_text(rolegraph: Command, folder: Path) -> None:
    (folder / "child.yaml").write_text("extends: mine.yaml\nname: child\nroles: {judge: {cuont: 1}}\n")
    done = rolegraph("validate", "child.yaml", "--fix")
    assert done.returncode == 0, done.stdout + done.stderr
    assert (folder / "mine.yaml").read_text() == mended(BROKEN)
    assert "{judge: {count: 1}}" in (folder / "child.yaml").read_text()


def test_files_that_are_not_the_authors_are_not_changed(
    rolegraph: Command, tmp_path: Path, folder: Path
) -> None:
    inner, others = folder / "inner", folder / "others"
    inner.mkdir()
    others.mkdir()
    (others / "mine.j2").write_text(PROMPT)
    (inner / "mine.yaml").write_text(mended(BROKEN))
    (inner / "prompts").symlink_to(others)  # out of the spec's folder
    (inner / "linked.yaml").symlink_to(folder / "mine.yaml")
    for spec in ("inner/mine.yaml", "inner/linked.yaml"):
        done = rolegraph("validate", spec, "--fix")
        assert done.returncode == 2
        assert "nothing to fix" in done.stdout
    assert (others / "mine.j2").read_text() == PROMPT
    assert (folder / "mine.yaml").read_text() == BROKEN


@pytest.mark.parametrize("link", ["prompts", "prompts/mine.j2"])
def test_a_prompt_behind_a_link_is_not_changed(rolegraph: Command, folder: Path, link: str) -> None:
    (folder / "mine.yaml").write_text(mended(BROKEN))
    (folder / link).rename(folder / "real")
    (folder / link).symlink_to(folder / "real")
    done = rolegraph("validate", "mine.yaml", "--fix")
    assert done.returncode == 2
    assert (folder / "prompts" / "mine.j2").read_text() == PROMPT


def test_shipped_files_and_overrides_have_no_patch(rolegraph: Command, tmp_path: Path) -> None:
    (row,) = rows(rolegraph, "solver_judge", "roles.solver.parser=tga", "roles.judge.pormpt=judge.j2")
    faults = [it for it in row["diagnostics"] if it["severity"] == "error"]
    (tmp_path / "command line").write_text("roles.solver.parser=tga")  # messages show overrides by this name
    assert (
        "nothing to fix" in rolegraph("validate", "solver_judge", "roles.solver.parser=tga", "--fix").stdout
    )
    assert (tmp_path / "command line").read_text().endswith("=tga")
    assert {(it["nearest"], it["patch"]) for it in faults} == {("tag", None), ("prompt", None)}


def test_a_key_that_the_mapping_has_already_gets_no_patch(rolegraph: Command, folder: Path) -> None:
    text = mended(BROKEN).replace("    prompt: mine.j2\n", "    prompt: mine.j2\n    promt: mine.j2\n")
    (folder / "mine.yaml").write_text(text)
    (folder / "prompts" / "mine.j2").write_text(PROMPT.replace("qustion", "question"))
    (row,) = rows(rolegraph, "mine.yaml")
    assert [(it["nearest"], it["patch"]) for it in row["diagnostics"]] == [("prompt", None)]


def test_a_name_that_is_there_with_a_fault_is_not_taken_for_a_misspelt_one(
    rolegraph: Command, tmp_path: Path
) -> None:
    text = (SPECS / "mixture_of_agents.yaml").read_text("utf-8").replace("sampling:", "ampling:", 1)
    (tmp_path / "mine.yaml").write_text(text)
    done = rolegraph("validate", "mine.yaml", "--fix")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "mine.yaml").read_text() == text.replace("ampling:", "sampling:", 1)


def test_two_names_that_are_equally_near_are_not_certain() -> None:
    hint = did_you_mean("solver_3", ["solver_1", "solver_2"])
    assert hint and nearest("solver_3", ["solver_1", "solver_2"])
    assert not getattr(hint, "certain")  # noqa: B009  # the type of a hint is str
    assert getattr(did_you_mean("solvre_1", ["solver_1", "solver_2"]), "certain")  # noqa: B009


def test_the_tests_of_a_spec_are_fixed_as_well(rolegraph: Command, tmp_path: Path) -> None:
    (tmp_path / "mine.test.yaml").write_text("taks: 8  # tasks\nexpect: {figures: {correct: 0.5}}\n")
    done = rolegraph("validate", "mine.test.yaml", "--fix")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "mine.test.yaml").read_text().startswith("tasks: 8  # tasks\n")


def misspelt(word: str, rng: random.Random) -> str:
    place = rng.randrange(len(word) - 1)
    swapped = word[:place] + word[place + 1] + word[place] + word[place + 2 :]
    return rng.choice([swapped, word[:place] + word[place + 1 :], word[: place + 1] + word[place:]])


def test_fix_restores_a_shipped_spec_after_a_slip_and_never_changes_a_valid_one(
    rolegraph: Command, tmp_path: Path
) -> None:
    slips = repetitions(60, 20)
    rng, mine, outcomes = random.Random(7), tmp_path / "mine.yaml", list[bool]()
    specs = [path for path in sorted(SPECS.glob("*.yaml")) if path.stem != "textarena"]
    for _ in range(slips):
        original = rng.choice(specs)
        text = original.read_text("utf-8")
        prose = [match.span() for match in re.finditer(r"(?m)#.*$|^description:.*\n(?:  .*\n)*", text)]
        words = [
            match
            for match in re.finditer(r"[A-Za-z_]{4,}", text)
            if not any(start <= match.start() < end for start, end in prose)
        ]
        word = rng.choice(words)
        broken = text[: word.start()] + misspelt(word[0], rng) + text[word.end() :]
        mine.write_text(broken)
        before = check_file(mine)
        rolegraph("validate", "mine.yaml", "--fix", "--quiet")
        if before.plan is not None or not any(it.patch for it in with_own_patches(mine, before.diagnostics)):
            assert mine.read_text() == broken
            continue
        after = check_file(mine).plan
        outcomes.append(after is not None and after.hash == check_file(original).valid().hash)
    assert len(outcomes) > slips / 2
    assert sum(outcomes) >= 0.95 * len(outcomes), outcomes
