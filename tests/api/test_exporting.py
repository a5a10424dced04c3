"""Tests of exported adapters and merged weights, loaded by other libraries and by Rolegraph."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

torch = pytest.importorskip("torch", reason="needs the extra `local`")

import rolegraph as rg  # noqa: E402
from rolegraph import api  # noqa: E402
from rolegraph.engine.records import RunFolder  # noqa: E402
from rolegraph.engine.records.ownership import STAGING  # noqa: E402
from rolegraph.engine.records.weights import complete_config  # noqa: E402
from rolegraph.local.launcher import BASE_MODEL, LocalService, check_model_folder  # noqa: E402
from tests.cli.conftest import ENVIRONMENT  # noqa: E402
from tests.forks import ForkedCommand  # noqa: E402
from tests.local.client import logprobs_of  # noqa: E402
from tests.models.edges import served  # noqa: E402

pytestmark = pytest.mark.service
ALONE = Path(__file__).parent / "answer_alone.py"
PROMPT = Path(__file__).parents[2] / "prompts" / "solver.j2"
TOKENS = [5, 80, 90, 100, 110, 120, 7, 9]


@pytest.fixture(scope="module")
def run(whole: Path, state_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Copy a training and its weights to one folder, as a training with its own service leaves them."""
    folder = tmp_path_factory.mktemp("run") / "run"
    shutil.copytree(whole, folder)
    # The service may delete these during the copy.
    passing = shutil.ignore_patterns(f"{STAGING}*", "snapshot-*")
    shutil.copytree(state_dir, folder / "weights", ignore=passing)
    return folder


@pytest.fixture(scope="module")
def adapter(run: Path) -> Path:
    return rg.export(run)


@pytest.fixture(scope="module")
def merged(run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return rg.export(str(run), tmp_path_factory.mktemp("out") / "merged", merged=True)


def base() -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(BASE_MODEL)


@pytest.fixture(scope="module")
def expected(adapter: Path) -> list[float]:
    """Compute the adapter's log-probabilities with transformers and peft only."""
    from peft import PeftModel

    return logprobs_of(PeftModel.from_pretrained(base(), str(adapter)), TOKENS)


def test_an_adapter_is_the_best_checkpoint_s(run: Path, adapter: Path, expected: list[float]) -> None:
    from safetensors.torch import load_file

    assert adapter == run / "adapter"
    path = RunFolder(run).best_of("main").sampler.removeprefix("tinker://").replace(":", "_")
    ours, theirs = (load_file(f / "adapter_model.safetensors") for f in (adapter, run / "weights" / path))
    assert ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)
    assert logprobs_of(base(), TOKENS) != pytest.approx(expected, abs=0.01)


def test_an_adapter_whose_config_names_no_layers_is_completed(
    adapter: Path, expected: list[float], tmp_path: Path
) -> None:
    """SkyRL's archives have no `target_modules`, and PEFT knows no layers of the shipped model."""
    from peft import PeftModel

    folder = tmp_path / "adapter"
    shutil.copytree(adapter, folder)
    file = folder / "adapter_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "target_modules": None}))
    complete_config(folder)
    assert logprobs_of(PeftModel.from_pretrained(base(), str(folder)), TOKENS) == pytest.approx(expected)


def test_merged_weights_give_the_adapter_s_logprobs(merged: Path, expected: list[float]) -> None:
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(merged)
    assert logprobs_of(model, TOKENS) == pytest.approx(expected, abs=1e-3)
    assert model.lm_head.weight is not model.model.embed_tokens.weight


def test_merged_weights_have_the_base_s_config_and_tokenizer(merged: Path) -> None:
    from transformers import AutoTokenizer

    was, now = (json.loads((folder / "config.json").read_text()) for folder in (BASE_MODEL, merged))
    assert now == was | {"tie_word_embeddings": False}
    messages = [{"role": "user", "content": "Make 7 from 3 and 4"}]
    prompts = [
        AutoTokenizer.from_pretrained(folder).apply_chat_template(messages, tokenize=False)
        for folder in (BASE_MODEL, merged)
    ]
    assert prompts[0] == prompts[1]
    files = [folder / "generation_config.json" for folder in (BASE_MODEL, merged)]
    assert files[0].read_bytes() == files[1].read_bytes()


def test_transformers_and_peft_alone_are_as_right_as_the_validation_says(
    whole: Path,
    adapter: Path,
    merged: Path,
    service: LocalService,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TINKER_API_KEY", service.api_key)
    likeliest = ["sampling.max_tokens=64", "sampling.temperature=0"]
    flow = rg.load("solver_judge", *likeliest, base_url=service.base_url)
    said = rg.evaluate(flow, whole, tasks=32, rollouts=1).figures["solver_acc"].checkpoint
    solvers, ties = 64, 2  # rounding may decide between two tokens that are equally likely
    template = PROMPT.read_text()
    with (tmp_path / "tasks.jsonl").open("w") as file:
        for row in flow.dataset("validation").rows(32):
            content = template.replace("{{ task.question }}", str(row["question"])).strip()
            messages = [{"role": "user", "content": content}]
            file.write(
                json.dumps({"messages": messages, "nums": row["nums"], "target": row["target"]}) + "\n"
            )
    words = [sys.executable, "-W", "ignore", ALONE, file.name, BASE_MODEL, adapter, merged]
    bare = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(words, capture_output=True, text=True, env=bare, cwd=tmp_path, check=True)
    for found in json.loads(done.stdout):
        assert found == pytest.approx(said.mean, abs=ties / solvers)


@pytest.mark.parametrize("kind", ["adapter", "merged"])
def test_what_was_exported_can_be_served(
    kind: str, expected: list[float], request: pytest.FixtureRequest
) -> None:
    from rolegraph.local.service.local_model import LocalModel

    folder: Path = request.getfixturevalue(kind)
    check_model_folder(folder)
    policy = LocalModel(folder, threads=1)
    with torch.inference_mode():
        ((_, found),) = policy.logprobs(None, [TOKENS[:-1]], [torch.tensor(TOKENS[1:])], 1000)
    assert found.tolist() == pytest.approx(expected, abs=1e-3)
    assert policy.decode([[5, 80]])


def test_the_card_says_what_the_weights_are(adapter: Path, merged: Path) -> None:
    card = (adapter / "README.md").read_text()
    assert card.startswith("---\nbase_model: rolegraph-base\nlibrary_name: peft\n")
    for said in (
        "solver (grpo), judge (reinforce)",
        "{train: countdown, validation: countdown}",
        "judge_acc",
    ):
        assert said in card
    assert "library_name: transformers" in (merged / "README.md").read_text()


def test_a_model_that_was_moved_is_named(run: Path, tmp_path: Path) -> None:
    moved = shutil.copytree(BASE_MODEL, tmp_path / "moved")
    folder = rg.export(run, tmp_path / "out", model=moved)
    config = json.loads((folder / "adapter_config.json").read_text())
    assert config["base_model_name_or_path"] == str(moved)
    other = shutil.copytree(BASE_MODEL.parent / "teacher", tmp_path / "other")
    with pytest.raises(rg.UsageError, match="other weights"):
        rg.export(run, tmp_path / "wrong", model=other)
    assert not (tmp_path / "wrong").exists()


def test_what_cannot_be_exported_is_said(run: Path, adapter: Path, tmp_path: Path) -> None:
    with pytest.raises(rg.UsageError, match="is not empty"):
        rg.export(run)
    with pytest.raises(rg.UsageError, match="no policy 'coder'; it trained main"):
        rg.export(run, policy="coder")
    with pytest.raises(rg.UsageError, match="is not the folder of a run"):
        rg.export(tmp_path)
    onward = f"policies={{main: {{checkpoint: '{adapter}'}}}}"
    flow = rg.load("solver_judge", onward, "model=local:rolegraph-base")
    with pytest.raises(rg.UsageError, match=f"It holds a model: name it as one, local:{adapter} "):
        rg.train(flow, out=tmp_path / "on")
    with pytest.raises(rg.UsageError, match="has no training folder"):
        rg.export("tinker://a/weights/b")
    assert not [file for file in run.iterdir() if file.name.startswith(".")]


def test_each_policy_of_a_run_leaves_by_its_name(run: Path, tmp_path: Path) -> None:
    from safetensors.torch import load_file

    several = shutil.copytree(run, tmp_path / "several#1", ignore=shutil.ignore_patterns("adapter"))
    first, *_, last = (checkpoint.policies["main"] for checkpoint in RunFolder(run).checkpoints())
    RunFolder(several).add_checkpoint(
        api.Checkpoint(step=9, policies={"coder": first, "judge": last}, best=True)
    )
    with pytest.raises(rg.UsageError, match="several policies; it trained coder, judge"):
        rg.export(several)
    folders = rg.export(several, policy="coder"), rg.export(f"{several}#judge")
    assert [folder.name for folder in folders] == ["adapter-coder", "adapter-judge"]
    ours = [load_file(folder / "adapter_model.safetensors") for folder in folders]
    assert any(not torch.equal(ours[0][name], ours[1][name]) for name in ours[0])
    assert "| policy | judge |" in (folders[1] / "README.md").read_text()


def test_weights_that_a_service_holds_are_downloaded(
    run: Path, adapter: Path, service: LocalService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from safetensors.torch import load_file

    monkeypatch.setenv("TINKER_API_KEY", service.api_key)
    bare = shutil.copytree(run, tmp_path / "bare", ignore=shutil.ignore_patterns("adapter", "weights"))
    ours, theirs = (
        load_file(folder / "adapter_model.safetensors")
        for folder in (adapter, rg.export(bare, base_url=service.base_url))
    )
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_a_service_that_does_not_answer_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TINKER_API_KEY", "tml-x")
    with pytest.raises(rg.WorldError, match=r"^No Tinker service answers at http://127\.0\.0\.1:9 "):
        rg.export("tinker://a/weights/b", tmp_path / "out", base_url="http://127.0.0.1:9")
    assert not (tmp_path / "out").exists()


def test_an_export_that_is_interrupted_ends_before_the_service_answers(tmp_path: Path) -> None:
    asked, ended = threading.Event(), threading.Event()

    def never(_: Request) -> Response:
        asked.set()
        ended.wait()
        return Response(status_code=500)

    with served(Starlette(routes=[Route("/{path:path}", never, methods=["GET", "POST"])])) as url:
        words = ("export", "tinker://a/weights/b", "--out", "out", "--base-url", url)
        process = ForkedCommand(words, cwd=tmp_path, env={**ENVIRONMENT, "TINKER_API_KEY": "tml-none"})
        assert asked.wait(300)
        process.send_signal(signal.SIGINT)
        said = process.communicate()[1]
        ended.set()
    assert process.returncode == 130 and "Traceback" not in said
    assert not (tmp_path / "out").exists()
