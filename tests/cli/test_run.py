"""Tests of `rolegraph run`: output, exit codes and files."""

from __future__ import annotations

import json
import os
import re
import stat
from pathlib import Path

import pytest

from rolegraph.engine.records.episodes import read_episodes
from rolegraph.engine.records.folder import RunFolder
from tests.cli.conftest import Command, step
from tests.edge import write_spec
from tests.models.edges import chat_answer, serving


def test_a_run_ends_in_a_table_per_role_and_an_episode_per_task(
    process: Command, recording: Path, tmp_path: Path
) -> None:
    done = process("run", "solver_judge", "--limit", "10", "--model", f"replay:{recording}", "--out", "out")
    assert done.returncode == 0, done.stderr
    assert "10 episodes" in done.stdout
    assert "correct 100.0%" in done.stdout and "judge_acc" not in done.stdout
    for word in ("role", "reward", "right", "tokens", "failures", "solver", "judge"):
        assert word in done.stdout
    episodes = list(read_episodes(tmp_path / "out" / "episodes.jsonl"))
    assert len(episodes) == 10
    assert all(len(episode.trajectories) == 3 for episode in episodes)
    assert "rolegraph: 2" in (tmp_path / "out" / "spec.yaml").read_text()


def test_a_run_notes_what_it_is_of_and_what_it_came_to(
    rolegraph: Command, recording: Path, tmp_path: Path
) -> None:
    words = ("run", "solver_judge", "train.steps=1", "--limit", "10", "--out", "out", "--seed", "3")
    rolegraph(*words, "--model", f"replay:{recording}")
    info = RunFolder(tmp_path / "out").info()
    assert (info.kind, info.name, info.seed) == ("run", "solver_judge", 3)
    assert (info.spec, info.overrides) == ("solver_judge", ("train.steps=1",))
    assert info.command.startswith("rolegraph run solver_judge train.steps=1 --limit 10 ")
    assert info.roles["judge"].estimator == "reinforce"
    assert (info.figures["episodes"], info.figures["judge_acc"]) == (10, 1)
    assert info.started and info.finished and info.started < info.finished


def test_runs_of_one_second_have_folders_of_their_own(
    rolegraph: Command, recording: Path, tmp_path: Path
) -> None:
    for _ in range(4):
        done = rolegraph("run", "solver_judge", "--limit", "1", "--model", f"replay:{recording}")
        assert done.returncode == 0, done.stderr
    assert len([*tmp_path.glob("runs/solver_judge-*/episodes.jsonl")]) == 4


def test_a_run_that_fails_notes_its_end(rolegraph: Command, tmp_path: Path) -> None:
    url = "http://me:secret@127.0.0.1:9"
    done = rolegraph("run", "solver_judge", "--base-url", url, "--out", "out", TINKER_API_KEY="tml-x")
    assert done.returncode == 1
    info = RunFolder(tmp_path / "out").info()
    assert info.finished
    assert info.figures == {"episodes": 0}
    assert info.command == "rolegraph run solver_judge --base-url http://127.0.0.1:9 --out out"
    assert all("secret" not in file.read_text() for file in (tmp_path / "out").iterdir())


def test_a_written_run_can_be_replayed_and_gives_the_same_episodes(
    rolegraph: Command, recording: Path, tmp_path: Path
) -> None:
    rolegraph("run", "solver_judge", "--limit", "10", "--model", f"replay:{recording}", "--out", "one")
    rolegraph("run", "solver_judge", "--limit", "10", "--model", "replay:one/episodes.jsonl", "--out", "two")

    def without_model_and_times(folder: str) -> list[object]:
        lines = (tmp_path / folder / "episodes.jsonl").read_text().splitlines()
        episodes = [json.loads(line) | {"info": None} for line in lines]
        for made in (s for episode in episodes for t in episode["trajectories"] for s in t["steps"]):
            assert made["info"].pop("started") >= 0 and made["info"].pop("seconds") >= 0
        return sorted(episodes, key=lambda e: e["id"])

    assert without_model_and_times("one") == without_model_and_times("two")


def test_a_replay_of_a_changed_prompt_fails_by_its_role_and_is_answered_when_asked_for(
    rolegraph: Command, recording: Path
) -> None:
    words = ("run", "solver_judge", "--limit", "10", "--model", f"replay:{recording}")
    first = rolegraph(*words, "--out", "first")
    assert first.returncode == 0, first.stderr
    changed = (*words[:-1], "replay:first/episodes.jsonl", "roles.judge.prompt=Choose one")
    refused = rolegraph(*changed, "--out", "refused")
    assert refused.stdout.count("the prompt of judge is not the recorded one") == 1
    assert "the prompt of solver" not in refused.stdout
    answered = rolegraph(*changed, "--replay-any", "--out", "answered")
    assert "model_error" not in answered.stdout, answered.stdout


def test_the_tokens_that_an_endpoint_counts_are_shown_and_stay_with_the_episode(rolegraph: Command) -> None:
    usage = {"prompt_tokens": 1100, "completion_tokens": 70, "total_tokens": 1170}
    with serving(lambda _: chat_answer("<answer>1</answer>", usage=usage)) as endpoint:
        where = ("--model", "openai:tiny", "--base-url", endpoint.base_url)
        asked = rolegraph("run", "solver_judge", "--limit", "1", *where, "--out", "asked")
    again = rolegraph(
        "run", "solver_judge", "--limit", "1", "--model", "replay:asked/episodes.jsonl", "--out", "again"
    )
    for done in (asked, again):
        assert done.returncode == 0, done.stderr
        rows = {words[0]: words for line in done.stdout.splitlines() if (words := line.split())}
        assert rows["solver"][4:6] == ["2,200", "140"]
        assert rows["judge"][4:6] == ["1,100", "70"]


def test_an_override_changes_the_run(rolegraph: Command, recording: Path, tmp_path: Path) -> None:
    words = ("run", "solver_judge", "--limit", "1", "--model", f"replay:{recording}", "--out", "out")
    assert rolegraph(*words, "roles.solver.count=1", "train.rollouts=2").returncode == 0
    (episode,) = read_episodes(tmp_path / "out" / "episodes.jsonl")
    solver, judge = episode.trajectories
    assert (solver.name, judge.name) == ("solver", "judge")
    assert judge.failure is None
    assert judge.steps[0].action == solver.steps[0].action
    assert episode.is_correct


def assert_one_clear_message(done: object, code: int, *words: str) -> None:
    stderr: str = getattr(done, "stderr")  # noqa: B009
    assert getattr(done, "returncode") == code, stderr  # noqa: B009
    assert "Traceback" not in stderr
    assert "internal error" not in stderr
    for word in words:
        assert word in " ".join(stderr.split())


def test_a_missing_spec_names_the_nearest(rolegraph: Command) -> None:
    assert_one_clear_message(rolegraph("run", "solver_jugde"), 2, "no spec", "solver_judge")


def test_a_broken_spec_shows_its_faults(rolegraph: Command, tmp_path: Path) -> None:
    write_spec(tmp_path, "rolegraph: 2\nname: x\nroles: {a: {promt: b}}", "x.yaml")
    assert_one_clear_message(
        rolegraph("run", "x.yaml"), 2, "x.yaml:3:13: error: unknown key 'promt'", "did you mean"
    )


def test_a_dataset_without_a_column_is_named(rolegraph: Command, tmp_path: Path) -> None:
    (tmp_path / "tasks.jsonl").write_text('{"question": "q"}\n')
    spec = "extends: solver_judge.yaml\ndata: {train: null, validation: tasks.jsonl}"
    write_spec(tmp_path, spec, "x.yaml")
    assert_one_clear_message(rolegraph("run", "x.yaml"), 2, "reads task.nums", "it has id, question")


def test_a_broken_row_is_named_with_its_line(rolegraph: Command, recording: Path, tmp_path: Path) -> None:
    row = '{"question": "q", "nums": [1], "target": 1}\n'
    (tmp_path / "tasks.jsonl").write_text(row + "{oops\n")
    write_spec(tmp_path, "extends: solver_judge.yaml\ndata: {train: null, validation: tasks.jsonl}", "x.yaml")
    done = rolegraph("run", "x.yaml", "--model", f"replay:{recording}")
    assert_one_clear_message(done, 2, "tasks.jsonl:2: not JSON")


def test_an_endpoint_that_is_down_is_the_world_s_fault(rolegraph: Command) -> None:
    words = ("run", "solver_judge", "--base-url", "http://127.0.0.1:9", "--out", "out")
    assert_one_clear_message(rolegraph(*words, TINKER_API_KEY="tml-x"), 1, "http://127.0.0.1:9")
    assert_one_clear_message(rolegraph(*words, "--model", "openai:m"), 1, "http://127.0.0.1:9")


def test_a_missing_key_is_named_by_its_variable(rolegraph: Command) -> None:
    done = rolegraph("run", "solver_judge", "--model", "tinker:some/model", TINKER_API_KEY="")
    assert_one_clear_message(done, 2, "TINKER_API_KEY")
    done = rolegraph("run", "solver_judge", "--model", "openai:some-model", OPENAI_API_KEY="")
    assert_one_clear_message(done, 2, "OPENAI_API_KEY")


def test_a_key_never_shows(rolegraph: Command) -> None:
    words = ("run", "solver_judge", "--base-url", "http://127.0.0.1:9", "--debug")
    done = rolegraph(*words, TINKER_API_KEY="tml-very-secret")
    assert "very-secret" not in done.stdout + done.stderr
    assert "Traceback" in done.stderr, "--debug shows the traceback"


def test_an_unwritable_output_folder_is_named(rolegraph: Command, recording: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    os.chmod(tmp_path / "file", stat.S_IREAD)  # noqa: PTH101
    words = ("run", "solver_judge", "--model", f"replay:{recording}", "--out", "file/out")
    assert_one_clear_message(rolegraph(*words), 1, "cannot write to the output folder")


def test_a_run_in_which_no_call_succeeds_fails(rolegraph: Command, tmp_path: Path) -> None:
    (tmp_path / "empty.jsonl").write_text("")
    done = rolegraph("run", "solver_judge", "--limit", "2", "--model", "replay:empty.jsonl", "--out", "out")
    assert done.returncode != 0
    assert "Traceback" not in done.stderr


def test_unknown_flags_and_verbs_are_the_user_s_mistake(rolegraph: Command) -> None:
    assert rolegraph("run", "solver_judge", "--limt", "3").returncode == 2
    assert rolegraph("rnu").returncode == 2


def test_list_shows_every_kind_with_a_line_of_help(rolegraph: Command) -> None:
    shown = rolegraph("list").stdout
    for name in ("solver_judge_validator", "json", "countdown", "rloo", "huggingface"):
        assert f"  {name} " in shown
    assert rolegraph("list", "parsers").stdout.startswith("parsers")


def test_help_names_the_verbs(rolegraph: Command) -> None:
    shown = rolegraph("--help").stdout
    for verb in ("run", "validate", "list", "serve"):
        assert f"\n  {verb} " in shown


FAILING = """
rolegraph: 2
name: half
data: {validation: tasks.jsonl}
roles:
  one: {prompt: "{{ task.question }}", reward: exact_match}
"""


def half_answered(tmp_path: Path) -> tuple[str, ...]:
    """Write four tasks and a recording of two, and return the start of a command that runs all four."""
    rows = [{"id": f"t{n}", "question": f"{n} + 0", "answer": str(n)} for n in range(4)]
    (tmp_path / "tasks.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    write_spec(tmp_path, FAILING, "half.yaml")
    episodes = [
        {
            "id": f"{row['id']}:0",
            "task": row,
            "is_correct": True,
            "trajectories": [
                {"name": "one", "uid": "", "task": None, "reward": 1.0, "steps": [step(str(row["answer"]))]}
            ],
        }
        for row in rows[:2]
    ]
    (tmp_path / "rec.jsonl").write_text("".join(json.dumps(episode) + "\n" for episode in episodes))
    return ("run", "half.yaml", "--model", "replay:rec.jsonl", "--out")


def test_calls_that_fail_are_told_and_a_floor_makes_them_an_error(rolegraph: Command, tmp_path: Path) -> None:
    words = half_answered(tmp_path)
    done = rolegraph(*words, "told")
    assert done.returncode == 0
    assert "warning: 2 of 4 trajectories got no answer; --fail-under answered=1" in " ".join(
        done.stderr.split()
    )
    floored = rolegraph(*words, "floored", "--fail-under", "answered=0.9")
    assert floored.returncode == 1
    assert "error: answered is 0.500, under 0.9" in floored.stderr
    assert rolegraph(*words, "fine", "--fail-under", "answered=0.5").returncode == 0


ROUTED = """rolegraph: 2
name: routed
data: {validation: tasks.jsonl}
roles:
  easy: {when: task.id != "t0", prompt: Hi, reward: exact_match}
  hard: {when: task.id == "t0", prompt: Hi, reward: exact_match}
  never: {when: "false", prompt: Hi, reward: exact_match}
episode: {correct: hard.right, metrics: {hard_acc: all(hard.right), none_acc: all(never.right)}}
"""


def test_a_mean_is_over_the_episodes_in_which_its_role_ran_and_says_how_many(
    rolegraph: Command, tmp_path: Path
) -> None:
    half_answered(tmp_path)
    write_spec(tmp_path, ROUTED, "routed.yaml")
    words = ("run", "routed.yaml", "--model", "openai:tiny", "--fail-under", "none_acc=0", "--json", "--out")
    with serving(lambda body: chat_answer("0")) as endpoint:
        done = rolegraph(*words, "out", "--base-url", endpoint.base_url, OPENAI_API_KEY="x")
    document = json.loads(done.stdout)
    assert document["figures"]["hard_acc"] == 1.0
    assert document["n"] == {"hard_acc": 1, "none_acc": 0}
    assert "none_acc" not in document["figures"]
    assert "hard_acc 1.000 (n 1)" in done.stderr and "none_acc –" in done.stderr
    assert done.returncode == 1 and "none_acc is measured in no episode" in done.stderr
    figures = RunFolder(tmp_path / "out").info().figures
    assert (figures["hard_acc"], figures["n/hard_acc"]) == (1.0, 1)
    compared = rolegraph("compare", "out", "out", "--html", "both.html")
    assert "n 1 of 4" in compared.stdout
    assert "n 1 of 4" in (tmp_path / "both.html").read_text("utf-8")


VERIFIED = """rolegraph: 2
name: verified
data: {validation: tasks.jsonl}
roles:
  one: {prompt: "{{ task.question }}", reward: exact_match}
  verifier:
    needs: [one]
    prompt: "{{ one.action }}"
    reward: {sum: {team: one.reward, form: {matches: "."}}}
    right: one.right
  rater: {needs: [one], prompt: "{{ one.action }}", reward: action == one.action}
episode: {correct: verifier.right, metrics: {verifier_acc: all(verifier.right)}}
"""


def test_form_makes_nobody_right_and_a_role_that_cannot_be_right_has_no_share(
    rolegraph: Command, tmp_path: Path
) -> None:
    half_answered(tmp_path)
    write_spec(tmp_path, VERIFIED, "verified.yaml")
    words = ("run", "verified.yaml", "--model", "openai:tiny", "--json", "--out", "out")
    with serving(lambda body: chat_answer("0")) as endpoint:
        done = rolegraph(*words, "--base-url", endpoint.base_url, OPENAI_API_KEY="x")
    document = json.loads(done.stdout)
    assert {name: role["right"] for name, role in document["roles"].items()} == {
        "one": 0.25,
        "verifier": 0.25,
        "rater": None,
    }
    assert document["figures"]["correct"] == document["figures"]["verifier_acc"] == 0.25
    checked = json.loads(rolegraph("validate", "verified.yaml", "--json").stdout)
    assert checked["specs"][0]["correct"] == "verifier.right"
    assert "correct is verifier.right" in rolegraph("validate", "verified.yaml").stdout


@pytest.mark.parametrize(
    ("floor", "said"),
    [
        ("answred=1", "did you mean 'answered'"),
        ("answered", "is not FIGURE=VALUE"),
        ("correct=x", "FIGURE=VALUE"),
    ],
)
def test_a_floor_that_is_none_is_the_users_mistake(
    floor: str, said: str, rolegraph: Command, tmp_path: Path
) -> None:
    done = rolegraph(*half_answered(tmp_path), "out", "--fail-under", floor)
    assert_one_clear_message(done, 2, said)
    assert not (tmp_path / "out").exists()


def test_a_failures_name_is_never_broken_over_lines(rolegraph: Command, recording: Path) -> None:
    words = ("run", "solver_judge", "--limit", "10", "--model", f"replay:{recording}", "--out", "out")
    done = rolegraph(*words, COLUMNS="80")
    assert re.search(r"^ ?solver .* malformed_output \d+ *$", done.stdout, re.MULTILINE), done.stdout


def test_a_file_of_ones_own_is_named_on_the_command_line(
    rolegraph: Command, recording: Path, tmp_path: Path
) -> None:
    (tmp_path / "rewards.py").write_text(
        "import rolegraph as rg\n\n\n@rg.reward('brief')\ndef brief(task, action):\n"
        "    return len(str(action)) < 80\n"
    )
    words = (
        "run",
        "solver_judge",
        "roles.solver.reward=brief",
        "--limit",
        "2",
        "--model",
        f"replay:{recording}",
    )
    refused = rolegraph(*words, "--out", "refused")
    assert_one_clear_message(refused, 2, "unknown reward 'brief'")
    assert rolegraph(*words, "--import", "rewards.py", "--out", "out").returncode == 0
    for episode in read_episodes(tmp_path / "out" / "episodes.jsonl"):
        assert episode["solver"][0].reward == 1.0
    valid = rolegraph("validate", "solver_judge", "roles.solver.reward=brief", "--import", "rewards.py")
    assert valid.returncode == 0, valid.stderr


def test_validate_reads_every_row_of_a_file(rolegraph: Command, tmp_path: Path) -> None:
    half_answered(tmp_path)
    assert "4 validation tasks read" in rolegraph("validate", "half.yaml").stdout
    with (tmp_path / "tasks.jsonl").open("a") as file:
        file.write("{oops\n")
    assert_one_clear_message(rolegraph("validate", "half.yaml"), 2, "tasks.jsonl:5: not JSON")


def test_the_version_is_short_to_ask_for(rolegraph: Command) -> None:
    assert rolegraph("-V").stdout == rolegraph("--version").stdout
    assert rolegraph("-V").stdout.startswith("rolegraph, version ")
