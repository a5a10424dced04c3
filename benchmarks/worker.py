"""One measurement, in a process of its own: `python worker.py SYSTEM RUNS IN_FLIGHT SOLVERS LATENCY HELD`.

Prints a line of JSON. `import_s`: seconds to import the system. `prompts`: a digest of what a small run asks.
`seconds` and `cpu_s`: the timed part on the clock and on the processor, medians of as many passes as fit into
a second (at least one; with HELD just one). `rss_mb`: resident memory before the
timed part; `peak_mb`: the most that this process ever held; with HELD, the model answers nobody before all
calls of the first layer are under way, and `held_mb` is the memory at that moment. MB are 2**20 bytes.
"""

from __future__ import annotations

import asyncio
import gc
import importlib
import json
import resource
import sys
from pathlib import Path
from statistics import median
from time import perf_counter, process_time

from models import Held, Noting, Stub

WARM_UP_CALLS = 96
PASSES, ENOUGH_S = 7, 1.0


def memory_mb() -> tuple[float, float]:
    """Resident memory now and at its peak; the peak twice where the system does not tell them apart."""
    status = Path("/proc/self/status")
    if status.exists():
        fields = dict(line.split(":", 1) for line in status.read_text().splitlines())
        return int(fields["VmRSS"].split()[0]) / 1024, int(fields["VmHWM"].split()[0]) / 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (2**20 if sys.platform == "darwin" else 1024)
    return peak, peak


async def measure(
    system: str, runs: int, in_flight: int, *, solvers: int, latency: float, held: bool
) -> dict[str, float | str]:
    build = importlib.import_module(f"peers.{system}").build
    noting = Noting()
    warm_up = max(1, WARM_UP_CALLS // (solvers + 1))
    await build(solvers, noting)(warm_up, warm_up)

    result: dict[str, float | str] = {"prompts": noting.digest()}

    def gathered() -> None:
        result["held_mb"] = memory_mb()[0]

    clocks: list[float] = []
    processors: list[float] = []
    while sum(clocks) < ENOUGH_S and len(clocks) < PASSES and not (held and clocks):
        model = Held(runs * solvers, gathered) if held else Stub(latency)
        run_many = build(solvers, model)
        gc.collect()
        result.setdefault("rss_mb", memory_mb()[0])
        clock, processor = perf_counter(), process_time()
        right = await run_many(runs, in_flight)
        clocks.append(perf_counter() - clock)
        processors.append(process_time() - processor)
        if right != runs or model.calls != runs * (solvers + 1):
            sys.exit(f"{right} of {runs} runs were right, and {model.calls} calls were made")
    return result | {"seconds": median(clocks), "cpu_s": median(processors), "peak_mb": memory_mb()[1]}


def main(system: str, runs: int, in_flight: int, *, solvers: int, latency: float, held: bool) -> None:
    start = perf_counter()
    importlib.import_module(f"peers.{system}")
    import_s = perf_counter() - start
    result: dict[str, float | str] = {}
    if runs:
        measured = measure(system, runs, in_flight, solvers=solvers, latency=latency, held=held)
        result = asyncio.run(measured)
    print(json.dumps({"import_s": import_s, **result}))


if __name__ == "__main__":
    name, runs, in_flight, solvers, latency, held = sys.argv[1:]
    main(
        name,
        int(runs),
        int(in_flight),
        solvers=int(solvers),
        latency=float(latency),
        held=held == "held",
    )
