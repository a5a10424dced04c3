"""Ten minutes on a GPU: start, memory by model size, rollout and update, two policies, vLLM beside it.

    python benchmarks/gpu.py --out gpu.json                     # on a GPU: 135M, 0.6B, 1.5B, 1.7B, 4B
    python benchmarks/gpu.py --sizes shipped,tiny --minutes 3   # on a CPU, to see that the script works
    python benchmarks/gpu.py --sizes smollm2-135m,360M --memory # memory alone, also of a fetched model

Models other than the shipped and the fetched ones have random weights, which take the memory and the time of
trained ones, and the shipped tokenizer; nothing is downloaded. Each model is a process of its own with a
deadline, on a CPU each measurement: one that fails or is late is a row with its reason, and the others go on.
Prints Markdown tables.

Memory stands beside the figure that the local service computes before it loads a model. On a GPU it is
PyTorch's own count, on a CPU the growth of the process, by the resident memory that Linux tells. `longest`
updates with the longest sequence that the service says fits; layers that are `computed twice` are gradient
checkpointing.
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

from rolegraph.engine.shipped import model_folder
from rolegraph.local.launcher import BASE_MODEL

Row = dict[str, Any]
RANK = 32
PASS_TOKENS = 1024
CPU_TOKENS = (512, 2048)
SAMPLED = 64
"""Sequences of a rollout, and the tokens of each answer."""
ROLLOUT = f"rollout, {SAMPLED} × {SAMPLED} tokens"
TWICE = ", computed twice"
MALLOC = {"MALLOC_MMAP_THRESHOLD_": "131072"}
"""Variable by which glibc gives the memory of a freed tensor back at once; otherwise it stays resident."""
ON_CPU = (*(f"update, {length:,} tokens{end}" for length in CPU_TOKENS for end in ("", TWICE)), ROLLOUT)
"""Measurements on a CPU, each in a process of its own, so that none takes memory that another has freed."""
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
    "360M": _llama(960, 2560, 32, 15, 5),
    "0.6B": _qwen(1024, 3072, 28, 16, 8),
    "1.5B": _qwen(1536, 8960, 28, 12, 2),
    "1.7B": _qwen(2048, 6144, 28, 16, 8),
    "4B": _qwen(2560, 9728, 36, 32, 8),
}


def folder_of(size: str, work: Path) -> Path:
    """Return the model folder of a size, written if it is not there, or the folder of a fetched model."""
    if size == "shipped":
        return BASE_MODEL
    if size not in SIZES:
        return model_folder(size)
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


def measure(size: str, work: Path, only: str | None = None) -> list[Row]:
    """Load one model in this process and measure memory and speed; return a row for each measurement.

    Args:
        size: The model.
        work: Folder of the models.
        only: The one measurement after loading; None for all that a GPU has.
    """
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

    def add(what: str, call: Callable[[], int], expected: int) -> None:
        peak, tokens, seconds = _peak(call)
        row = {"model": size, "what": what, "computed_mb": expected / 1e6, "measured_mb": peak / 1e6}
        rows.append(row | {"seconds": seconds, "tokens_per_second": tokens / seconds})

    def update(length: int, recompute: bool) -> int:
        run._pass = lambda longest: (longest, recompute)  # pyright: ignore[reportPrivateUsage]
        tokens = [(7 * place) % 250 + 4 for place in range(length)]
        inputs = {"target_tokens": torch.tensor(tokens), "weights": torch.ones(length)}
        run.forward_backward([Datum(tokens, inputs)], "cross_entropy", {})
        run.step(AdamSettings(learning_rate=1e-5))
        return length

    def add_update(length: int, recompute: bool, what: str = "update") -> None:
        name = f"{what}, {length:,} tokens{TWICE if recompute else ''}"
        if only in (None, name):
            expected = computed.update.of(length, recompute=recompute)
            add(name, lambda: update(length, recompute), expected)

    def rollout() -> int:
        batcher = Batcher(model, lambda _: run.adapter)
        for number in range(SAMPLED):
            batcher.add(SampleJob("adapter", [SampleRequest([4 + number % 200] * 64, SAMPLED)]))
        while batcher.busy:
            batcher.step()
        return SAMPLED * SAMPLED

    before, begin = _held(), time.monotonic()
    model = LocalModel(folder, threads=1 if only else None)  # threads wait for each other on busy cores
    loaded: Row = {"model": size, "what": "load", "computed_mb": computed.weights / 1e6}
    rows.append(loaded | {"measured_mb": (_held() - before) / 1e6, "seconds": time.monotonic() - begin})
    before, run = _held(), TrainingRun(model, LoraShape(RANK, seed=0))
    update(8, recompute=False)  # gradients and Adam's moments have their memory from now on
    policy: Row = {"model": size, "what": "policy", "computed_mb": computed.policy / 1e6}
    rows.append(policy | {"measured_mb": (_held() - before) / 1e6})
    for length in CPU_TOKENS if only else (min(PASS_TOKENS, computed.context - 1),):
        for recompute in (False, True):
            add_update(length, recompute)
    if only in (None, ROLLOUT):
        add(ROLLOUT, rollout, SAMPLED * (2 * SAMPLED) * computed.cache.token)
    if only is None:
        longest = computed.longest
        add_update(longest, computed.update.of(longest, recompute=False) > computed.free * 0.8, "longest")
    return rows


def _held() -> int:
    """Return the bytes that this process holds: PyTorch's on a GPU, the resident memory on a CPU."""
    import torch

    if torch.cuda.is_available():
        return torch.cuda.memory_allocated()
    return _of_status("VmRSS")


def _of_status(field: str) -> int:
    """Return a size in bytes that Linux tells of this process; `VmHWM` is the peak of `VmRSS`."""
    lines = Path("/proc/self/status").read_text("ascii").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{field}:")) * 1024


def _peak(call: Callable[[], int]) -> tuple[int, int, float]:
    """Return the most bytes that a call held at a time beyond those before it, its result and its seconds."""
    import torch

    if torch.cuda.is_available():
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    else:
        Path("/proc/self/clear_refs").write_text("5", "ascii")  # sets VmHWM to VmRSS
    before, begin = _held(), time.monotonic()
    tokens = call()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    seconds = time.monotonic() - begin
    most = torch.cuda.max_memory_allocated() if torch.cuda.is_available() else _of_status("VmHWM")
    return most - before, tokens, seconds


def apart(size: str, work: Path, seconds: float, only: str | None) -> list[Row]:
    """Call `measure` in a process of its own."""
    what = only or "memory"
    if seconds < 15:
        return [{"model": size, "what": what, "failed": "no time left"}]
    words = [sys.executable, __file__, "--measure", size, "--work", str(work)]
    words += ["--only", only] if only else []
    try:
        done = subprocess.run(
            words,
            capture_output=True,
            text=True,
            timeout=seconds,
            check=True,
            env={**os.environ, **MALLOC},
        )
    except subprocess.TimeoutExpired:
        return [{"model": size, "what": what, "failed": f"not done in {seconds:.0f} s"}]
    except subprocess.CalledProcessError as error:
        return [{"model": size, "what": what, "failed": error.stderr.strip().splitlines()[-1][:200]}]
    return json.loads(done.stdout.splitlines()[-1])


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
@click.option("--memory", is_flag=True, help="Leave out the training and vLLM.")
@click.option("--measure", "measured", hidden=True)
@click.option("--only", hidden=True)
def main(
    sizes: str,
    two: str | None,
    minutes: float,
    work: Path | None,
    out: Path | None,
    memory: bool,
    measured: str | None,
    only: str | None,
) -> None:
    """Measure the local service on this machine's GPU, or on its CPU."""
    if measured:
        assert work is not None
        click.echo(json.dumps(measure(measured, work, only)))
        return
    end, rows, names = time.monotonic() + 60 * minutes, list[Row](), sizes.split(",")
    work = work or Path(tempfile.mkdtemp(prefix="rolegraph-gpu-"))

    def add(*new: Row) -> None:
        rows.extend(new)
        if out:
            out.write_text(json.dumps(rows, indent=2) + "\n", "utf-8")

    two = two or ("1.5B" if "1.5B" in names else names[0])
    folder = folder_of(two, work)
    if not memory:
        start = rolegraph("run", "solver_judge", "--limit", 1, "--fresh")
        add({"model": "shipped", "what": "start and one episode"} | command(start, 120))
        # The training comes before the sizes: it is what no accounting can tell.
        words = rolegraph(
            "train", "two_policies", "--model", f"local:{folder}", "--out", work / "two", *TRAIN
        )
        training = command(words, max(30.0, (end - time.monotonic()) / 2))
        add({"model": two, "what": "training of two policies, 2 steps"} | training)
    for name in names:
        for number, part in enumerate([None] if shutil.which("nvidia-smi") else ON_CPU):
            found = apart(name, work, end - time.monotonic(), part)
            add(*(found if number == 0 else found[-1:]))  # each process loads the model
    if memory:
        pass
    elif importlib.util.find_spec("vllm") is None:
        add({"model": two, "what": "vLLM", "failed": "not installed"})
    elif (left := end - time.monotonic()) > 60:
        add({"model": two, "what": "vLLM, 32 episodes"} | with_vllm(folder, left))
    show(rows)


if __name__ == "__main__":
    main()
