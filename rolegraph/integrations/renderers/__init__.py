"""Forms of tool calls that the package renderers reads."""
