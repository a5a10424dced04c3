"""Models at an SGLang server."""
