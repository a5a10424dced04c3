"""Syntaxes of tool calls that the package renderers parses."""
