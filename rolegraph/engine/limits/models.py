"""Limits on models that are fetched: answers of hub and registry, and GGUF files."""

from rolegraph.engine.limits import Limit

GGUF_HEADER = Limit("gguf_header", 2**26, "bytes")
"""Settings, tokens and names of tensors in a GGUF file; a vocabulary of 256,000 tokens takes 10 MB."""
GGUF_VALUES = Limit("gguf_values", 4_000_000, "values")
"""Values in the lists of a GGUF file's header, for each of which readers make objects; a vocabulary of
256,000 tokens with types, scores and merges has 1.3 million."""
GGUF_TENSORS = Limit("gguf_tensors", 65_536, "tensors")
"""Tensors of a GGUF file; a model of 405 billion parameters has 1,138."""
HUB_FILES = Limit("hub_files", 1_000, "files")
"""Files of a model on the hub that are fetched; the largest models have some hundred."""
INDEX_PAGE = Limit("index_page", 20_000_000, "bytes")
"""A project's page in a package index."""
MODEL_BUFFERS = Limit("model_buffers", 2**30, "bytes")
"""Tables that a model computes from its config and that are in none of its files; the masks of GPT-Neo 2.7B
take 134 MB."""
