"""Tests of the places that serve models, and that each model is opened once, with a scripted service."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from rolegraph.engine.errors import UsageError, WorldError
from rolegraph.engine.models import (
    LimitedModel,
    Models,
    Request,
    ServedModel,
    Services,
    open_model,
    open_served,
)
from rolegraph.engine.records.folder import RunFolder
from rolegraph.engine.records.info import Checkpoint, SavedPolicy
from rolegraph.engine.spec import ModelRef, Sampling
from tests.edge import ScriptedModel
from tests.models.edges import CALL, write_tokenizer
from tests.models.tinker_edge import Service, tinker_service

KEY = "tml-test-secret"
TINY = ModelRef(provider="tinker", name="tiny")


@pytest.fixture
def service() -> Iterator[Service]:
    with tinker_service(lambda _: ([], [], "stop")) as service:
        yield service


def checkpoint(step: int, *, best: bool) -> Checkpoint:
    path = f"tinker://run/step-{step:06d}"
    saved = SavedPolicy(version=step, state=f"{path}/state", sampler=f"{path}/sampler")
    return Checkpoint(step=step, policies={"main": saved}, best=best)


def model_folder(folder: Path) -> Path:
    """Write a folder that the launcher accepts as a model."""
    folder = write_tokenizer(folder / "model")
    (folder / "config.json").write_text("{}")
    return folder


def serve_by(script: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace Python and the service by a shell script."""
    program = folder / "python"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setattr("sys.executable", str(program))


class Opener:
    """Function that opens scripted models, or raises one of `faults`, and records its requests."""

    def __init__(self) -> None:
        self.asked: list[ModelRef] = []
        self.closed: list[str | None] = []
        self.faults: list[Exception] = []

    async def __call__(self, ref: ModelRef) -> ScriptedModel:
        self.asked.append(ref)
        await asyncio.sleep(0)  # lets other tasks request a model meanwhile
        if self.faults:
            raise self.faults.pop()
        return Closing(self, ref)


class Closing(ScriptedModel):
    def __init__(self, opener: Opener, ref: ModelRef) -> None:
        super().__init__(lambda _: "")
        self.opener, self.ref = opener, ref

    async def aclose(self) -> None:
        self.opener.closed.append(self.ref.name)


# locating the service of a model


def test_what_is_served_elsewhere_is_where_it_is() -> None:
    with Services("http://127.0.0.1:8377") as services:
        assert services.locate(TINY) == ServedModel(TINY, trusted_url="http://127.0.0.1:8377")


def test_a_local_model_that_is_served_already_is_one_of_that_service() -> None:
    local = ModelRef(provider="local", base_url="http://127.0.0.1:8377", concurrency=3)
    with Services() as services:
        served = services.locate(local)
    assert served == ServedModel(ModelRef(provider="tinker", base_url="http://127.0.0.1:8377", concurrency=3))


def test_a_model_folder_that_is_not_there_starts_no_service(tmp_path: Path) -> None:
    with Services() as services, pytest.raises(UsageError, match="there is no model folder"):
        services.locate(ModelRef(name=str(tmp_path / "nowhere")))


@pytest.mark.usefixtures("new_services")
def test_a_run_s_folder_as_a_checkpoint_means_its_best_served_from_its_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch", reason="needs the extra `local`")
    model, asked = model_folder(tmp_path), tmp_path / "asked.json"
    run = RunFolder(tmp_path / "run")
    run.path.mkdir()
    for step, best in ((1, False), (2, True), (3, False)):
        run.add_checkpoint(checkpoint(step, best=best))
    serve_by(f"printf '%s' \"$4\" > '{asked}'; echo 8377; cat > /dev/null", tmp_path, monkeypatch)
    with Services() as services:
        served = services.locate(ModelRef(name=str(model), checkpoint=str(run.path)))
    assert served.ref.provider == "tinker"
    assert served.ref.base_url == "http://127.0.0.1:8377"
    assert served.ref.checkpoint == "tinker://run/step-000002/sampler"
    assert served.tokenizer_dir == model
    assert json.loads(asked.read_text())["state_dir"] == str(run.weights)


def test_a_run_folder_without_a_checkpoint_is_refused(tmp_path: Path) -> None:
    with Services() as services, pytest.raises(UsageError, match="has no checkpoint yet"):
        services.locate(ModelRef(checkpoint=str(tmp_path)))


def test_a_local_model_opens_at_the_service_that_serves_it(
    service: Service, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TINKER_API_KEY", KEY)
    folder = write_tokenizer(tmp_path / "tiny")

    async def run() -> None:
        with Services() as services:
            served = services.locate(ModelRef(base_url=service.base_url))
            model = await open_served(ServedModel(served.ref, tokenizer_dir=folder))
        await model.aclose()

    asyncio.run(run())
    assert (service.keys, service.finished) == ({KEY}, 1)


def test_the_services_of_two_models_start_side_by_side_and_each_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pytest.importorskip("torch", reason="needs the extra `local`")
    refs = [ModelRef(name=str(model_folder(tmp_path / name))) for name in ("one", "two")]
    began = tmp_path / "began"
    began.mkdir()
    # Each service announces its port only after the other has begun to start.
    both = f'[ "$(ls "{began}" | wc -l)" = 2 ] && echo $$ && exec cat > /dev/null'
    wait = f'touch "{began}/$$"; for _ in $(seq 1000); do {both}; sleep 0.01; done'
    serve_by(wait, tmp_path, monkeypatch)
    with Services() as services, ThreadPoolExecutor(4) as threads:
        urls = [served.ref.base_url for served in threads.map(services.locate, [*refs, *refs])]
    assert urls[:2] == urls[2:]
    assert len(set(urls)) == len([*began.iterdir()]) == 2


def test_a_model_is_served_once_for_all_policies_on_it_and_with_the_weights_of_other_runs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pytest.importorskip("torch", reason="needs the extra `local`")
    model, began = model_folder(tmp_path), tmp_path / "began"
    serve_by(f"echo x >> '{began}'; echo 8377; cat > /dev/null", tmp_path, monkeypatch)
    before, weights = RunFolder(tmp_path / "before"), tmp_path / "weights"
    paths = {kind: f"tinker://r:1/{kind}/step-000001" for kind in ("weights", "sampler_weights")}
    for kind in paths:
        saved = before.weights / "r_1" / kind / "step-000001"
        saved.mkdir(parents=True)
        for file in ("adapter_model.safetensors", "optimizer.safetensors"):
            (saved / file).write_text(kind)
    one = SavedPolicy(version=1, state=paths["weights"], sampler=paths["sampler_weights"])
    before.add_checkpoint(Checkpoint(step=1, policies={"coder": one, "judge": one}))
    with Services(state_dir=weights) as services:
        ref = ModelRef(name=str(model))
        begun = services.locate(ref.model_copy(update={"checkpoint": f"{before.path}#coder"}), to_train=True)
        sampled = services.locate(ref.model_copy(update={"checkpoint": f"{before.path}#judge"}))
        plain = services.locate(ref)
    assert (begun.ref.checkpoint, sampled.ref.checkpoint) == (one.state, one.sampler)
    assert {it.ref.base_url for it in (begun, sampled, plain)} == {"http://127.0.0.1:8377"}
    assert began.read_text().splitlines() == ["x"]
    for kind in paths:
        copied = weights / "r_1" / kind / "step-000001"
        assert [file.name for file in copied.iterdir()] == ["adapter_model.safetensors"]


@pytest.mark.parametrize(
    ("policy", "said"),
    [("", "has several policies; it trained coder, judge: name one, as in .*#coder"), ("#codr", "no policy")],
)
def test_a_run_of_several_policies_is_asked_for_one_of_them(policy: str, said: str, tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    saved = SavedPolicy(version=1, state="tinker://r/weights/x", sampler="tinker://r/sampler_weights/x")
    run.add_checkpoint(Checkpoint(step=1, policies={"coder": saved, "judge": saved}))
    with Services() as services, pytest.raises(UsageError, match=said):
        services.locate(ModelRef(checkpoint=f"{tmp_path}{policy}"))


def test_a_service_that_still_starts_when_the_block_ends_is_ended_with_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pytest.importorskip("torch", reason="needs the extra `local`")
    ref = ModelRef(name=str(model_folder(tmp_path)))
    began, ended = tmp_path / "began", tmp_path / "ended"
    script = f'touch "{began}"; sleep 0.3; echo 8377; cat > /dev/null; touch "{ended}"'
    serve_by(script, tmp_path, monkeypatch)
    with ThreadPoolExecutor(1) as threads:
        with Services() as services:
            threads.submit(services.locate, ref)
            while not began.exists():
                time.sleep(0.01)
        assert ended.exists()


def test_a_model_of_this_machine_is_opened_with_its_tokenizer_loaded_once(
    service: Service, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pytest.importorskip("torch", reason="needs the extra `local`")
    from transformers import PreTrainedTokenizerFast

    folder = model_folder(tmp_path)
    serve_by(f"echo {urlsplit(service.base_url).port}; cat > /dev/null", tmp_path, monkeypatch)
    service.models.append({"model_name": str(folder.resolve())})
    load, loaded = PreTrainedTokenizerFast.from_pretrained, list[str]()

    def counted(source: str, **options: object) -> object:
        loaded.append(source)
        return load(source, **options)

    monkeypatch.setattr(PreTrainedTokenizerFast, "from_pretrained", counted)

    async def run() -> None:
        with Services() as services:
            model = await services.open(ModelRef(name=str(folder)))
            await model.aclose()

    asyncio.run(run())
    assert loaded == [str(folder)]


def test_a_model_without_a_service_cannot_be_opened() -> None:
    with pytest.raises(UsageError, match="has no endpoint yet"):
        asyncio.run(open_model(ModelRef()))


# opening each model once


def test_a_model_is_opened_once_however_many_ask_at_once() -> None:
    opener = Opener()

    async def run() -> set[LimitedModel]:
        async with Models(opener) as models:
            return set(await asyncio.gather(*(models.model(TINY) for _ in range(10))))

    assert len(asyncio.run(run())) == 1
    assert opener.asked == [TINY]


def test_models_that_differ_are_each_opened_and_all_are_closed() -> None:
    opener = Opener()
    other = ModelRef(provider="tinker", name="other")

    async def run() -> None:
        async with Models(opener) as models:
            one, two = [await models.model(ref) for ref in (TINY, other)]
            assert one is not two
            assert opener.closed == []

    asyncio.run(run())
    assert sorted(map(str, opener.closed)) == ["other", "tiny"]


def test_what_is_open_is_closed_when_the_block_ends_in_an_error() -> None:
    opener = Opener()

    async def run() -> None:
        async with Models(opener) as models:
            await models.model(TINY)
            raise WorldError("the disk is full")

    with pytest.raises(WorldError):
        asyncio.run(run())
    assert opener.closed == ["tiny"]


def test_an_opening_that_failed_fails_all_that_wait_and_is_tried_again_by_the_next() -> None:
    opener = Opener()
    opener.faults.append(WorldError("nothing answers"))

    async def run() -> LimitedModel:
        async with Models(opener) as models:
            refused = await asyncio.gather(*(models.model(TINY) for _ in range(3)), return_exceptions=True)
            assert [str(error) for error in refused] == ["nothing answers"] * 3
            return await models.model(TINY)

    assert isinstance(asyncio.run(run()), LimitedModel)
    assert opener.asked == [TINY, TINY]
    assert opener.closed == ["tiny"]


def test_a_caller_that_gives_up_leaves_the_opening_to_the_others() -> None:
    opener = Opener()

    async def run() -> None:
        async with Models(opener) as models:
            impatient = asyncio.create_task(models.model(TINY))
            patient = asyncio.create_task(models.model(TINY))
            await asyncio.sleep(0)
            impatient.cancel()
            assert isinstance(await patient, LimitedModel)

    asyncio.run(run())
    assert opener.asked == [TINY]


def test_the_limit_of_a_model_is_its_reference_s() -> None:
    ref = ModelRef(provider="tinker", name="tiny", concurrency=1)
    request = Request([], Sampling(), None, CALL)

    async def run() -> int:
        opener = Opener()
        async with Models(opener) as models:
            limited = await models.model(ref)
            assert isinstance(limited.model, ScriptedModel)
            limited.model.latency = lambda _: 0.001
            await asyncio.gather(*(limited.complete(request) for _ in range(4)))
            return limited.model.most_under_way

    assert asyncio.run(run()) == 1
