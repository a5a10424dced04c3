"""The same workflow in each system: solvers in parallel, then a judge.

Each module has `build(solvers, ask) -> run_many`: it sets the workflow up for a number of solvers and a
model, which is not timed, and returns what is. It is written as the system's own documentation would have it.
"""
