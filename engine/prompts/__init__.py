"""Prompts: looked up, checked from their syntax tree, rendered in a sandbox, put into a chat format."""
