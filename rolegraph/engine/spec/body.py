"""The key `body` of a model: further JSON fields of its requests."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import AfterValidator

from rolegraph.engine.json_values import walk_paths
from rolegraph.engine.records.plain import check_plain

DECIDED = frozenset("messages model tools tool_choice n stream stream_options logprobs".split())
"""Fields of a chat request that only the run may set."""
SAMPLED = frozenset("temperature top_p max_tokens max_completion_tokens stop seed".split())
"""Fields of a chat request that `sampling` sets; a body may leave them out."""
SECRETS = frozenset(
    "api_key apikey x_api_key key authorization proxy_authorization headers extra_headers password passwd "
    "secret client_secret token access_token auth_token bearer credentials cookie".split()
)
"""Names, in lower case, of fields that could hold a secret, which a body may not have."""


class JsonObject(dict[str, Any]):
    """JSON object in a spec; hashable, as the models of a spec are."""

    def __hash__(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]  # dict has none
        return hash(json.dumps(self, sort_keys=True))


def _checked(body: Mapping[str, Any]) -> JsonObject:
    """Return the fields as a JsonObject; raises ValueError for fields that `body` cannot set."""
    check_plain(body)
    for name, value in body.items():
        if name in DECIDED:
            raise ValueError(f"fields without `{name}`, which the run decides")
        if name in SAMPLED and value is not None:
            raise ValueError(f"`{name}` under `sampling`; here null alone, which leaves the field out")
    names = (str(key) for path, _ in walk_paths(body) for key in path[-1:])
    if secret := next((it for it in names if it.lower().replace("-", "_") in SECRETS), None):
        raise ValueError(f"fields without `{secret}`; keys and headers come from the environment")
    return JsonObject(body)


Body = Annotated[dict[str, Any], AfterValidator(_checked)]
"""Fields for a server as JSON, by name; null leaves out a field that would be sent without it."""
