"""What a tool or an environment may take in and give back, whoever wrote it."""

from __future__ import annotations

from rolegraph.engine.limits.limit import Limit

TOOL_TEXT = Limit(
    "tool_text",
    400_000,
    "characters",
    "what tools give for one answer, or a tool that a role runs, as text or JSON: it is sent with every call "
    "that follows, and kept with each",
)
OBSERVATION_TEXT = Limit(
    "observation_text",
    1_000_000,
    "characters",
    "what a player sees of an environment, which its prompt shows",
)
TOOL_FUNCTIONS = Limit(
    "tool_functions", 1_000, "functions", "that an MCP server lists: a model is told of each in every call"
)
REPLY_BYTES = Limit("reply_bytes", 1_000_000, "bytes", "what a URL answers to `http` or `search`")
REPLY_SECONDS = Limit("reply_seconds", 30, "seconds", "between two signs of life from such a URL")
CALCULATOR_TEXT = Limit("calculator_text", 500, "characters", "an expression for the calculator")
CALCULATOR_DEPTH = Limit("calculator_depth", 50, "levels", "operators and calls of one inside one another")
CALCULATOR_BITS = Limit("calculator_bits", 10_000, "bits", "a whole number on the way; some 3,000 digits")
PROGRAM_TEXT = Limit(
    "program_text",
    10_000,
    "characters",
    "that are kept of what a model's program prints, and about so many of its value",
)
PROGRAM_DEPTH = Limit("program_depth", 50, "levels", "lists and mappings of its value inside one another")
PROGRAM_ERROR = Limit("program_error", 500, "characters", "of what it raises: a model reads no more")
GAME_SECONDS = Limit("game_seconds", 20, "seconds", "that a game of TextArena takes for a move")
GAME_STOP_SECONDS = Limit(
    "game_stop_seconds",
    20,
    "seconds",
    "beside those, after which its process is ended: it may have to start, and to import TextArena",
)
TOOL_CLOSE_SECONDS = Limit(
    "tool_close_seconds", 10, "seconds", "that the tools of an episode take to close; then they are let go"
)
