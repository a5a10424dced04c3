"""Where answers come from: Tinker, an OpenAI-compatible endpoint, a recording, a model of this machine.

`Services` and `Models` open them, each behind one limit; a provider's SDK is imported when it is needed.
"""

from rolegraph.engine.models.limit import Clock, LimitedModel
from rolegraph.engine.models.opening import Models, ServedModel, Services, open_model
from rolegraph.engine.models.types import Completion, Model, Request

__all__ = [
    "Clock",
    "Completion",
    "LimitedModel",
    "Model",
    "Models",
    "Request",
    "ServedModel",
    "Services",
    "open_model",
]
