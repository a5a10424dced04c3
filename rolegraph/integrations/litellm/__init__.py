"""Models of providers whose own API LiteLLM speaks: Anthropic, Gemini, Bedrock and others."""
