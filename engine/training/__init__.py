"""Rollout, group, advantage, update, validate: trains every trainable role of a plan over the Tinker SDK.

`train` is the loop; the other files are its parts. Starting services and drawing tables is for others.
"""

from engine.training.loop import train
from engine.training.policies import Policies, Start
from engine.training.setup import Setup

__all__ = ["Policies", "Setup", "Start", "train"]
