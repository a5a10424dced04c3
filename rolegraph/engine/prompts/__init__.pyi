"""Names of `rolegraph.engine.prompts`; `rolegraph.engine.lazily` reads where each comes from."""

from rolegraph.engine.prompts.chat import ChatFormat as ChatFormat
from rolegraph.engine.prompts.chat import ChatPrefix as ChatPrefix
from rolegraph.engine.prompts.chat import TokenizedPrompt as TokenizedPrompt
from rolegraph.engine.prompts.chat import Tokenizer as Tokenizer
from rolegraph.engine.prompts.checks import ALL_OF_SELF as ALL_OF_SELF
from rolegraph.engine.prompts.checks import EPISODE as EPISODE
from rolegraph.engine.prompts.checks import IN_A_CALL as IN_A_CALL
from rolegraph.engine.prompts.checks import IN_A_LOOP as IN_A_LOOP
from rolegraph.engine.prompts.checks import IN_AN_INNER_LOOP as IN_AN_INNER_LOOP
from rolegraph.engine.prompts.checks import OF_SELF as OF_SELF
from rolegraph.engine.prompts.checks import WITH_AN_ENVIRONMENT as WITH_AN_ENVIRONMENT
from rolegraph.engine.prompts.sandbox import SELF as SELF
from rolegraph.engine.prompts.scope import PromptError as PromptError
from rolegraph.engine.prompts.templates import Expression as Expression
from rolegraph.engine.prompts.templates import Template as Template
from rolegraph.engine.prompts.templates import TemplateScope as TemplateScope
from rolegraph.engine.prompts.templates import is_number as is_number
from rolegraph.engine.prompts.templates import read_expression as read_expression
from rolegraph.engine.prompts.templates import read_template as read_template
from rolegraph.engine.prompts.templates import read_text as read_text
from rolegraph.engine.prompts.templates import render_messages as render_messages
from rolegraph.engine.prompts.templates import syntax_of as syntax_of
from rolegraph.engine.prompts.templates import template_texts as template_texts
