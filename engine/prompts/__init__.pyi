"""What `engine.prompts` gives; `engine.lazily` reads here where each name comes from."""

from engine.prompts.chat import ChatFormat as ChatFormat
from engine.prompts.chat import Continued as Continued
from engine.prompts.chat import Prompt as Prompt
from engine.prompts.chat import Tokenizer as Tokenizer
from engine.prompts.checks import IN_A_LOOP as IN_A_LOOP
from engine.prompts.checks import OF_SELF as OF_SELF
from engine.prompts.checks import WITH_AN_ENVIRONMENT as WITH_AN_ENVIRONMENT
from engine.prompts.lookup import read_condition as read_condition
from engine.prompts.lookup import read_template as read_template
from engine.prompts.lookup import read_text as read_text
from engine.prompts.messages import render_messages as render_messages
from engine.prompts.meter import PromptError as PromptError
from engine.prompts.sandbox import SELF as SELF
from engine.prompts.templates import Condition as Condition
from engine.prompts.templates import Surroundings as Surroundings
from engine.prompts.templates import Template as Template
