"""Runs a Plan: what may start when, one call after the other, what it earns, and the stream of episodes."""

from engine.run.isolation import Isolation
from engine.run.scheduler import Job, jobs, missing, run_episode
from engine.run.stream import stream

__all__ = ["Isolation", "Job", "jobs", "missing", "run_episode", "stream"]
