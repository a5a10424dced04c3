"""The probes of `rolegraph doctor --model openai:NAME`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rolegraph.engine.models.types import LocalService
from tests.cli.conftest import Command
from tests.cli.conftest import rolegraph as rolegraph
from tests.models.edges import chat_answer, serving
from tests.models.test_refused_fields import answering, claude, older
from tests.trainings import key


def found(
    rolegraph: Command, url: str, name: str, **environment: str
) -> tuple[int, dict[str, str], list[str]]:
    """Return exit code, status of each row, and the fields that a run leaves out."""
    done = rolegraph("doctor", "--model", f"openai:{name}", "--base-url", url, "--json", **environment)
    assert done.stdout, done.stderr
    report = json.loads(done.stdout)
    return done.returncode, {row["name"]: row["status"] for row in report["rows"]}, report["left_out"]


def test_a_refused_field_has_its_row_and_is_named_for_a_run(rolegraph: Command, tmp_path: Path) -> None:
    with serving(answering(claude)) as endpoint:
        code, rows, left_out = found(rolegraph, endpoint.base_url, "tiny")
    assert code == 0 and left_out == ["top_p"]
    assert (rows["temperature"], rows["top_p"]) == ("ok", "ok")
    assert (rows["temperature and top_p"], rows["a run"]) == ("not offered", "differs")
    assert not [*tmp_path.iterdir()]


def test_an_old_server_takes_little(rolegraph: Command) -> None:
    with serving(answering(older)) as endpoint:
        code, rows, left_out = found(rolegraph, endpoint.base_url, "tiny")
    assert code == 0 and left_out == ["seed", "top_p"]
    refused = ("seed", "same seed", "log-probabilities", "token ids", "tools", "chat_template_kwargs")
    assert {rows[name] for name in refused} == {"not offered"}


def test_a_server_without_an_answer_fails(rolegraph: Command) -> None:
    with serving(lambda _: chat_answer(None, choice={"message": None})) as endpoint:
        code, rows, _ = found(rolegraph, endpoint.base_url, "tiny")
    assert code == 1 and rows == {"an answer": "failed"}


@pytest.mark.service
def test_the_own_service_gives_tokens_and_takes_all_fields(rolegraph: Command, service: LocalService) -> None:
    environment = {"OPENAI_API_KEY": key(service)["TINKER_API_KEY"]}
    code, rows, left_out = found(rolegraph, f"{service.base_url}/v1", service.model_name, **environment)
    assert code == 0 and not left_out
    taken = ("temperature and top_p", "seed", "same seed", "log-probabilities", "token ids", "a run")
    assert {name: rows[name] for name in taken} == dict.fromkeys(taken, "ok")
