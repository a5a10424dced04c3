"""Tests of `rolegraph skill`: its names, its blocks of YAML, and specs that were written with it alone."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml

from rolegraph.engine.spec import Role, Spec
from tests.cli.conftest import Command

TASKS = Path(__file__).parent.parent / "data" / "skill_tasks"
"""Specs for ten requests, such as "add a validator", that a reader of the skill wrote with nothing else."""
WORDS = 1200


@pytest.fixture
def text(rolegraph: Command) -> str:
    return rolegraph("skill").stdout


def table(text: str, head: str) -> dict[str, str]:
    """Return the rows of one of the text's tables, by the names in the first column."""
    part = text.split(f"\n| {head} | |\n| --- | --- |\n")[1].split("\n\n")[0]
    return dict(re.findall(r"^\| `(.+?)` \| (.+) \|$", part, re.MULTILINE))


def test_the_skill_has_front_matter_and_two_pages(text: str) -> None:
    _, head, body = text.split("---\n", 2)
    front = yaml.safe_load(head)
    assert front["name"] == "rolegraph" and 0 < len(front["description"]) <= 1024
    prose = re.sub(r"(?s)```.*?```", "", body)
    assert len(re.findall(r"[\w.]+", prose)) <= WORDS


def test_each_block_of_yaml_is_a_spec_without_fault_or_warning(
    rolegraph: Command, tmp_path: Path, text: str
) -> None:
    blocks = re.findall(r"(?s)```yaml\n(.*?)```", text)
    assert len(blocks) >= 3
    (tmp_path / "rows.csv").write_text("q,a\n" + "".join(f"{n}+1,{n + 1}\n" for n in range(20)))
    for number, block in enumerate(blocks):
        (tmp_path / f"{number}.yaml").write_text(block)
        done = rolegraph("validate", f"{number}.yaml", "--model", "tinker:own")
        assert (done.returncode, done.stderr) == (0, ""), done.stderr


def test_the_tables_have_every_key_and_item_and_no_other(rolegraph: Command, text: str) -> None:
    assert {*table(text, "top key")} == {*Spec.model_fields, "extends"}
    assert {*table(text, "role key")} == {*Role.model_fields}
    for kind in ("parsers", "rewards", "estimators"):
        listed = re.findall(r"^  (\w+)  ", rolegraph("list", kind).stdout, re.MULTILINE)
        assert listed and {*table(text, kind.removesuffix("s"))} == {*listed}


def test_each_form_of_an_item_is_one_that_a_spec_may_write(
    rolegraph: Command, tmp_path: Path, text: str
) -> None:
    spec = yaml.safe_load(re.findall(r"(?s)```yaml\n(.*?)```", text)[0])
    rows = "question,answer,a,checks,solution\n" + "q,1,1,assert True,1\n" * 4
    (tmp_path / "rows.csv").write_text(rows)
    spec["data"] = {"train": "rows.csv"}
    spec["episode"] = {}
    spec["roles"]["judge"]["reward"] = "1"
    spec["roles"]["vote"] = {"needs": ["solver"], "run": "majority"}
    for kind, role in (("parser", "validator"), ("reward", "validator")):
        for name, meaning in table(text, kind).items():
            for form in re.findall(r"`(\{.+?\})`(?= |:|;|,|$| or)", meaning.replace("\\\\", "\\")):
                written = yaml.safe_load(form)
                if name not in written and name != "one_of":
                    continue
                target = role if "solver" in form or "judge" in form or "vote" in form else "solver"
                other = {**spec, "roles": {it: dict(of) for it, of in spec["roles"].items()}}
                other["roles"][target][kind] = written
                if target == "validator":
                    other["roles"][target]["needs"] = ["judge", "solver"]
                if kind == "parser":
                    other["roles"][target]["reward"] = "1"
                (tmp_path / "form.yaml").write_text(json.dumps(other))
                done = rolegraph("validate", "form.yaml")
                faults = [part for part in done.stderr.split("\n\n") if f"{kind} '{name}'" in part]
                assert not [fault for fault in faults if ": error:" in fault], (form, done.stderr)


@pytest.mark.parametrize("spec", sorted(TASKS.glob("*.yaml")), ids=lambda path: path.stem)
def test_specs_that_were_written_with_the_skill_alone_are_valid(rolegraph: Command, spec: Path) -> None:
    done = rolegraph("validate", str(spec), "--model", "tinker:own")
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    shown = rolegraph("preview", str(spec))
    assert shown.returncode == 0, shown.stderr


def test_a_skill_folder_is_written_and_written_again_but_no_other_file_is_replaced(
    rolegraph: Command, tmp_path: Path, text: str
) -> None:
    file = tmp_path / "skills" / "rolegraph" / "SKILL.md"
    for _ in range(2):
        done = rolegraph("skill", "skills")
        assert done.stdout.strip() == "wrote skills/rolegraph/SKILL.md", done.stderr
        assert file.read_text("utf-8") == text
        file.write_text(text.replace("# Rolegraph specs", "# An older text"), "utf-8")
    file.write_text("mine")
    assert rolegraph("skill", "skills").returncode == 2
    assert file.read_text() == "mine"
    assert rolegraph("skill", "skills/rolegraph/SKILL.md").returncode == 2


def test_a_new_folder_has_the_same_text_with_its_spec_and_its_reward(
    rolegraph: Command, tmp_path: Path, text: str
) -> None:
    rolegraph("new", "mine")
    guide = (tmp_path / "mine" / "AGENTS.md").read_text("utf-8").splitlines()
    added = [line for line in guide if line and line not in text.splitlines()]
    assert [("mine.yaml" in line, "mine_reward" in line) for line in added] == [(True, False), (False, True)]
    body = text.split("---\n", 2)[2].splitlines()
    assert [line for line in body if line and line not in guide] == []
