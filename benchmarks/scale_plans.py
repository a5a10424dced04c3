"""Figures of docs/scale.md: a run of ten million episodes, and a training on a thousand GPUs.

    python benchmarks/scale_plans.py    # Markdown tables from the constants in scale.json; about a minute

Rates of the command follow from the measured parts of an episode; rates of GPUs are published ones, each with
its source on the page. The table of staleness is simulated, the others are arithmetic.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import pairwise
from pathlib import Path
from statistics import median

import click
from scale_constants import LONG, ONE, ONE_TEXT, SHORT, Parts

HOUR = 3600.0
CONSTANTS = Path(__file__).with_name("scale.json")
CALLS: Mapping[int, float] = {5: 1.73e-3, 1000: 2.51e-3, 8000: 9.15e-3}
"""CPU seconds of a call by tokens of its answer: medians of `scale_tokens.py`."""
RUN, TRAINING, GPUS = 10_000_000, 16_384, 1000
"""Episodes of the run, episodes of a step of the training, GPUs."""
FEW_GPUS = 64
"""GPUs of a training that one command serves."""
SAMPLING_RATE, ANSWER_RATE, ROLLOUT_GPUS = 5777.0, 100.0, 0.6
"""Tokens a second of one H100 with an 8B model (vLLM 0.10, FP8, MLPerf Inference v5.1, offline), those of an
answer at most, and the share of the GPUs that sample. The second and the third are assumptions."""
NODE_SLOTS, UNLIMITED = 64, 10**9
"""Episodes in flight on a node of a training, as with `model.concurrency=64`; and no limit."""
PEAK, UTILISATION = 989e12, 0.4
"""FLOP/s of an H100 in bfloat16, and the share of them that an update reaches, an assumption."""


@dataclass(frozen=True)
class Shape:
    """Sizes of a model's linear layers."""

    name: str
    layers: int
    hidden: int
    inner: int
    """Width of the feed-forward layer."""
    query: int
    """Width of all query heads."""
    key: int
    """Width of all key heads, as of all value heads."""
    parameters: float
    """Parameters of the whole model."""

    def adapter(self, rank: int) -> int:
        """Return the parameters of a LoRA adapter on all linear layers: rank · (inputs + outputs) of each."""
        attention = 2 * (self.hidden + self.query) + 2 * (self.hidden + self.key)
        return rank * self.layers * (attention + 3 * (self.hidden + self.inner))


QWEN3_8B = Shape("Qwen3-8B", 36, 4096, 12288, 4096, 1024, 8.2e9)
QWEN3_32B = Shape("Qwen3-32B", 64, 5120, 25600, 8192, 1024, 32.8e9)


def episode_of(parts: Mapping[str, Parts], tokens: float) -> Parts:
    """Return the parts of an episode of one call with an answer of so many tokens.

    Each is linear in the tokens: the slope is that between the two loads of three calls, and the line goes
    through the measured load of one call.
    """
    short, long, one = parts[SHORT.name], parts[LONG.name], parts[ONE.name]
    added = LONG.calls * (LONG.tokens - SHORT.tokens)

    def at(name: str) -> float:
        slope = max(0.0, (getattr(long, name) - getattr(short, name)) / added)
        return max(0.0, getattr(one, name) + slope * (tokens - ONE.tokens))

    return Parts(**{field.name: at(field.name) for field in fields(Parts)})


@dataclass(frozen=True)
class RunPlan:
    """A run of many episodes."""

    episodes: int
    parts: Parts
    sending: float
    """CPU seconds of the command for a job over Ray, without the episode's own bytes."""
    serving: float
    """CPU seconds of the worker for the same."""
    calling: float
    """CPU seconds of a process for the model calls of an episode."""

    @property
    def alone(self) -> float:
        """Episodes a second of one command that makes them itself."""
        return 1 / (self.parts.make / 1e6 + self.calling)

    @property
    def over_ray(self) -> float:
        """Episodes a second that one command can send, receive and write."""
        return 1 / (self.sending + (self.parts.unpickle + self.parts.keep) / 1e6)

    @property
    def worker(self) -> float:
        """Episodes a second of one Ray worker, at most."""
        return 1 / (self.serving + self.calling + (self.parts.run + self.parts.pickle) / 1e6)

    def hours(self, rate: float) -> float:
        """Return the hours of the run at a rate in episodes a second."""
        return self.episodes / rate / HOUR

    @property
    def disk(self) -> float:
        """Bytes of `episodes.jsonl` and its index."""
        return self.episodes * (self.parts.line_bytes + self.parts.index_bytes)

    @property
    def memory_of_index(self) -> float:
        """Bytes of memory of `view`, and of the start of `--resume`, for the entries of the index."""
        return self.episodes * self.parts.entry_memory


@dataclass(frozen=True)
class Published:
    """A published rate of a training on GPUs."""

    name: str
    tokens_per_gpu: float
    """Tokens a second for each GPU, over whole steps."""
    tokens: float
    """Mean tokens of an episode."""


NEMO: Sequence[Published] = (
    Published("Llama-3.1-8B, one update behind", 2161, 1129),
    Published("Qwen3-32B, one update behind", 494, 3207),
    Published("Qwen3-235B, one update behind", 52.2, 5691),
)
"""GRPO on 16, 64 and 256 H100s: NeMo RL v0.4, docs/about/performance-summary.md of NVIDIA-NeMo/RL."""


@dataclass(frozen=True)
class TrainingPlan:
    """A training at a published rate, on more GPUs."""

    published: Published
    gpus: int
    parts: Parts
    sending: float
    """CPU seconds of the command for a job over Ray, without the episode's own bytes."""

    @property
    def rate(self) -> float:
        """Episodes a second if the published rate holds for each GPU."""
        return self.published.tokens_per_gpu * self.gpus / self.published.tokens

    @property
    def command(self) -> float:
        """CPU seconds of the command for an episode."""
        return self.sending + (self.parts.unpickle + self.parts.prepare) / 1e6

    @property
    def cores(self) -> float:
        """Cores that the command would need; it has one."""
        return self.rate * self.command

    @property
    def most_gpus(self) -> float:
        """GPUs at which one core of the command is full."""
        return self.gpus / self.cores

    @property
    def disk(self) -> float:
        """Bytes a second of the episodes' files."""
        return self.rate * self.parts.line_bytes

    @property
    def wire(self) -> float:
        """Bytes a second of training data to the service."""
        return self.rate * self.parts.wire_bytes


def table(rows: Sequence[Sequence[str]]) -> str:
    """Return rows as a Markdown table; the first row is the head, and numbers are at the right."""
    head, *body = rows
    rule = ["---", *["---:"] * (len(head) - 1)]
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, rule, *body))


PARTS: Mapping[str, str] = {
    "run": "scheduling the roles, with a model that answers at once, µs",
    "build": "of it, building the episode, µs",
    "line": "serialising (JSON), µs",
    "write": "appending the line and an entry of the index, µs",
    "events": "log and progress, µs",
    "read": "reading the episode back (`report`, search, `--resume`), µs",
    "index": "reading its entry of the index (`view`, `--resume`), µs",
    "pickle": "Ray, pickling in the worker, µs",
    "unpickle": "Ray, unpickling in the command, µs",
    "advantages": "groups and advantages, µs",
    "data": "training data, µs",
    "wire": "encoding it for the service, µs",
    "line_bytes": "`episodes.jsonl`, bytes",
    "gzip_bytes": "the same, if it were compressed by gzip, bytes",
    "index_bytes": "index, bytes",
    "job_bytes": "Ray, the job, bytes",
    "episode_bytes": "Ray, the episode, bytes",
    "wire_bytes": "training data to the service, bytes",
    "entry_memory": "memory of `view`, bytes",
}
"""Rows of the table of parts."""


def number(value: float) -> str:
    """Return a number with three significant digits, and thousands apart."""
    if value == 0:
        return "–"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def part_rows(parts: Mapping[str, Parts]) -> list[list[str]]:
    """Return a row for each part of an episode, and a column for each load."""
    rows = [[text, *(number(getattr(it, name)) for it in parts.values())] for name, text in PARTS.items()]
    return [["an episode of", *parts], *rows]


@dataclass(frozen=True)
class Sending:
    """CPU seconds of one episode's calls and of its way over Ray, medians of the rounds."""

    calls: Mapping[int, float]
    """A call over HTTP, by tokens of its answer."""
    command: float
    worker: float

    def call(self, tokens: float) -> float:
        """Return the CPU seconds of a call, on the lines between the measured lengths and beyond them."""
        lengths = sorted(self.calls)
        low, high = next((it for it in pairwise(lengths) if tokens <= it[1]), (lengths[-2], lengths[-1]))
        slope = (self.calls[high] - self.calls[low]) / (high - low)
        return self.calls[low] + slope * (tokens - low)


def read_constants(file: Path) -> tuple[dict[str, Parts], Sending]:
    """Read the constants that `scale.py` has written."""
    kept = json.loads(file.read_text(encoding="utf-8"))
    parts = {name: Parts(**each) for name, each in kept["parts"].items()}

    def of(kind: str, name: str) -> float:
        return median(each[kind][name] for each in kept["rounds"])

    return parts, Sending(CALLS, of("ray_eight", "command"), of("ray_eight", "worker"))


def run_rows(parts: Mapping[str, Parts], sending: Sending) -> list[list[str]]:
    """Return a row for each kind of episode of the run."""
    head = ["episode", "one command, episodes/s", "hours", "over Ray, episodes/s", "hours"]
    rows = [
        [*head, "workers to fill it", "disk, GB", "gzip, GB", "`view`, GB of memory", "reading all, hours"]
    ]
    for tokens, calls in ((0, 1), (300, 3), (1000, 1), (3000, 3), (4000, 1), (16000, 1)):
        named = {(0, 1): ONE_TEXT, (300, 3): SHORT, (3000, 3): LONG}.get((tokens, calls))
        its = parts[named.name] if named else episode_of(parts, tokens)
        plan = RunPlan(RUN, its, sending.command, sending.worker, sending.call(tokens / calls) * calls)
        words = f"{calls} call{'s' * (calls > 1)}, {tokens:,} tokens" if tokens else "1 call, text alone"
        rows.append(
            [
                words,
                f"{plan.alone:,.0f}",
                f"{plan.hours(plan.alone):,.1f}",
                f"{plan.over_ray:,.0f}",
                f"{plan.hours(plan.over_ray):,.1f}",
                f"{plan.over_ray / plan.worker:.1f}",
                f"{plan.disk / 1e9:,.0f}",
                f"{RUN * its.gzip_bytes / 1e9:,.0f}",
                f"{plan.memory_of_index / 1e9:,.1f}",
                f"{plan.hours(1e6 / its.read):,.1f}",
            ]
        )
    return rows


def training_rows(parts: Mapping[str, Parts], sending: Sending) -> list[list[str]]:
    """Return a row for each published rate, on a thousand GPUs."""
    head = ["model", "tokens/s a GPU", "tokens an episode", "episodes/s", "command, ms an episode"]
    rows = [[*head, "cores that it needs", "GPUs that fill one core", "disk, MB/s", "training data, MB/s"]]
    for published in NEMO:
        plan = TrainingPlan(published, GPUS, episode_of(parts, published.tokens), sending.command)
        rows.append(
            [
                published.name,
                f"{published.tokens_per_gpu:,.0f}",
                f"{published.tokens:,.0f}",
                number(plan.rate),
                f"{plan.command * 1e3:.2f}",
                f"{plan.cores:.2f}",
                f"{plan.most_gpus:,.0f}",
                number(plan.disk / 1e6),
                number(plan.wire / 1e6),
            ]
        )
    return rows


def few_gpus_rows(parts: Mapping[str, Parts], sending: Sending) -> list[list[str]]:
    """Return a row for each published rate, on 64 GPUs."""
    rows = [["model", "episodes/s", "one command, cores", "over Ray, its cores", "workers' cores"]]
    for published in NEMO:
        plan = TrainingPlan(published, FEW_GPUS, episode_of(parts, published.tokens), sending.command)
        calling = sending.call(published.tokens) + plan.parts.run / 1e6
        cores = (
            plan.rate * (calling + plan.parts.prepare / 1e6),
            plan.cores,
            plan.rate * (sending.worker + calling + plan.parts.pickle / 1e6),
        )
        rows.append([published.name, number(plan.rate), *(f"{it:.2f}" for it in cores)])
    return rows


def staleness_rows(parts: Mapping[str, Parts], sending: Sending, batch: int, steps: int) -> list[list[str]]:
    """Simulate a training of an 8B model on 16 and 1,000 GPUs, and return a row for each staleness."""
    from scale_simulation import Call, Engine, Learning, Work, answer_lengths, constant, simulate_training

    published = NEMO[0]
    its = episode_of(parts, published.tokens)
    costs = sending.command + its.unpickle / 1e6, its.prepare / 1e6
    head = ["GPUs", "episodes in flight", "command", "staleness", "seconds a step", "tokens/s a GPU"]
    rows = [[*head, "sampling", "updating", "core of the command"]]
    nodes = NODE_SLOTS * GPUS // 8
    kinds = (
        (16, batch // 8, None, 1),
        (GPUS, batch, nodes, 1),
        (GPUS, batch, None, 1),
        (GPUS, batch, None, 0),
    )
    for gpus, episodes, slots, factor in kinds:
        trainer = gpus * (1 - ROLLOUT_GPUS) * PEAK * UTILISATION / (6 * QWEN3_8B.parameters)
        engine = Engine(
            gpus * ROLLOUT_GPUS * SAMPLING_RATE, ANSWER_RATE, answer_lengths(published.tokens, 0.7, 4096)
        )
        work = Work((1,), Call(constant(0.0)), costs[0] * factor)
        learning = Learning(costs[1] * factor, episodes * published.tokens / trainer)
        for staleness in (0, 1, 2):
            it = simulate_training(
                work,
                learning,
                batch=episodes,
                steps=steps,
                slots=slots or UNLIMITED,
                staleness=staleness,
                engine=engine,
            )
            rows.append(
                [
                    f"{gpus:,}",
                    f"{slots:,}" if slots else "all",
                    "as measured" if factor else "free",
                    str(staleness),
                    f"{episodes / it.rate:.1f}",
                    f"{it.rate * published.tokens / gpus:,.0f}",
                    f"{it.sampling:.2f}",
                    f"{it.updating:.2f}",
                    f"{it.command:.2f}",
                ]
            )
    return rows


def weight_rows() -> list[list[str]]:
    """Return a row for each model: bytes of an adapter, of all weights, and of their checkpoints."""
    head = [
        "model",
        "LoRA of rank 32, GB",
        "all weights, GB",
        "checkpoint of the LoRA, GB",
        "of all weights, GB",
    ]
    rows = [head]
    for shape in (QWEN3_8B, QWEN3_32B):
        adapter, whole = shape.adapter(32) / 1e9, shape.parameters / 1e9
        # bfloat16; a checkpoint has float32 and both moments of Adam, and all weights in bfloat16, too.
        rows.append(
            [shape.name, f"{adapter * 2:.2f}", f"{whole * 2:.1f}", f"{adapter * 12:.1f}", f"{whole * 14:.0f}"]
        )
    return rows


@click.command(help=__doc__)
@click.option("--from", "file", type=click.Path(path_type=Path, exists=True), default=CONSTANTS)
@click.option("--steps", default=8, show_default=True, help="Steps of the simulated trainings.")
def main(file: Path, steps: int) -> None:
    parts, sending = read_constants(file)
    tables = part_rows(parts), run_rows(parts, sending), training_rows(parts, sending), weight_rows()
    tables += (few_gpus_rows(parts, sending),)
    for rows in (*tables, staleness_rows(parts, sending, TRAINING, steps)):
        click.echo(table(rows) + "\n")


if __name__ == "__main__":
    main()
