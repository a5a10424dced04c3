"""Prompts: looked up, checked from their syntax tree, rendered in a sandbox, put into a chat format."""

from engine.prompts.chat import ChatFormat, Continued, Prompt, Tokenizer
from engine.prompts.checks import IN_A_LOOP, OF_SELF, WITH_AN_ENVIRONMENT
from engine.prompts.lookup import read_condition, read_template, read_text
from engine.prompts.messages import render_messages
from engine.prompts.meter import PromptError
from engine.prompts.sandbox import SELF
from engine.prompts.templates import Condition, Surroundings, Template

__all__ = [
    "IN_A_LOOP",
    "OF_SELF",
    "SELF",
    "WITH_AN_ENVIRONMENT",
    "ChatFormat",
    "Condition",
    "Continued",
    "Prompt",
    "PromptError",
    "Surroundings",
    "Template",
    "Tokenizer",
    "read_condition",
    "read_template",
    "read_text",
    "render_messages",
]
