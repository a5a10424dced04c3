"""Where answers come from: Tinker, an OpenAI-compatible endpoint, or a recording."""
