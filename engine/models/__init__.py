"""Where answers come from: Tinker, an OpenAI-compatible endpoint, or a recording.

`open_model` turns a `ModelRef` into a `Model`. A provider's SDK is imported when a model of it is opened.
"""

from engine.models.opening import open_model
from engine.models.replay import Replay
from engine.models.types import Completion, Model, Request

__all__ = ["Completion", "Model", "Replay", "Request", "open_model"]
