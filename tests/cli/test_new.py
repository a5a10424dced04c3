"""Tests of `rolegraph new`: its files are valid, tested and runnable, and replace no other files."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from rolegraph.engine.compile import check_file
from rolegraph.engine.records.folder import RunFolder
from tests.cli import printed
from tests.cli.conftest import ROOT, Command
from tests.edge import ScriptedModel, run_one


def own_tests(rolegraph: Command, spec: str) -> int:
    """Run the tests of a new folder's spec, and return how many hold."""
    done = rolegraph("test", spec)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.count("ok ")


def test_the_folder_is_complete_valid_and_passes_its_own_tests(rolegraph: Command, tmp_path: Path) -> None:
    done = rolegraph("new", "mine")
    assert done.returncode == 0, done.stderr
    following = ["cd mine", "rolegraph test", "rolegraph preview mine.yaml", "rolegraph run mine.yaml"]
    assert [line.removeprefix("next: ").strip() for line in done.stdout.splitlines()[-4:]] == following
    written = {path for path in (tmp_path / "mine").rglob("*.*") if path.is_file()}
    assert {str(path.relative_to(tmp_path)) for path in written if path.suffix != ".pyc"} == {
        f"mine/{name}"
        for name in (
            "AGENTS.md",
            "README.md",
            "mine.answers.jsonl",
            "mine.test.yaml",
            "mine.yaml",
            "prompts/judge.j2",
            "prompts/solver.j2",
            "rewards.py",
            "rolegraph.toml",
            "rolegraph.schema.json",
            "train.jsonl",
            "validation.jsonl",
        )
    }
    text = (tmp_path / "mine" / "mine.yaml").read_text("utf-8")
    assert text.startswith(
        "# yaml-language-server: $schema=rolegraph.schema.json\nrolegraph: 2\nname: mine\n"
    )
    assert '"mine_reward"' in (tmp_path / "mine" / "rolegraph.schema.json").read_text("utf-8")
    done = rolegraph("validate", "mine/mine.yaml")
    assert done.returncode == 0, done.stderr
    assert "10 train tasks read; 10 validation tasks read" in done.stdout
    assert own_tests(rolegraph, "mine/mine.yaml") == 4
    guide = (tmp_path / "mine" / "AGENTS.md").read_text("utf-8")
    assert "rolegraph validate mine.yaml" in guide


def test_the_printed_commands_work_as_printed_and_the_test_watches_the_reward(tmp_path: Path) -> None:
    into, *commands = printed.printed(printed.done("rolegraph new mine", tmp_path))
    assert [line.split()[1] for line in (into, *commands)] == ["mine", "test", "preview", "run"]
    tested, _ = (printed.done(f"{into} && {line}", tmp_path) for line in commands[:2])
    assert "4 hold, 0 do not" in tested
    rewards = tmp_path / "mine" / "rewards.py"
    rewards.write_text(rewards.read_text("utf-8").replace("return float(", "return 0.5 * float("))
    changed = printed.shell("rolegraph test", tmp_path / "mine")
    output, _ = changed.communicate()
    assert (changed.returncode, output.count("FAIL")) == (1, 1), output


def test_without_a_spec_each_tested_spec_of_the_folder_is_tested(rolegraph: Command, tmp_path: Path) -> None:
    assert "no spec here has tests" in rolegraph("test").stderr
    rolegraph("new", "mine", "--from", "tic_tac_toe")
    for path in (tmp_path / "mine").iterdir():
        path.rename(tmp_path / path.name)
    tests = "answers: mine.answers.jsonl\nprompts: any\nexpect: {failures: 0}\n"
    (tmp_path / "other.yaml").write_text("extends: mine.yaml\nname: other\n")
    (tmp_path / "other.test.yaml").write_text(tests)
    tested = rolegraph("test")
    assert (tested.returncode, tested.stdout.count("2 hold, 0 do not")) == (0, 2), tested.stderr
    (tmp_path / "mine.test.yaml").write_text(tests.replace("failures: 0", "tokens: {answers: 0}"))
    assert rolegraph("test").returncode == 1
    assert "name it" in rolegraph("test", "--record").stderr


@pytest.mark.parametrize(
    ("spec", "reward"),
    [
        ("debate", True),
        ("solver_judge_validator", True),  # extends another spec
        ("judge_with_reference", False),  # shows a hidden field, and rewards come from the judge
        ("tic_tac_toe", False),  # has no dataset rows
        ("react", True),  # calls an MCP server
    ],
)
def test_a_new_workflow_begins_as_any_shipped_spec(
    rolegraph: Command, tmp_path: Path, spec: str, reward: bool
) -> None:
    done = rolegraph("new", "sub/own", "--from", spec)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "sub/own/rewards.py").exists() == reward
    done = rolegraph("validate", "sub/own/own.yaml")
    assert done.returncode == 0, done.stderr
    assert "(shipped)" not in done.stdout + done.stderr  # all that it needs is in the folder
    written = yaml.safe_load((tmp_path / "sub/own/own.yaml").read_text("utf-8"))
    assert written["name"] == "own"
    assert "extends" not in written


def test_what_is_not_changed_stays_as_it_was_written(rolegraph: Command, tmp_path: Path) -> None:
    rolegraph("new", "own", "--from", "router")
    lines = (tmp_path / "own" / "own.yaml").read_text("utf-8").splitlines()
    was = (ROOT / "specs" / "router.yaml").read_text("utf-8").splitlines()
    changed = [line for line in lines if line not in was]
    assert changed == [
        "# yaml-language-server: $schema=rolegraph.schema.json",
        "name: own",
        "  train: train.jsonl",
        "  validation: validation.jsonl",
        "  hidden: [solution]",
        "    reward: own_reward",
        "    reward: own_reward",
        "train: {rollouts: 8, batch_size: 5, steps: 30}",
    ]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("full",), "full is not empty: file.txt is in the way; choose a new or an empty folder"),
        (
            ("full/file.txt",),
            "'file.txt' is not a workflow name; use letters, digits and _, as in 'file_txt'",
        ),
        (("my-flow",), "'my-flow' is not a workflow name; use letters, digits and _, as in 'my_flow'"),
        (("own", "--from", "debatte"), "no shipped spec or recipe 'debatte'; did you mean 'debate'?"),
    ],
)
def test_new_writes_nothing_where_it_cannot(
    rolegraph: Command, tmp_path: Path, words: tuple[str, ...], said: str
) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file.txt").write_text("kept")
    done = rolegraph("new", *words)
    assert (done.returncode, done.stderr) == (2, f"error: {said}\n")
    assert [path.name for path in tmp_path.rglob("*")] == ["full", "file.txt"]


def test_an_empty_folder_is_taken(rolegraph: Command, tmp_path: Path) -> None:
    (tmp_path / "own").mkdir()
    assert rolegraph("new", "own").returncode == 0


@pytest.mark.service
def test_a_new_workflow_runs_on_the_shipped_model_at_once(
    rolegraph: Command, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    pytest.importorskip("torch", reason="needs the extra `local`")
    service = request.getfixturevalue("service")
    rolegraph("new", "mine")
    words = ("run", "mine/mine.yaml", "--limit", "4", "--out", "out")
    done = rolegraph(*words, "--base-url", service.base_url, TINKER_API_KEY=service.api_key)
    assert done.returncode == 0, done.stderr
    figures = RunFolder(tmp_path / "out").info().figures
    assert figures["episodes"] == 4
    assert not any("reward_error" in name for name in figures)


TABLES = {
    "sentiment": ("text,label", [(f"remark {n}", "good" if n % 3 else "bad") for n in range(60)]),
    "rated": ("review;number of stars", [(f"remark {n}", 1 + n % 5) for n in range(60)]),
    "sums": ("question\tanswer", [(f"{n} + {n}", 2 * n) for n in range(60)]),
    "words": ("typed,{{ correct }}", [(f"wrod{n}", f"word{n}") for n in range(60)]),
    "truth": ("statement,is it", [(f"statement {n}", n % 2 == 0) for n in range(60)]),
}
"""Header, with its delimiter, and rows of a table for each kind of label."""


SPLITS = ("train", "validation", "test")


def rows_of(folder: Path, split: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / f"{split}.jsonl").read_text("utf-8").splitlines()]


def write_table(file: Path, header: str, rows: Sequence[Sequence[object]]) -> None:
    delimiter = next(sign for sign in ",;\t" if sign in header)
    lines = (delimiter.join(map(str, row)) for row in rows)
    file.write_text("\n".join([header, *lines]) + "\n", encoding="utf-8")


@pytest.mark.parametrize("name", TABLES)
def test_a_table_becomes_a_workflow_that_passes_its_own_tests(
    rolegraph: Command, tmp_path: Path, name: str
) -> None:
    write_table(tmp_path / "rows.csv", *TABLES[name])
    done = rolegraph("new", f"sub/{name}", "--data", "rows.csv")
    assert done.returncode == 0, done.stderr
    asks, label = re.split("[,;\t]", TABLES[name][0])
    assert repr(label) in done.stdout
    following = [line.strip().removeprefix("next: ") for line in done.stdout.splitlines()[-3:]]
    assert [line.split()[1] for line in following] == ["fetch", "train", "eval"]
    folder = tmp_path / "sub" / name
    asked = {split: {row[asks] for row in rows_of(folder, split)} for split in SPLITS}
    assert not asked["train"] & asked["validation"]
    assert not asked["test"] & (asked["train"] | asked["validation"])
    assert sum(map(len, asked.values())) == 60
    assert own_tests(rolegraph, f"sub/{name}/{name}.yaml") == 4


def test_objects_are_read_from_json_lines(rolegraph: Command, tmp_path: Path) -> None:
    rows = [{"order": f"{n} cups", "wanted": {"item": "cup", "how many": n}} for n in range(40)]
    (tmp_path / "rows.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    done = rolegraph("new", "own", "--data", "rows.jsonl")
    assert done.returncode == 0, done.stderr
    assert own_tests(rolegraph, "own/own.yaml") == 4


def test_an_answer_may_be_as_long_as_the_longest_label(rolegraph: Command, tmp_path: Path) -> None:
    rows = [
        {"day": f"{n} May {year}", "date": f"{year}-05-{n:02}"} for year in (1964, 1999) for n in range(1, 29)
    ]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    assert rolegraph("new", "own", "--data", "rows.jsonl").returncode == 0
    spec = yaml.safe_load((tmp_path / "own" / "own.yaml").read_text("utf-8"))
    # Most tokenizers take digits and hyphens one by one; the end is a token, too.
    assert spec["roles"]["solver"]["sampling"]["max_tokens"] >= len("1964-05-01") + 1


def test_rare_labels_are_written_several_times_in_training_alone(rolegraph: Command, tmp_path: Path) -> None:
    rows = [(f"remark {n}", "bad" if n % 5 == 0 else "good") for n in range(100)]
    write_table(tmp_path / "rows.csv", "text,label", rows)
    rolegraph("new", "own", "--data", "rows.csv")
    labels = {split: [row["label"] for row in rows_of(tmp_path / "own", split)] for split in SPLITS}
    rare = {split: its.count("bad") / len(its) for split, its in labels.items()}
    assert rare["train"] > 0.3
    assert (labels["validation"] + labels["test"]).count("bad") / 40 < 0.35


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("own", "--data", "rows.csv"), ["'one'", "'two'", "'three'", "--label"]),
        (("own", "--data", "rows.csv", "--label", "tree"), ["'tree'", "'three'"]),
        (("own", "--data", "short.csv"), ["20", "5"]),
        (("own", "--data", "rows.txt"), [".csv"]),
        (("own", "--data", "none.csv"), ["none.csv"]),
        (("own", "--data", "rows.csv", "--from", "debate"), ["--from", "--data"]),
        (("own", "--label", "three"), ["--label", "--data"]),
    ],
)
def test_a_table_that_does_not_say_enough_is_an_error_and_writes_nothing(
    rolegraph: Command, tmp_path: Path, words: tuple[str, ...], expected: list[str]
) -> None:
    write_table(tmp_path / "rows.csv", "one,two,three", [(f"a{n}", f"b{n}", f"c{n}") for n in range(40)])
    write_table(tmp_path / "short.csv", "text,label", [(f"a{n}", "xy"[n % 2]) for n in range(5)])
    (tmp_path / "rows.txt").write_text("a\n")
    done = rolegraph("new", *words)
    assert done.returncode == 2
    assert all(word in done.stderr for word in expected), done.stderr
    assert not (tmp_path / "own").exists()


def test_a_table_whose_training_rows_have_one_label_is_an_error_and_writes_nothing(
    rolegraph: Command, tmp_path: Path
) -> None:
    codes: set[int] = set()
    for place in range(8):  # of the single other label, which a hash puts into one of the three files
        rows = [(f"row {n}", "b" if n == place else "a") for n in range(20)]
        write_table(tmp_path / f"rows{place}.csv", "text,label", rows)
        done = rolegraph("new", f"own{place}", "--data", f"rows{place}.csv")
        assert "internal" not in done.stderr, done.stderr
        assert (tmp_path / f"own{place}").exists() == (done.returncode == 0)
        codes.add(done.returncode)
    assert codes == {0, 2}


def test_a_row_that_stands_twice_is_no_copy_of_a_rare_label(rolegraph: Command, tmp_path: Path) -> None:
    rows = [(f"row {n // 2}", "ab"[n // 2 % 2]) for n in range(80)]
    write_table(tmp_path / "rows.csv", "text,label", rows)
    done = rolegraph("new", "own", "--data", "rows.csv")
    assert done.returncode == 0, done.stderr
    texts = [row["text"] for row in rows_of(tmp_path / "own", "train")]
    assert ("balance" in done.stdout) == any(texts.count(text) > 2 for text in texts)


def test_label_chooses_the_column(rolegraph: Command, tmp_path: Path) -> None:
    write_table(tmp_path / "rows.csv", "one,two,three", [(f"a{n}", f"b{n % 3}", f"c{n}") for n in range(40)])
    done = rolegraph("new", "own", "--data", "rows.csv", "--label", "three")
    assert done.returncode == 0, done.stderr
    spec = yaml.safe_load((tmp_path / "own" / "own.yaml").read_text("utf-8"))
    assert spec["data"]["hidden"] == ["three"]
    assert rolegraph("validate", "own/own.yaml").returncode == 0


def test_the_validator_of_the_folder_s_readme_has_a_policy_of_its_own(
    rolegraph: Command, tmp_path: Path
) -> None:
    write_table(tmp_path / "rows.csv", "text,label", [(f"row {n}", "ab"[n % 2]) for n in range(60)])
    assert rolegraph("new", "own", "--data", "rows.csv").returncode == 0
    folder = tmp_path / "own"
    assert list(yaml.safe_load((folder / "own.yaml").read_text())["roles"]) == ["solver"]
    (block,) = re.findall(r"```yaml\n(.*?)```", (folder / "README.md").read_text(), re.DOTALL)
    (folder / "own_validator.yaml").write_text(block)
    plan = check_file(folder / "own_validator.yaml").valid()
    assert {name: plan.policies_of(name) for name in plan.trained} == {
        "solver": {"main"},
        "validator": {"validator"},
    }


def test_a_short_text_is_right_whatever_its_case_and_punctuation(rolegraph: Command, tmp_path: Path) -> None:
    rows = [(f"row {n}", f"City {n}") for n in range(60)]
    write_table(tmp_path / "rows.csv", "text,label", rows)
    assert "whatever its case and punctuation" in rolegraph("new", "own", "--data", "rows.csv").stdout
    plan = check_file(tmp_path / "own" / "own.yaml").valid()
    task = rows_of(tmp_path / "own", "train")[0] | {"examples": []}
    for answer in (task["label"], f"{task['label'].lower()}."):
        assert run_one(plan, ScriptedModel(lambda _, answer=answer: answer), task).is_correct
