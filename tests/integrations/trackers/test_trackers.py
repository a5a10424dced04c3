"""Tests of trackers: metrics, episodes and report of a training, read back with each tracker's library."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

import rolegraph as rg
from rolegraph import api
from rolegraph.api.tracking import COLUMNS, ROWS, Table, episode_table, tracker
from rolegraph.engine.compile.leaving import LEFT_OUT, disclosure_rule_of
from rolegraph.engine.records.episodes import read_episodes
from rolegraph.local.launcher import LocalService
from tests.cli.conftest import Command, forked
from tests.edge import write_spec
from tests.models.edges import served
from tests.pages.view.runs import workflow, write_run
from tests.trainings import STEP, key, train

__all__ = ["forked"]

CONFIG = {"name": "mine", "seed": 3, "roles": {"solver": {"estimator": "grpo"}}}
METRICS = {"step": 1.0, "reward/solver/mean": 0.5, "estimator/solver/a task: “1”": 2.0}
TABLE = Table(("role", "reward"), [("solver", 1.0), ("judge", None)])


@pytest.fixture
def mlflow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return MLflow's client of a database in the test's folder."""
    for library in ("mlflow", "pandas", "sqlalchemy"):
        pytest.importorskip(library)
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    import mlflow

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    return mlflow.MlflowClient()


def test_mlflow_shows_metrics_tables_and_the_report(mlflow: Any, tmp_path: Path) -> None:
    report = tmp_path / "report.html"
    report.write_text("<html>")
    with tracker("mlflow", tmp_path, "mine", CONFIG) as opened:
        opened.log(1, METRICS, {"episodes/train": TABLE})
        opened.add_file(report)
    (run,) = mlflow.search_runs([mlflow.get_experiment_by_name("rolegraph").experiment_id])
    assert (run.info.run_name, run.info.status) == (f"mine {tmp_path.name}", "FINISHED")
    assert run.data.metrics == {"step": 1.0, "reward/solver/mean": 0.5, "estimator/solver/a task: _1_": 2.0}
    assert run.data.params == {"name": "mine", "seed": "3"}
    (point,) = mlflow.get_metric_history(run.info.run_id, "reward/solver/mean")
    assert point.step == 1
    assert [file.path for file in mlflow.list_artifacts(run.info.run_id)] == [
        "episodes",
        "report.html",
        "run.json",
    ]
    shown = mlflow.load_table(
        mlflow.get_experiment_by_name("rolegraph").experiment_id, "episodes/train-000001.json"
    )
    assert list(shown["role"]) == ["solver", "judge"]


def test_a_training_that_ends_with_an_error_is_a_failed_run(mlflow: Any, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), tracker("mlflow", tmp_path, "mine", CONFIG):
        raise KeyboardInterrupt
    (run,) = mlflow.search_runs([mlflow.get_experiment_by_name("rolegraph").experiment_id])
    assert run.info.status == "FAILED"


def test_a_tracker_that_cannot_start_is_named(
    mlflow: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "odd://me:secret@nowhere")
    with (
        pytest.raises(rg.WorldError, match="mlflow cannot start a run") as raised,
        tracker("mlflow", tmp_path, "mine", CONFIG),
    ):
        pass
    assert "secret" not in str(raised.value)


def test_a_tracker_s_server_on_this_machine_is_reached_by_no_proxy_and_another_s_proxy_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pytest.importorskip("mlflow")
    paths: dict[str, list[str]] = {"proxy": [], "server": []}

    def app(name: str) -> Starlette:
        async def refuse(request: Request) -> Response:
            paths[name].append(request.url.path)
            return Response(status_code=404)

        return Starlette(routes=[Route("/{rest:path}", refuse, methods=["GET", "POST"])])

    for variable in ("NO_PROXY", "no_proxy"):
        monkeypatch.setenv(variable, "")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    with served(app("proxy")) as proxy, served(app("server")) as server:
        monkeypatch.setenv("HTTP_PROXY", proxy)
        for url, name in ((server, ""), ("http://tracker.example", "HTTP_PROXY")):
            monkeypatch.setenv("MLFLOW_TRACKING_URI", url)
            with pytest.raises(api.WorldError) as raised, tracker("mlflow", tmp_path, "mine", CONFIG):
                pass
            assert ("HTTP_PROXY" in str(raised.value)) == bool(name)
            assert bool(paths["proxy"]) == bool(name)
    assert paths["server"]


def test_weights_and_biases_gets_tables_and_the_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    report = tmp_path / "report.html"
    report.write_text("<html>")
    with tracker("wandb", tmp_path, "mine", CONFIG) as opened:
        opened.log(1, METRICS, {"episodes/train": TABLE})
        opened.add_file(report)
    (table,) = tmp_path.glob("wandb/offline-run-*/files/media/table/episodes/train_*.table.json")
    assert json.loads(table.read_text()) == {
        "columns": ["role", "reward"],
        "data": [["solver", 1.0], ["judge", None]],
    }


def test_a_table_has_a_row_for_each_answer_up_to_a_limit(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", tasks=20)
    episodes = [*read_episodes(folder / "episodes.jsonl")]
    whole = episode_table(episodes[:10], disclosure_rule_of(workflow("solver_judge").plan))
    rows = [dict(zip(whole.columns, row, strict=True)) for row in whole.rows]
    assert whole.columns == COLUMNS
    answers = [(e.task_id, e.rollout, t) for e in episodes[:10] for t in e.trajectories]
    for row, (task, rollout, one) in zip(rows, answers, strict=True):
        assert (row["task"], row["rollout"], row["role"], row["index"]) == (
            task,
            rollout,
            one.name,
            one.index,
        )
        assert (row["reward"], row["answer"]) == (one.reward, one.steps[-1].model_response)
        assert row["failure"] == (one.failure.name.value if one.failure else "")
        assert row["tokens"] == len(one.steps[-1].response_ids)
    assert len(episode_table(episodes, disclosure_rule_of(workflow("solver_judge").plan)).rows) == ROWS


def test_a_table_leaves_out_answers_that_may_quote_a_hidden_field(tmp_path: Path) -> None:
    text = """
rolegraph: 2
name: told
data: {train: tasks.jsonl, hidden: [target]}
roles:
  teacher: {sees: [target], prompt: "{{ task.target }}"}
  reader: {needs: [teacher], prompt: "{{ teacher.action }}"}
  other: {prompt: hi}
"""
    (tmp_path / "tasks.jsonl").write_text('{"id": "a", "target": 7}\n')
    spec = str(write_spec(tmp_path, text))
    run = write_run(tmp_path / "run", spec, tasks=1)
    table = episode_table(read_episodes(run / "episodes.jsonl"), disclosure_rule_of(workflow(spec).plan))
    answers = {(row[3], row[-1] != LEFT_OUT) for row in table.rows}
    assert answers == {("teacher", False), ("reader", False), ("other", True)}


READ_TRACKIO = """
import json
from trackio import Api
from trackio.sqlite_storage import SQLiteStorage
found = []
for run in Api().runs("rolegraph"):
    logs = SQLiteStorage.get_logs("rolegraph", run.name)
    found.append({"name": run.name, "config": run.config, "logs": logs})
print(json.dumps(found, default=str))
"""
"""Program that prints the runs of a Trackio folder, which Trackio looks up when it is imported."""


def trackio_runs(folder: Path) -> list[dict[str, Any]]:
    environment = {**os.environ, "TRACKIO_DIR": str(folder)}
    done = subprocess.run(
        [sys.executable, "-c", READ_TRACKIO], env=environment, capture_output=True, text=True, check=True
    )
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.service
def test_a_training_goes_to_its_trackers(
    service: LocalService, mlflow: Any, forked: Command, tmp_path: Path
) -> None:
    pytest.importorskip("trackio")
    done = forked(
        *("train", "solver_judge", *STEP, "--base-url", service.base_url, "--out", "run", "--json"),
        *("--track", "mlflow", "--track", "trackio"),
        **key(service),
        MLFLOW_TRACKING_URI=os.environ["MLFLOW_TRACKING_URI"],
        MLFLOW_DISABLE_TELEMETRY="true",
        TRACKIO_DIR=str(tmp_path / "trackio"),
    )
    assert done.returncode == 0, done.stderr
    assert not [text for text in json.loads(done.stdout)["warnings"] if "failed, and gets" in text]
    last = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()][-1]
    experiment = mlflow.get_experiment_by_name("rolegraph").experiment_id
    (run,) = mlflow.search_runs([experiment])
    assert run.data.metrics["reward/solver/mean"] == pytest.approx(last["reward/solver/mean"])
    tables = {file.path for file in mlflow.list_artifacts(run.info.run_id, "episodes")}
    steps = ("train-000001", "validation-000000", "validation-000001")
    assert tables == {f"episodes/{step}.json" for step in steps}
    assert "report.html" in {file.path for file in mlflow.list_artifacts(run.info.run_id)}
    (shown,) = trackio_runs(tmp_path / "trackio")
    assert shown["name"] == "solver_judge run"
    rewards = [line["reward/solver/mean"] for line in shown["logs"] if "reward/solver/mean" in line]
    assert rewards == pytest.approx([last["reward/solver/mean"]])
    (table,) = (line["episodes/train"] for line in shown["logs"] if "episodes/train" in line)
    assert {row["role"] for row in table["_value"]} == {"solver", "judge"}
    assert [*(tmp_path / "trackio" / "artifacts").rglob("*")]


@pytest.mark.service
def test_a_tracker_that_fails_ends_no_training(
    service: LocalService, mlflow: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    notes: list[str] = []

    def observe(event: api.Event) -> None:
        if isinstance(event, api.Note) and event.kind == "warning":
            notes.append(event.text)
        if isinstance(event, api.Note) and event.text.endswith(": validation"):
            (tmp_path / "mlflow.db").write_bytes(b"no database any more")

    result = train(
        tmp_path / "run", "solver_judge", *STEP, service=service, track=["mlflow"], observe=observe
    )
    assert result.report.exists() and len(result.metrics()) == 2
    assert len([note for note in notes if note.startswith("mlflow failed, and gets nothing more")]) == 1
