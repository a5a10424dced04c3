"""Clients of language models: a Tinker service, an OpenAI-compatible endpoint, a recording, a local model.

`Services` starts local services, `Models` opens each model once, with a limit on concurrent calls. A
provider's SDK is imported when it is needed.
"""

from rolegraph.engine.models.limit import LimitedModel
from rolegraph.engine.models.opening import Models, Services, open_model, open_served
from rolegraph.engine.models.types import Completion, Model, Request, ServedModel

__all__ = [
    "Completion",
    "LimitedModel",
    "Model",
    "Models",
    "Request",
    "ServedModel",
    "Services",
    "open_model",
    "open_served",
]
