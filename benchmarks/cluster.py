"""Rate of `rolegraph run --on ray` with three nodes against one, where the slots of a node are the limit.

    python benchmarks/cluster.py                     # 2,000 episodes each, 4 slots a node, calls of 50 ms
    python benchmarks/cluster.py --slots 1 --episodes 600

Nodes are Ray's own test cluster: processes of this machine. A cluster of one node and one of three take turns
in blocks of episodes, so that a busy machine slows them alike; the rate is that of a block's last three
quarters, when all workers are open. The model is an OpenAI-compatible stub in a process of its own. More
slots than the machine's cores can serve measure the machine: an episode takes several milliseconds of a core.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import click

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import rolegraph as rg
from rolegraph import api
from tests.models.edges import chat_answer, serving

BLOCKS = 4
SPEC = """
rolegraph: 2
name: one_call
data: {validation: {countdown: {count: 1000}}}
roles:
  solver: {prompt: "{{ task.question }}", parser: text}
"""


def serve(seconds: float, url: Any) -> None:
    """Answer each call after `seconds`, until the process is ended; send the URL first."""

    async def answer(_: dict[str, Any]) -> Any:
        await asyncio.sleep(seconds)
        return chat_answer("7")

    with serving(answer) as endpoint:
        url.send(endpoint.base_url)
        time.sleep(1e6)


@contextmanager
def stub(seconds: float) -> Iterator[str]:
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=serve, args=(seconds, there), daemon=True)
    process.start()
    yield here.recv()
    process.terminate()


@contextmanager
def cluster(nodes: int) -> Iterator[str]:
    from ray.cluster_utils import Cluster

    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    for _ in range(nodes):
        made.add_node(num_cpus=1)
    yield made.address
    made.shutdown()


def block_seconds(flow: rg.Workflow, on: str, slots: int, episodes: int) -> float:
    """Return the seconds in which the last three quarters of a block's episodes came."""
    ends: list[float] = []

    def observe(event: api.Event) -> None:
        if isinstance(event, api.EpisodeDone):
            ends.append(time.monotonic())

    with tempfile.TemporaryDirectory() as folder:
        job = rg.RunJob.create(flow, limit=episodes, out=Path(folder) / "run")
        asyncio.run(job.run(observe, concurrency=slots, on=on))
    return ends[-1] - ends[episodes // 4 - 1]


@click.command()
@click.option("--episodes", default=2000, show_default=True, help="Episodes of each side.")
@click.option("--slots", default=4, show_default=True, help="Episodes in flight on a node.")
@click.option("--latency", default=0.05, show_default=True, help="Seconds of a call.")
def main(episodes: int, slots: int, latency: float) -> None:
    seconds, block = {1: 0.0, 3: 0.0}, episodes // BLOCKS // 4 * 4
    with ExitStack() as stack:
        url = stack.enter_context(stub(latency))
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        clusters = {nodes: stack.enter_context(cluster(nodes)) for nodes in seconds}
        (folder / "one_call.yaml").write_text(SPEC)
        flow = rg.load(folder / "one_call.yaml", model="openai:tiny", base_url=url)
        for number in range(BLOCKS):
            for nodes, on in clusters.items():
                took = block_seconds(flow, on, slots, block)
                seconds[nodes] += took
                print(
                    f"block {number + 1}: {nodes} node(s), {block * 0.75 / took:.1f} episodes/s", flush=True
                )
    made = BLOCKS * block * 0.75
    for nodes, took in seconds.items():
        bound = nodes * slots / latency
        print(f"{nodes} node(s): {made / took:.1f} episodes/s of at most {bound:.0f}")
    print(f"3 nodes against 1: {seconds[1] / seconds[3]:.2f} x")


if __name__ == "__main__":
    main()
