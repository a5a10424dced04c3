"""One measurement in this process: a system and a scenario in, one line of JSON out.

    python worker.py SYSTEM RUNS IN_FLIGHT SOLVERS LATENCY

`import_s`: seconds to import the system. `rate`: runs per second, after a warm-up. `before_mb` and `peak_mb`:
resident memory before the timed part, and its peak over the whole process.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import resource
import sys
from pathlib import Path
from time import perf_counter

WARM_UP_RUNS = 64


def memory_mb() -> tuple[float, float]:
    """Resident memory now and at its peak, in MB; where the system does not say, the peak twice."""
    status = Path("/proc/self/status")
    if status.exists():
        fields = dict(line.split(":", 1) for line in status.read_text().splitlines())
        return int(fields["VmRSS"].split()[0]) / 1024, int(fields["VmHWM"].split()[0]) / 1024
    unit = 2**20 if sys.platform == "darwin" else 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit
    return peak, peak


def main(system: str, runs: int, in_flight: int, solvers: int, latency: float) -> None:
    start = perf_counter()
    peer = importlib.import_module(f"peers.{system}")
    import_s = perf_counter() - start
    result = {"import_s": import_s}
    if runs:

        async def measure() -> tuple[int, float, float]:
            warm_up = max(1, WARM_UP_RUNS // solvers)
            await peer.run_many(warm_up, warm_up, solvers, latency)
            before, _ = memory_mb()
            start = perf_counter()
            right = await peer.run_many(runs, in_flight, solvers, latency)
            return right, perf_counter() - start, before

        right, seconds, before = asyncio.run(measure())
        if right != runs:
            sys.exit(f"{system}: {right} of {runs} runs gave the right answer")
        result |= {"rate": runs / seconds, "before_mb": before, "peak_mb": memory_mb()[1]}
    print(json.dumps(result))


if __name__ == "__main__":
    name, *numbers, seconds = sys.argv[1:]
    main(name, *map(int, numbers), float(seconds))
