"""Tests of small inputs that once ended in a wrong reward, a wrong message or no message at all.

Each case of `tests/data/inputs.md` is a spec with its data. The endpoint of the specs answers with the prompt
itself; a prompt that starts with `!!` holds the message as JSON, a prompt that starts with `##` the whole
reply as `[status, headers, body]`.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from rolegraph import Episode, Step
from rolegraph.engine.records.episodes import read_episodes
from tests.cli.conftest import ENVIRONMENT
from tests.documents import cases_in
from tests.forks import ForkedCommand, run_forked
from tests.waiting import soon

INPUTS = cases_in(Path(__file__).parent / "data" / "inputs.md")
KEY = "sk-long-000000000000"


class EchoEndpoint(BaseHTTPRequestHandler):
    """Chat completions whose answers the prompts hold."""

    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        """Print nothing."""

    def reply(self, status: int, body: bytes) -> None:
        """Send a JSON body."""
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self) -> None:
        """List the only model."""
        self.reply(200, b'{"object": "list", "data": [{"id": "m", "object": "model"}]}')

    def do_POST(self) -> None:
        """Answer a chat."""
        messages = json.loads(self.rfile.read(int(self.headers["content-length"])))["messages"]
        prompt = messages[0]["content"]
        if prompt.startswith("##"):
            status, _, body = json.loads(prompt[2:])
            self.reply(status, json.dumps(body).encode())
            return
        message = json.loads(prompt[2:]) if prompt.startswith("!!") else {"content": prompt}
        if prompt in ("dict", "none"):
            message = with_tool_call(prompt, messages)
        elif prompt.startswith("SUB"):
            message = {"content": "<answer>x</answer>"}
        choice = {
            "index": 0,
            "finish_reason": "tool_calls" if message.get("tool_calls") else "stop",
            "message": {"role": "assistant", **message},
        }
        usage = {"prompt_tokens": 5, "completion_tokens": 7, "total_tokens": 12}
        completion = {"id": "c", "object": "chat.completion", "created": 1, "model": "m", "usage": usage}
        self.reply(200, json.dumps({**completion, "choices": [choice]}).encode())


def with_tool_call(kind: str, messages: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the message that calls the tool `searcher`, then the message that answers with its result."""
    if messages[-1]["role"] != "user":
        return {"content": f"<answer>{messages[-1]['content']}</answer>"}
    function = {"name": "searcher"} | ({"arguments": {"question": "q"}} if kind == "dict" else {})
    return {"content": None, "tool_calls": [{"id": "c1", "type": "function", "function": function}]}


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    """URL of the endpoint."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), EchoEndpoint)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/v1"
    server.shutdown()
    server.server_close()


class Case:
    """Folder with an input's files, and the commands that run there."""

    def __init__(self, folder: Path, url: str) -> None:
        self.folder, self.url, self.variables = folder, url, {"OPENAI_API_KEY": KEY}

    @property
    def environment(self) -> dict[str, str]:
        """Environment of the commands."""
        return {**os.environ, **ENVIRONMENT, **self.variables}

    def command(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run the command line to its end."""
        return run_forked(words, cwd=self.folder, env=self.environment)

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run the spec into the folder `out`."""
        return self.command("run", "s.yaml", f"model.base_url={self.url}", "--out", "out", *words)

    def episodes(self) -> list[Episode]:
        """Return the episodes of the run."""
        return list(read_episodes(self.folder / "out" / "episodes.jsonl"))

    def steps(self) -> list[Step]:
        """Run the spec, and return the last role's step of each task, in the order of the tasks."""
        done = self.run()
        assert done.returncode == 0, done.stderr
        episodes = sorted(self.episodes(), key=lambda episode: episode.task_id)
        return [episode.trajectories[-1].steps[-1] for episode in episodes]

    def rewards(self) -> list[float]:
        """Run the spec, and return the reward of each task."""
        return [step.reward for step in self.steps()]

    def actions(self) -> list[Any]:
        """Run the spec, and return the action of each task."""
        return [step.action for step in self.steps()]

    def faults(self, *words: str) -> list[dict[str, Any]]:
        """Validate the spec, and return the errors and warnings."""
        done = self.command("validate", "s.yaml", "--json", *words)
        report = json.loads(done.stdout)["specs"][0]
        of_data = {"message": report.get("error"), "place": None, "severity": "error"}
        return [*report["diagnostics"], *([of_data] if of_data["message"] else [])]

    def error_lines(self, file: str) -> set[int]:
        """Validate the spec, and return the lines of a file that have errors."""
        errors = [fault for fault in self.faults() if fault["severity"] == "error"]
        texts = [f"{fault['message']} {(fault['place'] or {}).get('file', '')}" for fault in errors]
        places = [
            fault["place"]["line"]
            for fault in errors
            if (fault["place"] or {}).get("file", "").endswith(file)
        ]
        return {*places, *(int(line) for text in texts for line in re.findall(rf"{file}:(\d+)", text))}

    def train_and_kill(self, after: int) -> None:
        """Train the spec, and kill the training when its metrics have `after` lines."""
        metrics = self.folder / "out" / "metrics.jsonl"
        words = ("train", "s.yaml", "--out", "out")
        with ForkedCommand(words, cwd=self.folder, env=self.environment) as process:
            assert soon(lambda: metrics.exists() and metrics.read_bytes().count(b"\n") >= after)
            process.send_signal(signal.SIGKILL)


def pays_nothing_unnoticed(case: Case) -> None:
    """Check that no row earns 1, or that `validate` has told of the rows."""
    if not case.faults():
        assert max(case.rewards()) == 0


def names_no_key(case: Case) -> None:
    """Check that a key with a line end stands nowhere."""
    case.variables["OPENAI_API_KEY"] = "sk-SECRET12345abcdef\n"
    done = case.run("--limit", "1")
    log = case.folder / "out" / "log.txt"
    assert "SECRET" not in done.stdout + done.stderr + (log.read_text() if log.exists() else "")


def keeps_words(case: Case) -> None:
    """Check that a short key is not cut out of words."""
    case.variables["OPENAI_API_KEY"] = "e"
    done = case.run("--limit", "1")
    assert "The model refuses" in done.stdout + done.stderr
    assert "rolegraph" in (case.folder / "out" / "log.txt").read_text()


def refuses_other_rows(case: Case) -> None:
    """Check that a run is not resumed after a row was added on top."""
    assert case.run("--limit", "1").returncode == 0
    shutil.copy(case.folder / "t2.jsonl", case.folder / "t.jsonl")
    before = case.episodes()
    done = case.command("run", "--resume", "--out", "out", "--base-url", case.url, "--limit", "3")
    assert (done.returncode, case.episodes()) == (2, before)
    assert "t.jsonl" in done.stderr


def refuses_other_data(case: Case, rows: str) -> None:
    """Check that a training is not resumed on other rows."""
    case.train_and_kill(after=4)
    shutil.copy(case.folder / rows, case.folder / "t6.jsonl")
    done = case.command("train", "s.yaml", "--resume", "--out", "out")
    assert done.returncode == 2
    assert "t6.jsonl" in done.stderr


def works_with(case: Case, variable: str, value: str) -> None:
    """Check that a command works, or that its message names a variable of the environment."""
    case.variables[variable] = value
    for done in (case.run("--limit", "1"), case.command("run", "solver_judge", "--limit", "1")):
        assert (done.returncode, variable in done.stderr) in ((0, False), (2, True)), done.stderr


def rewards_are(*expected: float) -> Callable[[Case], None]:
    """Return a check of the rewards of all rows."""

    def check(case: Case) -> None:
        assert case.rewards() == [*expected]

    return check


def actions_are(*expected: object) -> Callable[[Case], None]:
    """Return a check of the actions of all rows."""

    def check(case: Case) -> None:
        assert case.actions() == [*expected]

    return check


def has_error_at(file: str, line: int) -> Callable[[Case], None]:
    """Return a check that `validate` finds an error in a line of a file."""

    def check(case: Case) -> None:
        assert line in case.error_lines(file)

    return check


def is_valid(case: Case) -> None:
    """Check that `validate` finds no error, also in the same text on the command line."""
    for faults in (case.faults(), case.faults(r'description="\ud83d\ude00"')):
        assert not [fault for fault in faults if fault["severity"] == "error"]


def warns_of_the_stop(case: Case) -> None:
    """Check that `validate` tells of a stop text that the parser needs."""
    places = [fault["place"]["text"] for fault in case.faults()]
    assert [place for place in places if "stop" in place]


def runs_the_tool(case: Case) -> None:
    """Check that each tool call ends in a result, or in an error that the model reads."""
    assert [step.metadata.get("failure") for step in case.steps()] == [None, None]


CASES: dict[str, Callable[[Case], None]] = {
    "close_to_big": rewards_are(0, 0, 0),
    "content_parts": rewards_are(1, 1),
    "csv_open_quote": has_error_at("t.csv", 2),
    "csv_quote_inside": has_error_at("t.csv", 3),
    "json_fence": actions_are({"a": 1}, {"a": 1}),
    "jsonl_dup_key": has_error_at("t.jsonl", 1),
    "key_newline": names_no_key,
    "key_short": keeps_words,
    "label_empty": pays_nothing_unnoticed,
    "label_float": rewards_are(1),
    "label_nan_parquet": pays_nothing_unnoticed,
    "label_null": pays_nothing_unnoticed,
    "math_two_boxes": rewards_are(1, 1, 0),
    "number_groups": rewards_are(1, 1, 1, 1),
    "proxy_socks": lambda case: works_with(case, "ALL_PROXY", "socks5h://127.0.0.1:9"),
    "resume_data_labels": lambda case: refuses_other_data(case, "t6_labels.jsonl"),
    "resume_data_removed": lambda case: refuses_other_data(case, "t6_removed.jsonl"),
    "run_resume_data": refuses_other_rows,
    "ssl_cert_missing": lambda case: works_with(case, "SSL_CERT_FILE", str(case.folder / "missing.pem")),
    "stop_closing_tag": warns_of_the_stop,
    "tag_mention": actions_are("2", "2", "2", "2", "2"),
    "tool_args_object": runs_the_tool,
    "yaml_surrogate_pair": is_valid,
}


def test_every_input_has_a_check() -> None:
    assert INPUTS.keys() == CASES.keys()


def write_input(folder: Path, files: Mapping[str, str]) -> None:
    """Write an input's files; the rows of a Parquet file are written in JSON in the document."""
    for name, text in files.items():
        if name.endswith(".parquet"):
            table = pytest.importorskip("pyarrow").Table.from_pylist([*map(json.loads, text.splitlines())])
            pytest.importorskip("pyarrow.parquet").write_table(table, folder / name)
        else:
            (folder / name).write_text(text, "utf-8")


@pytest.mark.service
@pytest.mark.parametrize("name", CASES)
def test_a_small_input_has_the_reward_or_the_message_that_its_check_names(
    name: str, tmp_path: Path, endpoint: str
) -> None:
    write_input(tmp_path, INPUTS[name])
    CASES[name](Case(tmp_path, endpoint))
