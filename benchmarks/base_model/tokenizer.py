"""The base model's tokenizer: small, with numbers and answer tags as single tokens, and ChatML turns.

Nothing goes in but the synthetic turns; out comes a Hugging Face fast tokenizer. ChatML, because other
programs know it: rLLM and the Tinker cookbook render it as `qwen3_instruct`, token for token.
"""

# torch and transformers leave parts of their types unknown.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from __future__ import annotations

import json
from itertools import islice

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast
from turns import turns

START, END, PAD = "<|im_start|>", "<|im_end|>", "<|endoftext|>"
"""What opens a turn, what ends it (and a response), and what fills up a batch."""
CONTEXT = 2048
"""Tokens of prompt and response together."""
_TAGS = ("<answer>", "</answer>", "<verdict>", "</verdict>")
_CHAT = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
_PIECES = r" ?[A-Za-z]+|\d{1,3}| ?[-+*/()=]|[^A-Za-z\d+*/()=-]+"
_LARGEST = 199
"""Whole numbers up to this one are single tokens, so that arithmetic on them is a look-up."""


def build_tokenizer() -> PreTrainedTokenizerFast:
    """Byte-level BPE over the words of 3,000 turns, then a merge for each number; any text round-trips."""
    cut = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_PIECES), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    words = Tokenizer(models.BPE())
    words.pre_tokenizer = cut  # pyright: ignore[reportAttributeAccessIssue]
    without_digits = str.maketrans("0123456789", " " * 10)
    turn_names = "system\nuser\nassistant"
    texts = (f"{turn.prompt}\n{turn.response}\n{turn_names}" for turn in islice(turns(0), 3000))
    trainer = trainers.BpeTrainer(
        vocab_size=640,
        min_frequency=50,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    words.train_from_iterator((text.translate(without_digits) for text in texts), trainer)
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
    whole.add_tokens(list(_TAGS))
    return PreTrainedTokenizerFast(
        tokenizer_object=whole,
        eos_token=END,
        pad_token=PAD,
        additional_special_tokens=[START],
        model_max_length=CONTEXT,
        clean_up_tokenization_spaces=False,
        padding_side="left",
        chat_template=_CHAT,
    )


def chat_prompt(tokenizer: PreTrainedTokenizerFast, prompt: str) -> str:
    """One user's turn as the model reads it, up to where its response begins."""
    turn = [{"role": "user", "content": prompt}]
    return str(tokenizer.apply_chat_template(turn, add_generation_prompt=True, tokenize=False))
