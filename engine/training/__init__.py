"""Rollout, group, advantage, update, validate: trains every trainable role of a plan over the Tinker SDK.

`train` is the loop; the other files are its parts. Starting services and drawing tables is for others.
"""

from engine.training.learner import Home, Learner
from engine.training.loop import train
from engine.training.setup import Setup, Watcher

__all__ = ["Home", "Learner", "Setup", "Watcher", "train"]
