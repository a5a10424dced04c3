"""Commands that write: how each is started, how it goes on, and what is compared with an undisturbed one."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from counting import said_in
from flaky import Flaky, chat, scripted
from processes import Place
from trials_training import ids, metrics

from rolegraph.local.launcher import BASE_MODEL, running
from tests.local.conftest import make_model
from tests.model_hub import MERGE, serving, write_gguf

Words = tuple[str, ...]
RUN = ("--limit", "12", "--concurrency", "2")
STEPS = (
    "train.batch_size=2",
    "train.rollouts=2",
    "train.steps=3",
    "train.learning_rate=0.002",
    "train.checkpoint_every=1",
    "train.validation={every: 2, tasks: 2, rollouts: 1}",
    "sampling.max_tokens=16",
)
SUMS = """\
rolegraph: 2
name: sums
data: {train: rows.jsonl, validation: rows.jsonl}
model: openai:tiny
roles:
  solver:
    prompt: "{{ task.question }} Answer in <answer></answer>."
    parser: {tag: answer}
    reward: {exact_match: {field: answer}}
    estimator: grpo
episode: {correct: solver.right}
train: {steps: 1}
"""
BETTER = "```jinja\n{{ task.question }} THINK. Answer in <answer></answer>.\n```"


@dataclass(frozen=True)
class Command:
    """A command that writes below one folder, `{out}` in its words."""

    name: str
    start: Words
    result: Callable[[Path], object]
    """Reads from the folder what must be equal to that of an undisturbed command."""
    resume: Words | None = None
    """Words that go on with a folder in which there is `begun`; None where the same words go on."""
    begun: str = ""
    whole: str = ""
    """File that is there once the command is done, of commands that refuse a finished folder."""
    prepare: Callable[[], None] = lambda: None
    """Makes what the command reads."""
    environment: dict[str, str] = field(default_factory=dict[str, str])

    def words(self, out: Path) -> Words | None:
        """Return the words that begin or go on; None where nothing is left to do."""
        if self.whole and (out / self.whole).exists():
            return None
        words = self.resume if self.resume and (out / self.begun).exists() else self.start
        return tuple(word.replace("{out}", str(out)) for word in words)


def commands(folder: Path, stack: ExitStack) -> list[Command]:
    """Make what the commands need, and return them."""
    folder.mkdir()
    server, sums = Flaky(scripted, 0, 0.0), Flaky(_sums, 0, 0.0)
    hub = stack.enter_context(serving())
    stack.callback(server.close)
    stack.callback(sums.close)
    rows = [{"question": f"What is {n} + {n}?", "answer": str(2 * n)} for n in range(8)]
    (folder / "rows.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    (folder / "sums.yaml").write_text(SUMS)
    model = make_model(folder / "model", merges=[MERGE])
    gguf = write_gguf(model, folder / "tiny.gguf")
    hub.add_model("org/tiny", {file.name: file.read_bytes() for file in model.iterdir()})
    tiny, out = ("--model", "openai:tiny", "--base-url", f"{server.url}/v1"), ("--out", "{out}")
    begin, grid = ("run", "solver_judge"), ("-m", "roles.solver.count=1,2", *RUN[:1], "6", *RUN[2:])
    place = Place(folder / "trained")
    trained = place.folder / "run"
    training = ("train", "solver_judge", *STEPS)

    @cache
    def train() -> None:
        assert place.start(*training, "--out", str(trained)).wait() == 0, place.said()

    evolving = ("--budget", "60", "--tasks", "4", "--rollouts", "1", "--concurrency", "2")
    evolve = ("optimize", str(folder / "sums.yaml"), "--base-url", f"{sums.url}/v1", *evolving)
    service = stack.enter_context(running(BASE_MODEL, state_dir=folder / "weights", threads=1))
    there, key = ("--base-url", service.base_url), {"TINKER_API_KEY": service.api_key}
    fetched = {"HF_HOME": "{out}", **hub.environment}
    return [
        Command("run", (*begin, *tiny, *RUN, *out), _run, ("run", "--resume", *out), "run.json"),
        Command(
            "train",
            (*training, *there, *out),
            _trained,
            ("train", "--resume", *there, *out),
            "run.json",
            environment=key,
        ),
        Command(
            "train, its own service", (*training, *out), _trained, ("train", "--resume", *out), "run.json"
        ),
        Command(
            "run -m", (*begin, *grid, *tiny, *out), _swept, ("run", "-m", "--resume", *out), "sweep.json"
        ),
        Command(
            "train -m",
            (*training, "-m", "seed=0,1", "train.steps=1", *there, *out),
            _swept,
            ("train", "-m", "--resume", *there, *out),
            "sweep.json",
            environment=key,
        ),
        Command("optimize", (*evolve, *out), _optimized),
        Command("export", ("export", str(trained), *out), _files, whole="README.md", prepare=train),
        Command(
            "export --merged",
            ("export", str(trained), "--merged", *out),
            _files,
            whole="README.md",
            prepare=train,
        ),
        Command("fetch, of a hub", ("fetch", "org/tiny"), _files, environment=fetched),
        Command("fetch, of a file", ("fetch", str(gguf)), _files, environment=fetched),
    ]


def names(folder: Path) -> list[str]:
    """Return the paths below a folder, without the ids of sessions and templates."""
    found = (str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
    return sorted(re.sub(r"[0-9a-f]{12}", "ID", name) for name in found)


def _run(out: Path) -> object:
    return names(out), sorted(said_in(out / "episodes.jsonl").items())


def _trained(out: Path) -> object:
    """Read figures and episodes; the weights of steps that were made twice may lie beside the others."""
    return [name for name in names(out) if not name.startswith("weights/")], metrics(out), ids(out)


def _swept(out: Path) -> object:
    points = sorted(path.parent for path in out.glob("*/run.json"))
    return [(out / "sweep.svg").exists()], [
        _trained(point) if (point / "metrics.jsonl").exists() else _run(point) for point in points
    ]


def _optimized(out: Path) -> object:
    result: Any = json.loads((out / "result.json").read_text())
    episodes = [sorted(said_in(file).items()) for file in sorted(out.glob("candidates/*/episodes.jsonl"))]
    return names(out), result, episodes, (out / "reflections.jsonl").read_text().count("\n")


def _files(out: Path) -> object:
    return {
        str(file.relative_to(out)): hashlib.sha256(file.read_bytes()).hexdigest()
        for file in out.rglob("*")
        if file.is_file()
    }


async def _sums(head: bytes, body: bytes) -> bytes:
    """Answer sums, all of them right with a prompt that says THINK; reflect with such a prompt."""
    if head.startswith(b"GET"):
        return await scripted(head, body)
    asked = "\n".join(message["content"] for message in json.loads(body)["messages"])
    if "Jinja2 template of" in asked:
        return await chat(BETTER)
    numbers = re.findall(r"(\d+) \+ ", asked)
    return await chat(
        f"<answer>{2 * int(numbers[-1]) if 'THINK' in asked or '2' in numbers else 'x'}</answer>"
    )


def same(one: object, other: object) -> Iterable[str]:
    """Yield the first values that differ, numbers by more than the noise of batches."""
    from trials_training import close

    if isinstance(one, dict) and isinstance(other, dict):
        for key in sorted({*one, *other}, key=str):
            yield from (f"{key}: {text}" for text in same(one.get(key), other.get(key)))
    elif isinstance(one, list | tuple) and isinstance(other, list | tuple) and len(one) == len(other):
        for index, pair in enumerate(zip(one, other, strict=True)):
            yield from (f"{index}: {text}" for text in same(*pair))
    elif not (close(one, other) if isinstance(one, float) and isinstance(other, float) else one == other):
        yield f"{str(one)[:300]} != {str(other)[:300]}"
