"""Prompts: looked up, checked from their syntax tree, rendered in a sandbox, put into a chat format."""

from engine.prompts.chat import ChatFormat, Prompt, Tokenizer
from engine.prompts.lookup import read_template
from engine.prompts.messages import render_messages
from engine.prompts.sandbox import PromptError
from engine.prompts.templates import Surroundings, Template

__all__ = [
    "ChatFormat",
    "Prompt",
    "PromptError",
    "Surroundings",
    "Template",
    "Tokenizer",
    "read_template",
    "render_messages",
]
