"""The same workflow in each system: `async def run_many(runs, in_flight, solvers, latency) -> int`.

It runs `runs` tasks, at most `in_flight` at a time, each with `solvers` solvers in parallel and a judge, on a
model that answers after `latency` seconds; it returns how many runs ended in the right answer, which is all.

What a system sets up once for a workflow (a plan, a graph, a pipeline) it keeps from call to call, so that a
warm-up call leaves it out of what is timed.
"""
