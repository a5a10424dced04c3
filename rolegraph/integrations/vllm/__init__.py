"""Models at a vLLM server."""
