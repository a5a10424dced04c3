"""The provider `litellm:`: a chat request that LiteLLM sends in the API of the model's own provider.

LiteLLM knows which fields a provider accepts, and drops the others. Its retries are off, because the engine
has its own.
"""

from __future__ import annotations

import importlib
import json
import logging
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from rolegraph.engine.connections import is_here
from rolegraph.engine.errors import UsageError
from rolegraph.engine.models.openai import OpenAIModel
from rolegraph.engine.models.openai_fields import EXTRAS, LIMITS, Taken, warning_of
from rolegraph.engine.models.types import ServedModel
from rolegraph.engine.vocabulary.imports import require_library

_logger = logging.getLogger(__name__)
_NOT_SENT = frozenset({"extra_headers", "stream", "stream_options"})
"""Parameters of LiteLLM that no spec sets."""
_FIELDS = (*EXTRAS, *LIMITS, "temperature", "top_p", "seed", "stop", "tools")


async def open_litellm(served: ServedModel) -> OpenAIModel:
    """Open a model of a provider that LiteLLM knows, as in `litellm:anthropic/claude-sonnet-4-5`.

    Raises:
        UsageError: LiteLLM is not installed or knows no such provider, or a key would go to a URL that only
            the spec names.
    """
    ref = served.ref
    if ref.name is None:
        raise UsageError(
            "Which model? Write `litellm:PROVIDER/MODEL`, as in litellm:anthropic/claude-opus-4-5."
        )
    if ref.base_url and ref.base_url != served.trusted_url and not is_here(ref.base_url):
        raise UsageError(f"{ref.base_url} would get the provider's key; give --base-url if you want that")
    os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # its import would fetch prices
    require_library("litellm", "litellm", "models of other providers")
    litellm: Any = importlib.import_module("litellm")
    litellm.telemetry, litellm.suppress_debug_info = False, True
    try:
        name, provider, _, _ = litellm.get_llm_provider(ref.name)
    except Exception as error:  # LiteLLM raises its BadRequestError for an unknown provider
        raise UsageError(f"LiteLLM knows no provider of {ref.name}; write PROVIDER/MODEL") from error
    accepted_fields = litellm.get_supported_openai_params(model=name, custom_llm_provider=provider) or _FIELDS
    refused_fields = frozenset({*_FIELDS} - {*accepted_fields})
    limit_field = next((field for field in LIMITS if field not in refused_fields), LIMITS[0])
    if missing_fields := [field for field in ("seed", "top_p", "temperature") if field in refused_fields]:
        _logger.warning("%s %s", provider, warning_of(missing_fields))
    translated_fields = frozenset({*_FIELDS, *accepted_fields} - _NOT_SENT)
    client = LiteLLMClient(litellm, ref.base_url or provider, ref.base_url, refused_fields, translated_fields)
    escapes = bool(ref.escape_markers)
    initial_fields = Taken(refused_fields - {*LIMITS}, limit_field, refused_fields & {*LIMITS})
    model = OpenAIModel(client, ref.name, body=ref.body, escapes=escapes, taken=initial_fields)
    model.left_out.update(missing_fields)
    return model


@dataclass(frozen=True, slots=True)
class LiteLLMClient:
    """Client that sends chat requests through LiteLLM, with the methods of OpenAI's client."""

    litellm: Any
    base_url: str
    """URL, or name of the provider, for messages."""
    api_base: str | None
    """URL of the calls; None for the provider's own URL."""
    refused: frozenset[str]
    """Fields that the provider does not accept, and that LiteLLM would drop silently."""
    translated: frozenset[str]
    """Fields that LiteLLM translates; other fields are sent unchanged, and never as parameters of LiteLLM
    itself."""

    async def post(
        self, name: str, messages: Sequence[Mapping[str, object]], fields: Mapping[str, object]
    ) -> bytes:
        """Send a request and return the answer in OpenAI's form.

        Raises:
            UsageError: The spec sets a field that the provider does not accept.
            openai.OpenAIError: The provider refuses or fails; LiteLLM's errors are subclasses.
        """
        if refused_fields := sorted(self.refused & {*fields}):
            raise UsageError(
                f"the provider of {name} takes no `{refused_fields[0]}`, which the spec sets; leave it out"
            )
        answer = await self.litellm.acompletion(
            model=name,
            messages=[*messages],
            api_base=self.api_base,
            num_retries=0,
            max_retries=0,
            drop_params=True,
            **{field: value for field, value in fields.items() if field in self.translated},
            extra_body={field: value for field, value in fields.items() if field not in self.translated}
            or None,
        )
        response = answer.model_dump(mode="json")
        with suppress(Exception):  # LiteLLM raises a bare Exception for a model whose price it does not know
            response["usage"]["cost"] = self.litellm.completion_cost(answer, model=name)
        return json.dumps(response).encode()

    async def close(self) -> None:
        """Do nothing, because LiteLLM shares its connections between models."""
