"""Training runs and checkpoints through the `tinker` command and the SDK's REST client."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

torch = pytest.importorskip("torch", reason="needs the extra `local`")
tinker = pytest.importorskip("tinker")

from click.testing import CliRunner  # noqa: E402
from tinker import types  # noqa: E402
from tinker.cli.__main__ import main_cli  # noqa: E402

from rolegraph.local.launcher import LocalService  # noqa: E402
from rolegraph.local.service.checkpoints import CheckpointStore, SaveOptions  # noqa: E402
from rolegraph.local.service.lora import LoraShape  # noqa: E402
from tests.local.client import ADAM, PROMPT, datum, logprobs_of, prompt, trainer  # noqa: E402
from tests.settled import settled  # noqa: E402

pytestmark = pytest.mark.service
Command = Callable[..., Any]


@pytest.fixture
def rest(service: LocalService) -> tinker.RestClient:
    return tinker.RestClient(base_url=service.base_url, api_key=service.api_key)


@pytest.fixture
def raw(service: LocalService) -> httpx.Client:
    return httpx.Client(base_url=service.base_url, headers={"X-API-Key": service.api_key})


@pytest.fixture
def command(service: LocalService, monkeypatch: pytest.MonkeyPatch) -> Command:
    """Return the `tinker` command as a function that returns its JSON output, or its text on failure."""
    monkeypatch.setenv("TINKER_BASE_URL", service.base_url)
    monkeypatch.setenv("TINKER_API_KEY", service.api_key)
    monkeypatch.setenv("TINKER_TELEMETRY", "0")

    def run(*arguments: str, code: int = 0) -> Any:
        found = CliRunner().invoke(main_cli, ["-f", "json", *arguments])
        assert found.exit_code == code, found.output
        if code:
            return str(found.exception)
        return json.loads(found.stdout) if found.stdout.startswith("{") else found.output

    return run


@pytest.fixture
def run(client: tinker.ServiceClient, service: LocalService) -> tinker.TrainingClient:
    training = trainer(client, service)
    training.forward_backward([datum("cross_entropy", PROMPT)], "cross_entropy").result()
    training.optim_step(ADAM).result()
    return training


def model_id(run: tinker.TrainingClient) -> str:
    return run.get_info().model_id


def names(found: types.CheckpointsListResponse) -> list[str]:
    return [checkpoint.checkpoint_id for checkpoint in found.checkpoints]


def test_the_tinker_command_lists_describes_and_deletes(run: tinker.TrainingClient, command: Command) -> None:
    path = run.save_state("0001", ttl_seconds=7200).result().path
    run.save_weights_for_sampler("first").result()
    run.save_weights_and_get_sampling_client().result()
    runs = {one["training_run_id"]: one for one in command("run", "list", "--limit", "0")["runs"]}
    assert runs[model_id(run)]["lora_rank"] == 8
    info = command("run", "info", model_id(run))
    assert info["last_checkpoint"]["tinker_path"] == path
    assert info["last_sampler_checkpoint"]["checkpoint_id"] == "sampler_weights/first"
    listed = command("checkpoint", "list", "--run-id", model_id(run))["checkpoints"]
    assert [one["checkpoint_id"] for one in listed] == ["sampler_weights/first", "weights/0001"]
    described = command("checkpoint", "info", path)
    assert (described["checkpoint_type"], described["lora_rank"]) == ("training", 8)
    assert described["size_bytes"] > 0 and described["expires_at"] is not None
    command("checkpoint", "set-ttl", path, "--remove")
    assert command("checkpoint", "info", path)["expires_at"] is None
    assert command("checkpoint", "delete", path, "--yes") == {"deleted_count": 1, "failed": []}
    assert "there is no checkpoint" in str(command("checkpoint", "delete", path, "--yes")["failed"])
    assert "Checkpoint not found" in command("checkpoint", "info", path, code=1)


def test_what_the_tinker_command_downloads_peft_loads(
    run: tinker.TrainingClient, command: Command, rest: tinker.RestClient, tmp_path: Path, model_dir: Path
) -> None:
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    served = run.forward([datum("cross_entropy", PROMPT)], "cross_entropy").result().loss_fn_outputs[0]
    path = run.save_state("0001").result().path
    folder = Path(command("checkpoint", "download", path, "--output", str(tmp_path))["destination"])
    model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(model_dir), str(folder))
    assert logprobs_of(model, PROMPT) == pytest.approx(served["logprobs"].tolist(), abs=1e-4)
    assert {file.name for file in folder.iterdir()} == {"adapter_config.json", "adapter_model.safetensors"}
    everything = rest.list_user_checkpoints(limit=1000).result().checkpoints
    assert not [one for one in everything if one.tinker_path.endswith("/download")]


def test_sessions_are_listed_with_what_they_have(
    run: tinker.TrainingClient, rest: tinker.RestClient, raw: httpx.Client
) -> None:
    run.save_weights_and_get_sampling_client().result()
    session = model_id(run).partition(":")[0]
    assert rest.list_sessions(limit=1).result().sessions == [session]
    assert session not in rest.list_sessions(limit=1, offset=1).result().sessions
    found = rest.get_session(session).result()
    assert found.training_run_ids == [model_id(run)]
    assert len(found.sampler_ids) == 1 and found.sampler_ids[0].startswith(model_id(run))
    assert "no session 'nobody'" in raw.get("/api/v1/sessions/nobody").json()["detail"]


def test_a_training_state_is_overwritten_only_where_that_is_asked_for(
    run: tinker.TrainingClient, client: tinker.ServiceClient
) -> None:
    path = run.save_state("same").result().path
    before = run.forward([datum("cross_entropy", PROMPT)], "cross_entropy").result().metrics
    run.forward_backward([datum("cross_entropy", PROMPT)], "cross_entropy").result()
    run.optim_step(ADAM).result()
    with pytest.raises(tinker.TinkerError, match="overwrite=True"):
        run.save_state("same").result()

    def saved() -> dict[str, float]:
        resumed = client.create_training_client_from_state(path).result()
        return resumed.forward([datum("cross_entropy", PROMPT)], "cross_entropy").result().metrics

    assert saved() == pytest.approx(before)
    assert run.save_state("same", overwrite=True).result().path == path
    assert saved() != pytest.approx(before)


def test_a_list_is_given_in_pages_the_newest_first(
    run: tinker.TrainingClient, rest: tinker.RestClient, raw: httpx.Client
) -> None:
    for number in range(3):
        run.save_state(f"page-{number}").result()
    whole = rest.list_user_checkpoints(limit=1000).result()
    assert names(whole)[:3] == ["weights/page-2", "weights/page-1", "weights/page-0"]
    part = rest.list_user_checkpoints(limit=1, offset=1).result()
    assert names(part) == ["weights/page-1"]
    assert part.cursor == types.Cursor(offset=1, limit=1, total_count=len(whole.checkpoints))
    assert rest.list_training_runs(limit=1).result().training_runs[0].training_run_id == model_id(run)
    for query in ("limit=-1", "limit=many", "offset=1.5", f"offset={'9' * 40}", "limit=9999"):
        answer = raw.get(f"/api/v1/checkpoints?{query}")
        assert answer.status_code == 400
        assert query.split("=")[0] in answer.json()["detail"]


def test_what_expires_is_gone_and_what_does_not_stays(
    run: tinker.TrainingClient, client: tinker.ServiceClient, rest: tinker.RestClient, state_dir: Path
) -> None:
    kept = run.save_state("kept").result().path
    short = run.save_weights_for_sampler("short", ttl_seconds=1).result().path
    sampling = client.create_sampling_client(model_path=kept).result()
    rest.set_checkpoint_ttl_from_tinker_path(kept, 1).result()
    rest.set_checkpoint_ttl_from_tinker_path(kept, None).result()
    while "sampler_weights/short" in names(rest.list_checkpoints(model_id(run)).result()):
        time.sleep(0.1)
    with pytest.raises(tinker.APIStatusError, match="there is no checkpoint"):
        client.create_sampling_client(model_path=short).result()
    mine = [folder for folder in settled(state_dir) if model_id(run)[:12] in str(folder)]
    assert "short" not in {folder.name for folder in mine}
    assert names(rest.list_checkpoints(model_id(run)).result()) == ["weights/kept"]
    assert sampling.compute_logprobs(prompt()).result()


def test_deleting_what_is_in_use_harms_no_training_and_ends_the_sampling(
    run: tinker.TrainingClient, client: tinker.ServiceClient, rest: tinker.RestClient
) -> None:
    path = run.save_state("used").result().path
    expected = run.forward([datum("cross_entropy", PROMPT)], "cross_entropy").result().metrics
    resumed = client.create_training_client_from_state_with_optimizer(path).result()
    sampling = client.create_sampling_client(model_path=path).result()
    assert sampling.compute_logprobs(prompt()).result()
    rest.delete_checkpoint_from_tinker_path(path).result()
    for training in (run, resumed):
        found = training.forward_backward([datum("cross_entropy", PROMPT)], "cross_entropy").result().metrics
        assert found == pytest.approx(expected)
        training.optim_step(ADAM).result()
    with pytest.raises(Exception, match="there is no checkpoint"):
        sampling.compute_logprobs(prompt()).result()
    with pytest.raises(Exception, match="there is no checkpoint"):
        client.create_training_client_from_state(path).result()
    assert run.save_state("used").result().path == path
    assert sampling.compute_logprobs(prompt()).result()


@pytest.mark.parametrize(
    "place",
    ["%2e%2e/checkpoints/weights/x", "..%2f../checkpoints/weights/x", "run/checkpoints/weights/%2e%2e",
     "run/checkpoints/..%2f/x", "run/checkpoints/weights/..%2f..%2fmine", "run/checkpoints/other/x"],
)  # fmt: skip
def test_no_path_leaves_the_service_s_folder(raw: httpx.Client, state_dir: Path, place: str) -> None:
    mine = state_dir.parent / "mine"
    mine.mkdir(exist_ok=True)
    for method, tail in (("DELETE", ""), ("PUT", "/ttl"), ("GET", "/external_weights_urls")):
        body = {"json": {"ttl_seconds": 60}} if method == "PUT" else {}
        answer = raw.request(method, f"/api/v1/training_runs/{place}{tail}", **body)
        assert answer.status_code in (400, 404)
    assert mine.is_dir() and state_dir.is_dir()


def test_an_address_gives_one_file_without_the_key_and_nothing_else(
    run: tinker.TrainingClient, rest: tinker.RestClient
) -> None:
    path = run.save_weights_external("out").result().path
    url = rest.get_external_weights_urls(path).result().urls["adapter_config.json"]
    assert httpx.get(url).json()["peft_type"] == "LORA"
    end = next(part for part in urlsplit(url).query.split("&") if part.startswith("expires="))
    later = url.replace(end, f"expires={int(end.removeprefix('expires=')) + 1}")
    for other in (url.replace("adapter_config.json", "meta.json"), url[:-1] + "x", later, url.split("?")[0]):
        answer = httpx.get(other)
        assert answer.status_code == 403
        assert "not signed" in answer.json()["detail"]
    rest.delete_checkpoint_from_tinker_path(path).result()
    assert httpx.get(url).status_code == 404


def test_what_a_local_service_does_not_do_is_refused_by_name(
    run: tinker.TrainingClient, client: tinker.ServiceClient, rest: tinker.RestClient
) -> None:
    path = run.save_weights_external("out").result().path
    for ask, said in (
        (lambda: rest.publish_checkpoint_from_tinker_path(path), "publish is not served"),
        (lambda: rest.unpublish_checkpoint_from_tinker_path(path), "publish is not served"),
        (lambda: rest.list_training_runs(project_id="mine"), "no projects"),
        (lambda: rest.get_training_run("nobody:train:0"), "no training run 'nobody:train:0'"),
        (lambda: rest.set_checkpoint_ttl_from_tinker_path(path, 10**12), "ttl_seconds is 1000000000000"),
        (
            lambda: run.save_weights_and_get_sampling_client(kind="inflight"),
            "should be 'snapshot'",
        ),
        (lambda: client.create_sampling_client(model_path=path), "can only be downloaded"),
    ):
        with pytest.raises(tinker.APIStatusError, match=said):
            ask().result()


def test_encrypted_weights_are_refused(run: tinker.TrainingClient) -> None:
    with pytest.raises(tinker.APIStatusError, match="age_encryption_recipients is not served here"):
        run.save_weights_external("sealed", age_encryption_recipients=["age1key"]).result()


def test_the_checkpoints_of_a_service_that_is_gone_are_listed(model_dir: Path, tmp_path: Path) -> None:
    gone = CheckpointStore(tmp_path, "tiny", model_dir)
    path = "tinker://s:train:0/weights/a"
    gone.save(path, LoraShape(4), {}, options=SaveOptions(user_metadata={"a": "b"}))
    gone.save("tinker://s:train:0/sampler_weights/b", LoraShape(4), {}, options=SaveOptions(ttl_seconds=1))
    gone.save("tinker://s:train:0/sampler_weights/c", LoraShape(4), {}, options=SaveOptions(listed=False))
    while len(gone.entries()) > 1:
        time.sleep(0.05)
    again = CheckpointStore(tmp_path, "tiny", model_dir)
    (found,) = again.entries()
    assert (found.path, found.run, found.user_metadata) == (path, "s:train:0", {"a": "b"})
    assert not [*tmp_path.glob("*/sampler_weights/b")]
    for left in (path, "tinker://s:train:0/sampler_weights/c"):
        again.delete(left)
    assert list(tmp_path.iterdir()) == []
