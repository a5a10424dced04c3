"""The same workflow in each system: `async def run_many(runs, in_flight, solvers, latency) -> int`.

It runs `runs` tasks, at most `in_flight` at a time, each with `solvers` solvers in parallel and a judge, on a
model that answers after `latency` seconds; it returns how many runs ended in the right answer, which is all.
"""
