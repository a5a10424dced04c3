"""Limits on the requests of every HTTP server here: viewer, local service, and an agent's endpoint."""

from rolegraph.engine.limits import Limit

HEADER_BYTES = Limit("service_header_bytes", 16_384, "bytes")
"""Headers of a request, which come before the key is checked."""
HEADER_SECONDS = Limit("service_header_seconds", 30, "seconds")
"""Time to send the headers of a request, and the rest of a body after its answer."""
NAME = Limit("service_name", 255, "characters")
"""Name of a model, session or checkpoint; a file name's length."""
NUMBER = Limit("service_number", 2**31 - 1, "")
"""Count, or number in a sequence; the range of a tensor's index."""
