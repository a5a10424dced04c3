"""Ten minutes on a GPU: start, memory by model size, rollout and update, two policies, vLLM beside it.

    python benchmarks/gpu.py --out gpu.json                     # on a GPU: 135M, 0.6B, 1.5B, 1.7B, 4B
    python benchmarks/gpu.py --sizes shipped,tiny --minutes 3   # on a CPU, to see that the script works

Models other than the shipped one have random weights, which take the memory and the time of trained ones, and
the shipped tokenizer; nothing is downloaded. Each measurement is a process of its own with a deadline: one
that fails or is late is a row with its reason, and the others go on. Prints Markdown tables.

Memory is measured by PyTorch's own count, and stands beside the figure that the local service computes before
it loads a model. `longest` updates with the longest sequence that the service says fits.
"""

# torch and transformers leave parts of their types unknown.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import click

from rolegraph.local.launcher import BASE_MODEL

Row = dict[str, Any]
RANK = 32
PASS_TOKENS = 1024
SAMPLED = 64
"""Sequences of a rollout, and the tokens of each answer."""
TRAIN = (
    "train.steps=2",
    "train.batch_size=4",
    "train.rollouts=2",
    "sampling.max_tokens=64",
    "train.validation.tasks=8",
)


def _llama(width: int, inner: int, layers: int, heads: int, kept: int) -> Row:
    return {
        "model_type": "llama",
        "vocab_size": 49_152,
        "hidden_size": width,
        "intermediate_size": inner,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kept,
        "tie_word_embeddings": True,
        "max_position_embeddings": 8192,
    }


def _qwen(width: int, inner: int, layers: int, heads: int, kept: int) -> Row:
    sizes = _llama(width, inner, layers, heads, kept)
    return sizes | {
        "model_type": "qwen3",
        "vocab_size": 151_936,
        "head_dim": 128,
        "max_position_embeddings": 40_960,
    }


SIZES: Mapping[str, Row] = {
    "tiny": _llama(64, 192, 4, 4, 2) | {"max_position_embeddings": 2048},
    "135M": _llama(576, 1536, 30, 9, 3),
    "0.6B": _qwen(1024, 3072, 28, 16, 8),
    "1.5B": _qwen(1536, 8960, 28, 12, 2),
    "1.7B": _qwen(2048, 6144, 28, 16, 8),
    "4B": _qwen(2560, 9728, 36, 32, 8),
}


def folder_of(size: str, work: Path) -> Path:
    """Return the model folder of a size, written if it is not there."""
    if size == "shipped":
        return BASE_MODEL
    folder = work / size
    if (folder / "config.json").is_file():
        return folder
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    folder.mkdir(parents=True, exist_ok=True)
    for pattern in ("*token*", "*.jinja", "vocab*", "merges.txt"):
        for file in BASE_MODEL.glob(pattern):
            shutil.copy(file, folder)
    shipped = json.loads((BASE_MODEL / "config.json").read_text("utf-8"))
    ids = {key: shipped.get(key) for key in ("eos_token_id", "bos_token_id", "pad_token_id")}
    config = AutoConfig.for_model(**SIZES[size] | ids)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    with torch.device(device):
        model: Any = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    model.cpu().save_pretrained(folder)
    return folder


def measure(size: str, work: Path) -> list[Row]:
    """Measure memory and speed of one model in this process; return a row for each measurement."""
    import torch

    from rolegraph.local.service.batcher import Batcher, SampleJob
    from rolegraph.local.service.bodies import AdamSettings
    from rolegraph.local.service.local_model import LocalModel
    from rolegraph.local.service.lora import LoraShape
    from rolegraph.local.service.memory import account
    from rolegraph.local.service.sampling import SampleRequest
    from rolegraph.local.service.trainer import Datum, TrainingRun

    folder, rows = folder_of(size, work), list[Row]()
    computed = account(folder, rank=RANK)
    begin = time.monotonic()
    model = LocalModel(folder)
    run = TrainingRun(model, LoraShape(RANK, seed=0))

    def add(what: str, call: Callable[[], int], expected: int) -> None:
        peak, tokens, seconds = _peak(call)
        row = {"model": size, "what": what, "computed_mb": expected / 1e6, "measured_mb": peak / 1e6}
        rows.append(row | {"seconds": seconds, "tokens_per_second": tokens / seconds})

    held = torch.cuda.memory_allocated() if torch.cuda.is_available() else computed.weights
    seconds = time.monotonic() - begin
    loaded = {"model": size, "what": "load", "computed_mb": computed.weights / 1e6, "measured_mb": held / 1e6}
    rows.append(loaded | {"seconds": seconds})

    def update(length: int) -> int:
        tokens = [(7 * place) % 250 + 4 for place in range(length)]
        inputs = {"target_tokens": torch.tensor(tokens), "weights": torch.ones(length)}
        run.forward_backward([Datum(tokens, inputs)], "cross_entropy", {})
        run.step(AdamSettings(learning_rate=1e-5))
        return length

    def rollout() -> int:
        batcher = Batcher(model, lambda _: run.adapter)
        for number in range(SAMPLED):
            batcher.add(SampleJob("adapter", [SampleRequest([4 + number % 200] * 64, SAMPLED)]))
        while batcher.busy:
            batcher.step()
        return SAMPLED * SAMPLED

    length = min(PASS_TOKENS, computed.context - 1)
    update(8)  # gradients and Adam's moments have their memory from now on
    add(f"update, {length:,} tokens", lambda: update(length), computed.update.of(length, recompute=False))
    add("rollout, 64 × 64 tokens", rollout, SAMPLED * (2 * SAMPLED) * computed.cache.token)
    if torch.cuda.is_available() or computed.longest <= 2048:
        longest = computed.longest
        plain = computed.update.of(longest, recompute=False) > computed.free * 0.8
        add(
            f"longest, {longest:,} tokens",
            lambda: update(longest),
            computed.update.of(longest, recompute=plain),
        )
    return rows


def _peak(call: Callable[[], int]) -> tuple[int, int, float]:
    """Return the most bytes that a call held at a time beyond those before it, its result and its seconds."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    if torch.cuda.is_available():
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        before, begin = torch.cuda.memory_allocated(), time.monotonic()
        tokens = call()
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated() - before, tokens, time.monotonic() - begin
    begin = time.monotonic()
    tokens = call()
    seconds = time.monotonic() - begin
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as watched:
        call()
    results: Any = watched.profiler
    held = most = 0
    events = [event for event in results.kineto_results.events() if event.name() == "[memory]"]
    for event in sorted(events, key=lambda event: event.start_ns()):
        held += event.nbytes()
        most = max(most, held)
    return most, tokens, seconds


def command(words: list[str], seconds: float, **variables: str) -> Row:
    """Run a command; return its seconds and, if it fails, the last line of its output."""
    begin = time.monotonic()
    environment = {**os.environ, "ROLEGRAPH_WARM": "0", **variables}
    try:
        done = subprocess.run(
            words, capture_output=True, text=True, timeout=seconds, env=environment, check=False
        )
    except subprocess.TimeoutExpired:
        return {"seconds": seconds, "failed": f"not done in {seconds:.0f} s"}
    row: Row = {"seconds": time.monotonic() - begin}
    if done.returncode:
        row["failed"] = ((done.stderr or done.stdout).strip().splitlines() or ["no output"])[-1][:200]
    return row


def rolegraph(*words: object) -> list[str]:
    """Return the words of a command of this package."""
    return [sys.executable, "-m", "rolegraph", *map(str, words)]


def with_vllm(folder: Path, seconds: float) -> Row:
    """Serve a model with vLLM beside nothing else, run a workflow on it, and stop it."""
    url, begin = "http://127.0.0.1:8123", time.monotonic()
    words = [
        sys.executable,
        "-m",
        "vllm.entrypoints.openai.api_server",
        "--model",
        str(folder),
        "--port",
        "8123",
    ]
    words += ["--logprobs-mode", "processed_logprobs", "--gpu-memory-utilization", "0.4"]
    server = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        while time.monotonic() - begin < seconds and server.poll() is None:
            with suppress(OSError):
                urllib.request.urlopen(f"{url}/health", timeout=5).close()
                break
            time.sleep(1)
        else:
            return {"seconds": time.monotonic() - begin, "failed": "vLLM did not start"}
        run = rolegraph("run", "solver_judge", "--model", "vllm:", "--base-url", url, "--limit", 32)
        left = seconds - (time.monotonic() - begin)
        return {"start_seconds": time.monotonic() - begin, **command(run, left)}
    finally:
        server.terminate()
        server.wait(30)


def show(rows: list[Row]) -> None:
    """Print rows as a Markdown table."""
    keys = ["model", "what", "computed_mb", "measured_mb", "seconds", "tokens_per_second", "failed"]
    click.echo(f"| {' | '.join(keys)} |\n|{' --- |' * len(keys)}")
    for row in rows:
        cells = [row.get(key, "") for key in keys]
        click.echo(f"| {' | '.join(f'{it:,.1f}' if isinstance(it, float) else str(it) for it in cells)} |")


@click.command()
@click.option("--sizes", default="135M,0.6B,1.5B,1.7B,4B", show_default=True, help="Models, with commas.")
@click.option(
    "--two", default=None, help="Model of the training with two policies. Default: 1.5B or the first."
)
@click.option("--minutes", default=10.0, show_default=True, help="Time for everything.")
@click.option(
    "--work", type=click.Path(path_type=Path), help="Folder of the models. Default: a temporary one."
)
@click.option("--out", type=click.Path(path_type=Path), help="File for the rows as JSON.")
@click.option("--measure", "measured", hidden=True)
def main(
    sizes: str, two: str | None, minutes: float, work: Path | None, out: Path | None, measured: str | None
) -> None:
    """Measure the local service on this machine's GPU, or on its CPU."""
    if measured:
        assert work is not None
        click.echo(json.dumps(measure(measured, work)))
        return
    end, rows, names = time.monotonic() + 60 * minutes, list[Row](), sizes.split(",")
    work = work or Path(tempfile.mkdtemp(prefix="rolegraph-gpu-"))

    def add(*new: Row) -> None:
        rows.extend(new)
        if out:
            out.write_text(json.dumps(rows, indent=2) + "\n", "utf-8")

    start = rolegraph("run", "solver_judge", "--limit", 1, "--fresh")
    add({"model": "shipped", "what": "start and one episode"} | command(start, 120))
    # The training comes before the sizes: it is what no accounting can tell.
    two = two or ("1.5B" if "1.5B" in names else names[0])
    folder = folder_of(two, work)
    words = rolegraph("train", "two_policies", "--model", f"local:{folder}", "--out", work / "two", *TRAIN)
    training = command(words, max(30.0, (end - time.monotonic()) / 2))
    add({"model": two, "what": "training of two policies, 2 steps"} | training)
    for name in names:
        left = end - time.monotonic()
        if left < 15:
            add({"model": name, "what": "memory", "failed": "no time left"})
            continue
        words = [sys.executable, __file__, "--measure", name, "--work", str(work)]
        try:
            done = subprocess.run(words, capture_output=True, text=True, timeout=left, check=True)
            add(*json.loads(done.stdout.splitlines()[-1]))
        except subprocess.TimeoutExpired:
            add({"model": name, "what": "memory", "failed": f"not done in {left:.0f} s"})
        except subprocess.CalledProcessError as error:
            add({"model": name, "what": "memory", "failed": error.stderr.strip().splitlines()[-1][:200]})
    if importlib.util.find_spec("vllm") is None:
        add({"model": two, "what": "vLLM", "failed": "not installed"})
    elif (left := end - time.monotonic()) > 60:
        add({"model": two, "what": "vLLM, 32 episodes"} | with_vllm(folder, left))
    show(rows)


if __name__ == "__main__":
    main()
