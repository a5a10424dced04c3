"""Limits on models that are fetched or loaded."""

from rolegraph.engine.limits import Limit

GGUF_HEADER = Limit("gguf_header", 2**31, "bytes")
"""Memory for the header of a GGUF file; a vocabulary of 256,000 tokens takes 1 GB in the package `gguf`."""
MODEL_BUFFERS = Limit("model_buffers", 2**30, "bytes")
"""Tables that a model computes from its config and that are in none of its files; the masks of GPT-Neo 2.7B
take 134 MB."""
