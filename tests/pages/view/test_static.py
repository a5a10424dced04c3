"""Tests of the export to one file, and of the secrets that must stay out of a shared file."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

import rolegraph as rg
from rolegraph.api.jobs import model_name
from rolegraph.engine.errors import UsageError
from rolegraph.engine.records import RunFolder
from rolegraph.engine.shipped import MODELS
from tests.cli.conftest import ENVIRONMENT, Command, rolegraph
from tests.pages.view.pages import Parsed
from tests.pages.view.runs import write_run, write_training

__all__ = ["rolegraph"]


def written(folder: Path, *, hidden: bool, **where: str) -> str:
    file = folder.parent / "one.html"
    rg.view(folder).write(file, hidden=hidden, **where)
    return file.read_text()


def test_the_file_links_only_within_itself_and_loads_nothing(tmp_path: Path) -> None:
    text = written(write_training(tmp_path / "run"), hidden=True)
    page = Parsed(text)
    assert all(link.startswith("#") for link in page.links)
    ids = {part.partition('"')[0] for part in text.split(' id="')[1:]}
    assert {link[1:] for link in page.links} <= ids
    assert str(tmp_path) not in text
    assert "baseline" in page.text and "26 of 26 episodes" in page.text


def test_hidden_fields_are_in_the_file_only_where_that_was_said(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run")
    assert rg.view(folder).hidden == ["solution"]
    assert "solution" in Parsed(written(folder, hidden=True)).text
    without = Parsed(written(folder, hidden=False)).text
    assert "Hidden fields of the task are left out" in without
    assert "solution" not in without.replace("Proposed solution", "").replace("No solution found", "")


def test_prompts_that_show_hidden_fields_are_left_out_with_them(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", "judge_with_reference", tasks=1)
    shows = Parsed(written(folder, hidden=True)).text
    without = Parsed(written(folder, hidden=False)).text
    assert "the texts of judge, which may quote them" in without and "may quote them" not in shows
    assert "reference" in shows.lower()
    asked = [part for part in without.split("parsed as") if "judge" in part]
    assert asked and "3 + 4\n\nCandidate" not in without


def test_without_a_note_of_hidden_fields_all_but_the_question_count_as_hidden(tmp_path: Path) -> None:
    folder = RunFolder(write_run(tmp_path / "run", tasks=1))
    info = folder.info().model_copy(update={"hidden": None})
    folder.info_file.write_text(info.model_dump_json())
    assert rg.view(folder.path).hidden == ["nums", "solution", "target"]


def test_a_file_holds_what_fits_and_no_more_than_is_asked_for(tmp_path: Path) -> None:
    folder, file = write_run(tmp_path / "run"), tmp_path / "one.html"
    view = rg.view(folder)
    assert view.write(file, hidden=False, most=5).episodes == 5
    assert view.write(file, hidden=False, task="t1") == (4, 0)
    with pytest.raises(UsageError, match="cannot be filtered by 'taks'; did you mean 'task'"):
        view.write(file, hidden=False, taks="t1")


def test_the_command_asks_before_it_writes_hidden_fields(rolegraph: Command, tmp_path: Path) -> None:
    write_run(tmp_path / "run", tasks=1)
    asked = rolegraph("view", "run", "--static", "one.html")
    assert (asked.returncode, (tmp_path / "one.html").exists()) == (2, False)
    assert "fields that no prompt may show: solution; give --hidden" in asked.stderr
    done = rolegraph(
        "view", "run", "--static", "one.html", "--no-hidden", "--failure", "any", "--reward", ":0"
    )
    assert done.returncode == 0 and done.stdout.startswith("one.html: ")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("view", "photos"), "photos is not the folder of a run"),
        (("view", "photos", "--reward", "1"), "--reward 1 is not LOW:HIGH"),
        (("view", "photos", "--hidden"), "photos is not the folder of a run"),
    ],
)
def test_a_mistake_is_told_in_a_line(
    rolegraph: Command, tmp_path: Path, words: tuple[str, ...], said: str
) -> None:
    (tmp_path / "photos").mkdir()
    done = rolegraph(*words)
    assert (done.returncode, said in done.stderr, done.stderr.count("\n")) == (2, True, 1)


def test_the_command_serves_until_it_is_interrupted(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", tasks=1)
    command = [sys.executable, "-m", "rolegraph", "view", str(folder), "--task", "t0"]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT
    )
    assert process.stdout is not None and process.stderr is not None
    address = process.stdout.readline().strip()
    assert address.startswith("http://127.0.0.1:") and address.endswith("?task=t0")
    with httpx.Client(trust_env=False) as client:
        assert "4 episodes" in client.get(address).text
        root = "/".join(address.split("/")[:3])
        assert client.get(f"{root}/guess/0").status_code == 404
    process.send_signal(signal.SIGINT)
    assert (process.wait(), process.stderr.read()) == (0, "")


def test_where_an_event_loop_runs_a_person_is_told_what_to_do_instead(tmp_path: Path) -> None:
    view = rg.view(write_run(tmp_path / "run", tasks=1))

    async def notebook() -> None:
        view.serve()

    with pytest.raises(UsageError, match="as in a notebook: run `rolegraph view` in a terminal"):
        asyncio.run(notebook())


def test_a_start_is_a_time_and_no_field_of_the_task(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", tasks=1)
    file = RunFolder(folder).episodes
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    for line in lines:
        line["info"]["started_at"] = 1795710000.5
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    page = written(folder, hidden=True)
    assert "<dt>started</dt><dd>2026-11-26" in page and "UTC" in page
    assert "started_at" not in page and "1.795" not in page


def test_the_duration_of_a_run_is_that_of_its_episodes(tmp_path: Path) -> None:
    folder = RunFolder(write_run(tmp_path / "run", tasks=1))
    info = folder.info()
    assert not re.search(r"seed 3[^<]* s\b", written(folder.path, hidden=True))
    folder.info_file.write_text(info.model_copy(update={"seconds": 12.5}).model_dump_json())
    assert re.search(r"seed 3[^<]*, 12.5 s\b", written(folder.path, hidden=True))


def test_rewards_below_one_another_have_the_same_decimals(tmp_path: Path) -> None:
    page = written(write_run(tmp_path / "run", tasks=3), hidden=True)
    rewards = re.findall(r"</span><b>([^<]*)</b></span>", page)
    assert rewards and {len(reward.partition(".")[2]) for reward in rewards} == {3}


def test_a_model_has_one_name_in_runs_and_trainings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def name(model: str) -> str:
        return model_name(rg.load("solver_judge", f"model={model}").plan.spec.model)

    shipped = MODELS["rolegraph-base"]
    weights = "{name: rolegraph-base, checkpoint: 'tinker://run/sampler_weights/1'}"
    for written in ("local", "local:rolegraph-base", f"local:{shipped}", weights):
        assert name(written) == "rolegraph-base"
    assert name("openai:x") == "openai:x"
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    (tmp_path / "rolegraph" / "smollm2-135m").mkdir(parents=True)
    assert name("local:smollm2-135m") == "local:smollm2-135m", "the page of a training shows no folder"
    assert name(f"local:{tmp_path}/a/../b") == f"local:{tmp_path.resolve() / 'b'}"
