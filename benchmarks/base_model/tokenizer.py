"""The base model's tokenizer: small, with numbers, cells, moves and tags as single tokens, and ChatML turns.

In goes a stream of turns; out comes a Hugging Face fast tokenizer. ChatML, because other programs know it:
rLLM and the Tinker cookbook render it as `qwen3_instruct`, token for token.
"""

# torch and transformers leave parts of their types unknown.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any, cast

from played import Turn
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from rolegraph.engine.prompts.tools import described
from rolegraph.engine.shipped import BASE_NAME, MODELS

START, END, PAD = "<|im_start|>", "<|im_end|>", "<|endoftext|>"
"""What opens a turn, what ends it (and a response), and what fills up a batch."""
CONTEXT = 2048
"""Tokens of prompt and response together."""
VOCABULARY = 1024
"""Largest number of byte pairs; numbers and tags come on top."""
TAGS = tuple(
    f"<{slash}{name}>"
    for name in ("answer", "verdict", "plan", "route", "code", "tool_call")
    for slash in ("", "/")
)
_CHAT = MODELS[BASE_NAME] / "chat_template.jinja"
# A capital that begins no word stands alone, as do most signs: grids are cut into cells, RRDD into moves.
_PIECES = r""" ?[A-Z]?[a-z]+| ?[A-Z]|\d{1,3}| ?[\[\]{}"':,]+(?: (?=\d))?| ?##+| ?[^\sA-Za-z\d]|\s+"""
_LARGEST = 199
"""Whole numbers up to this one are single tokens, so that arithmetic on them is a look-up."""


def build_tokenizer(turns: Iterable[Turn], vocabulary: int = VOCABULARY) -> PreTrainedTokenizerFast:
    """Make byte-level BPE of the words of turns, then a merge for each number; any text round-trips."""
    cut = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_PIECES), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    words = Tokenizer(models.BPE())
    words.pre_tokenizer = cut  # pyright: ignore[reportAttributeAccessIssue]
    chat = _hugging_face(words)
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        min_frequency=20,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    words.train_from_iterator((_words(turn, chat) for turn in turns), trainer)
    learned = json.loads(words.to_str())["model"]
    vocab: dict[str, int] = learned["vocab"]
    merges: list[tuple[str, str]] = [(left, right) for left, right in learned["merges"]]
    for number in map(str, range(10, _LARGEST + 1)):
        vocab[number] = len(vocab)
        merges.append((number[:-1], number[-1]))
    whole = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    whole.pre_tokenizer = cut  # pyright: ignore[reportAttributeAccessIssue]
    whole.decoder = decoders.ByteLevel()  # pyright: ignore[reportAttributeAccessIssue]
    whole.add_special_tokens([PAD, START, END])
    whole.add_tokens([*TAGS])
    return _hugging_face(whole)


def _hugging_face(tokenizer: Tokenizer) -> PreTrainedTokenizerFast:
    """Add the chat template and the markers of ChatML."""
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=END,
        pad_token=PAD,
        additional_special_tokens=[START],
        model_max_length=CONTEXT,
        clean_up_tokenization_spaces=False,
        padding_side="left",
        chat_template=_CHAT.read_text("utf-8"),
    )


def _words(turn: Turn, chat: PreTrainedTokenizerFast) -> str:
    """Return the text of a turn without what is no byte pair: markers, tags, numbers of several digits."""
    messages = [dict(message) for message in turn.messages]
    tools = cast("list[Any]", described(turn.tools)) or None
    text = str(chat.apply_chat_template(messages, tools=tools, tokenize=False)) + turn.response
    for mark in (START, END, *TAGS):
        text = text.replace(mark, "\n")
    return re.sub(r"\d+", "1", text)
