"""The probes of `rolegraph doctor`, on this project's service and on ones that are wrong on purpose."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs the extra `local`")
tinker = pytest.importorskip("tinker")
uvicorn = pytest.importorskip("uvicorn")

from rolegraph.cli.main import run  # noqa: E402
from rolegraph.doctor.probes import PROBES, ProbeReport  # noqa: E402
from rolegraph.doctor.probing import doctor  # noqa: E402
from rolegraph.engine.models.service_traits import ServiceTraits  # noqa: E402
from rolegraph.local.service.backend import Backend  # noqa: E402
from rolegraph.local.service.batcher import SampleJob  # noqa: E402
from rolegraph.local.service.bodies import AdamSettings  # noqa: E402
from rolegraph.local.service.checkpoints import CheckpointStore  # noqa: E402
from rolegraph.local.service.errors import RequestError  # noqa: E402
from rolegraph.local.service.local_model import LocalModel  # noqa: E402
from rolegraph.local.service.server import Service  # noqa: E402
from rolegraph.local.service.trainer import Datum  # noqa: E402
from rolegraph.serving.server import listen  # noqa: E402
from tests.local.conftest import make_model  # noqa: E402

pytestmark = pytest.mark.service
KEY = "tml-test"
REFUSED = {"target_prompt_logprobs", "prompt_alt_tokens_k"}
"""Fields that this project's service refuses."""


class MeanBackend(Backend):
    """Backend that divides a gradient by the datums since the last step, and each datum's by its length."""

    def __init__(self, *words: Any) -> None:
        super().__init__(*words)
        self.data: Counter[str] = Counter()

    def forward_backward(
        self, name: str, data: Sequence[Datum], loss: str, config: Mapping[str, float], *, backward: bool
    ) -> tuple[float, list[Any]]:
        self.data[name] += len(data) * backward
        scaled: list[Datum] = []
        settings = {**config}
        for datum in data:
            share = 1 / len(datum.tokens)
            if loss == "cross_entropy":
                share = 1 / float(datum.inputs["weights"].sum())
            inputs = {
                key: value * share if key in ("advantages", "weights") else value
                for key, value in datum.inputs.items()
            }
            scaled.append(Datum(datum.tokens, inputs))
            if loss == "dro":  # the probes send one datum
                settings["beta"] = config.get("beta", 0.05) * share
        return super().forward_backward(name, scaled, loss, settings, backward=backward)

    def step(self, name: str, settings: AdamSettings) -> dict[str, float]:
        """Divide the step, which is in proportion to the gradient where more than one datum was sent."""
        rate = settings.learning_rate / self.data.pop(name)
        return super().step(name, settings.model_copy(update={"learning_rate": rate}))

    async def sample(self, job: SampleJob) -> SampleJob:
        """Leave out the entry of the first token."""
        done = await super().sample(job)
        done.prompt_logprobs = done.prompt_logprobs[1:]
        return done


class MergingBackend(Backend):
    """Backend that takes the loss of the first pass for all passes before a step, and clips no gradient."""

    def __init__(self, *words: Any) -> None:
        super().__init__(*words)
        self.first: dict[str, tuple[str, Mapping[str, float]]] = {}

    def forward_backward(
        self, name: str, data: Sequence[Datum], loss: str, config: Mapping[str, float], *, backward: bool
    ) -> tuple[float, list[Any]]:
        if backward:
            loss, config = self.first.setdefault(name, (loss, config))
        return super().forward_backward(name, data, loss, config, backward=backward)

    def step(self, name: str, settings: AdamSettings) -> dict[str, float]:
        self.first.pop(name, None)
        return super().step(name, settings.model_copy(update={"grad_clip_norm": 0.0}))


class DyingBackend(Backend):
    """Backend that samples no more after its first step."""

    has_stepped = False

    def step(self, name: str, settings: AdamSettings) -> dict[str, float]:
        self.has_stepped = True
        return super().step(name, settings)

    async def sample(self, job: SampleJob) -> SampleJob:
        if self.has_stepped:
            raise RequestError("the sampler has ended", status=400)
        return await super().sample(job)


class RefusingService(Service):
    """Service that loads a state only by the first request of a client that exists."""

    async def _load_weights(self, body: Any) -> object:
        if body.model_id is None:
            raise RequestError("model_id: field required", status=422)
        if body.seq_id != 1:
            raise RequestError(f"LoadWeights is not permitted with seq_id {body.seq_id}", status=400)
        return await super()._load_weights(body)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("tiny"))


@contextmanager
def serving(
    folder: Path, states: Path, backend: type[Backend] = Backend, service: type[Service] = Service
) -> Generator[str]:
    """Serve a model in a thread with parts of the service replaced, and give the URL."""
    made = backend(LocalModel(folder, 1), CheckpointStore(states, "tiny", folder), "tiny", {str(folder)})
    app = service(made, tokenizer=str(folder)).app(KEY, "127.0.0.1")
    with listen("127.0.0.1", 0) as listener:
        server = uvicorn.Server(uvicorn.Config(app, log_level="critical", timeout_graceful_shutdown=1))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join()
            made.close()


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TINKER_API_KEY", KEY)


def unexpected(report: ProbeReport) -> set[str]:
    refused = {row.name for row in report.rows if row.status == "not offered"}
    assert refused == REFUSED
    return {row.name for row in report.rows if row.status != "ok"} - refused


def test_the_projects_own_service_does_all_that_is_expected(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with serving(folder, tmp_path) as url:
        code = run(["doctor", "--json", "--base-url", url])
    output = capsys.readouterr()
    found = json.loads(output.out)
    refused = [row for row in found["rows"] if row["status"] != "ok"]
    assert {row["name"]: row["status"] for row in refused} == dict.fromkeys(REFUSED, "not offered")
    assert all("is not served here" in row["seen"] for row in refused)
    assert (code, found["ok"], found["model"], found["url"]) == (0, True, "tiny", url)
    traits = found["traits"]
    assert {**traits, "losses": tuple(traits["losses"])} == asdict(
        ServiceTraits(sdk_version=tinker.__version__)
    )
    assert {*found["rows"][0]} == {"name", "expected", "seen", "status"}
    assert f"{len(found['rows']) - len(refused)} ok" in output.err
    assert KEY not in output.out + output.err


def test_means_and_a_missing_first_entry_are_named(folder: Path, tmp_path: Path) -> None:
    with serving(folder, tmp_path, MeanBackend) as url:
        report = doctor(base_url=url)
    shifted = {"leading None", "prompt_logprobs_last_n"}
    assert unexpected(report) == {"cross_entropy", "advantage 0", "datum twice", "long datum"} | shifted
    assert not report.ok
    losses = tuple(loss for loss in ServiceTraits().losses if loss != "cross_entropy")
    found = ServiceTraits(
        sdk_version=tinker.__version__, takes_means=True, has_leading_none=False, losses=losses
    )
    assert report.traits == found
    assert next(row.seen for row in report.rows if row.name == "advantage 0") == "0.50 × the expected change"


def test_merged_losses_ignored_clipping_and_refused_states_are_named(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with serving(folder, tmp_path, MergingBackend, RefusingService) as url:
        code = run(["doctor", "--json", "--base-url", url, "--model", "tiny"])
    found = json.loads(capsys.readouterr().out)
    differing = {row["name"]: row["status"] for row in found["rows"] if row["status"] == "differs"}
    assert differing == {"mixed losses": "differs", "gradient clipping": "differs"}
    assert (code, found["ok"]) == (1, False)
    traits = found["traits"]
    assert traits["merges_losses"]
    assert not traits["has_clip_norm"]
    assert not traits["restores_without_client"]


def test_a_service_that_breaks_during_the_probes_leaves_no_record(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = tmp_path / "settings"
    monkeypatch.setenv("XDG_CONFIG_HOME", str(settings))
    for backend, recorded in ((DyingBackend, False), (Backend, True)):
        with serving(folder, tmp_path / backend.__name__, backend) as url:
            run(["doctor", "--json", "--base-url", url])
        assert json.loads(capsys.readouterr().out)["recorded"] is recorded
        assert bool([*settings.rglob("*.json")]) is recorded


def test_wrong_arguments_are_usage_errors(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["doctor", "--model", "replay:episodes.jsonl"]) == 2
    assert "not replay; expected" in capsys.readouterr().err
    assert run(["doctor", "--base-url", "http://127.0.0.1:9"]) == 1
    assert "No Tinker service answers at http://127.0.0.1:9" in capsys.readouterr().err


def test_a_probe_answers_every_question_about_a_service() -> None:
    probed = {trait for probe in PROBES for trait in probe.differing} | {"restores_without_client"}
    declared = {"has_stop"}
    """Traits that every Tinker service has, and that an integration may lack."""
    assert {it.name for it in fields(ServiceTraits)} - {"sdk_version", "losses"} == probed | declared
