"""Limits on the input and output of tools and environments."""

from rolegraph.engine.limits import Limit

TOOL_TEXT = Limit("tool_text", 400_000, "characters")
"""Results of the tool calls of one answer, sent again with every later call."""
OBSERVATION_TEXT = Limit("observation_text", 1_000_000, "characters")
"""Observation of a player, shown by its prompt."""
TOOL_FUNCTIONS = Limit("tool_functions", 1_000, "functions")
"""Functions of an MCP server, sent with every call."""
REPLY_BYTES = Limit("reply_bytes", 1_000_000, "bytes")
"""Response of a URL to `http` or `search`."""
REPLY_SECONDS = Limit("reply_seconds", 30, "seconds")
"""Time for a whole response of a URL to `http` or `search`."""
MCP_BYTES = Limit("mcp_bytes", 4_000_000, "bytes")
"""Response of an MCP server, such as a picture, or all functions that it lists."""
CALCULATOR_TEXT = Limit("calculator_text", 500, "characters")
"""Expression for the calculator."""
CALCULATOR_DEPTH = Limit("calculator_depth", 50, "levels")
"""Nested operators and calls of an expression for the calculator."""
CALCULATOR_BITS = Limit("calculator_bits", 10_000, "bits")
"""Whole number in the evaluation of an expression; some 3,000 digits."""
PROGRAM_TEXT = Limit("program_text", 10_000, "characters")
"""Kept part of the output and of the value of a program."""
PROGRAM_DEPTH = Limit("program_depth", 50, "levels")
"""Nested lists and mappings of the value of a program."""
PROGRAM_REPLY = Limit("program_reply", 16_000_000, "bytes")
"""Response of a SandboxFusion server, which holds all output of a program."""
PROGRAM_ERROR = Limit("program_error", 500, "characters")
"""Kept part of a program's error message."""
CALL_MEMORY = Limit("call_memory", 1_000_000_000, "bytes")
"""Memory of a reward or data set in a process of its own, besides that of its libraries."""
GAME_SECONDS = Limit("game_seconds", 20, "seconds")
"""Processor time of a TextArena game for one move; by the clock ten times as much."""
GAME_STOP_SECONDS = Limit("game_stop_seconds", 20, "seconds")
"""Further processor time of such a game before its process is killed with all its games."""
ENV_BYTES = Limit("env_bytes", 4_000_000, "bytes")
"""Message of an OpenEnv server, such as an observation with a picture."""
AGENT_REQUEST = Limit("agent_request", 16_000_000, "bytes")
"""Request of an agent program to its model, with the whole chat."""
TOOL_CLOSE_SECONDS = Limit("tool_close_seconds", 10, "seconds")
"""Time that the tools of an episode, or its session with an OpenEnv server, have to close."""
