"""Small tokenizers with the pre-tokenizers, special tokens and chat templates of model families."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

_WORDS = "the user answers one in system < | > im_ start end _of_turn [INST] def return 3 + 4 = 7 \n naïve"
_QWEN = r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_LLAMA = _QWEN.replace(r"\p{N}|", r"\p{N}{1,3}|", 1)
_OPEN = "{% if add_generation_prompt %}"

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}"
    "{% for call in m.tool_calls %}<tool_call>{{ call.function | tojson }}</tool_call>{% endfor %}<|im_end|>"
    "\n{% endfor %}" + _OPEN + "<|im_start|>assistant\n{% endif %}"
)
LLAMA = (
    "{{ bos_token }}{% for m in messages %}{{ '<|start_header_id|>' + m.role + '<|end_header_id|>\n\n' }}"
    "{{ m.content | trim }}<|eot_id|>{% endfor %}"
    + _OPEN
    + "<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}"
)
GEMMA = (
    "{{ bos_token }}{% for m in messages %}<start_of_turn>{{ 'model' if m.role == 'assistant' else m.role }}"
    "\n{{ m.content | trim }}<end_of_turn>\n{% endfor %}" + _OPEN + "<start_of_turn>model\n{% endif %}"
)
MISTRAL = (
    "{{ bos_token }}{% for m in messages %}{% if m.role == 'assistant' %} {{ m.content | trim }}"
    "{{ eos_token }}{% elif m.role == 'tool' %}[TOOL_RESULTS] {{ {'content': m.content} | tojson }}"
    "[/TOOL_RESULTS]{% else %}[INST] {{ m.content }}[/INST]{% endif %}{% endfor %}"
)
PHI = (
    "{% for m in messages %}{{ '<|' + m.role + '|>\n' + m.content + '<|end|>\n' }}{% endfor %}"
    + _OPEN
    + "<|assistant|>\n{% endif %}"
)
_RESULTS = (
    "{% if m.role == 'tool' %}<|im_start|>user\n<tool_response>\n{{ m.content }}\n</tool_response>"
    "<|im_end|>\n"
)
QWEN3 = (
    "{% if tools %}<|im_start|>system\n{% for tool in tools %}{{ tool | tojson }}{% endfor %}<|im_end|>\n"
    "{% endif %}{% for m in messages %}" + _RESULTS + "{% else %}<|im_start|>{{ m.role }}\n{{ m.content }}"
    '{% for call in m.tool_calls %}<tool_call>\n{"name": "{{ call.function.name }}", "arguments": '
    "{{ call.function.arguments | tojson }}}\n</tool_call>{% endfor %}<|im_end|>\n{% endif %}{% endfor %}"
    + _OPEN
    + "<|im_start|>assistant\n{% endif %}"
)
_RESULT = (
    "<｜tool▁outputs▁begin｜><｜tool▁output▁begin｜>{{ m.content }}"
    "<｜tool▁output▁end｜><｜tool▁outputs▁end｜>"
)
DEEPSEEK = (
    "{{ bos_token }}{% for tool in tools or () %}{{ tool | tojson }}{% endfor %}{% for m in messages %}"
    "{% if m.role == 'tool' %}" + _RESULT + "{% elif m.role == 'assistant' %}<｜Assistant｜>{{ m.content }}"
    "{% for call in m.tool_calls %}{{ '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>' + call.function.name }}"
    "{{ '<｜tool▁sep｜>' + call.function.arguments + '<｜tool▁call▁end｜><｜tool▁calls▁end｜>' }}{% endfor %}"
    "{{ eos_token }}{% else %}<｜User｜>{{ m.content }}{% endif %}{% endfor %}"
    + _OPEN
    + "<｜Assistant｜>{% endif %}"
)


def _byte_level(pattern: str) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    split = pre_tokenizers.Split(Regex(pattern), "isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator([_WORDS] * 3, trainers.BpeTrainer(initial_alphabet=alphabet))
    return tokenizer


def _with_spaces(specials: list[str]) -> Tokenizer:
    """Return a tokenizer with its special tokens inside the vocabulary, as SentencePiece models have them."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True))
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.pre_tokenizer = pre_tokenizers.Split("▁", "merged_with_next")
    pieces = ["<unk>", *specials, *(f"<0x{byte:02X}>" for byte in range(256))]
    tokenizer.train_from_iterator([_WORDS] * 3, trainers.BpeTrainer(special_tokens=pieces))
    plain = Tokenizer.from_str(json.dumps({**json.loads(tokenizer.to_str()), "added_tokens": []}))
    plain.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    return plain


def _saved(folder: Path, tokenizer: Tokenizer, template: str, *specials: AddedToken, **named: str) -> Path:
    tokenizer.add_special_tokens([*specials])
    whole: Any = PreTrainedTokenizerFast(tokenizer_object=tokenizer, **named)
    whole.chat_template = template
    whole.save_pretrained(str(folder))
    return folder


def _special(*texts: str, rstrip: bool = False) -> list[AddedToken]:
    return [AddedToken(text, special=True, normalized=False, rstrip=rstrip) for text in texts]


def qwen(folder: Path) -> Path:
    tokenizer = _byte_level(_QWEN)
    tokenizer.normalizer = normalizers.NFC()
    specials = _special("<|endoftext|>", "<|im_start|>", "<|im_end|>")
    return _saved(folder, tokenizer, CHATML, *specials, eos_token="<|im_end|>")


def llama(folder: Path) -> Path:
    texts = ("<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>")
    tokenizer = _byte_level(_LLAMA)
    return _saved(folder, tokenizer, LLAMA, *_special(*texts), bos_token=texts[0], eos_token=texts[-1])


def gemma(folder: Path) -> Path:
    tokenizer = _with_spaces(["<bos>", "<eos>", "<start_of_turn>", "<end_of_turn>"])
    tokenizer.add_tokens([AddedToken(text, special=False, normalized=False) for text in ("\n\n", "<h1>")])
    specials = _special("<bos>", "<eos>", "<start_of_turn>", "<end_of_turn>")
    return _saved(folder, tokenizer, GEMMA, *specials, bos_token="<bos>", eos_token="<eos>")


def mistral(folder: Path) -> Path:
    texts = ("<s>", "</s>", "[INST]", "[/INST]", "[TOOL_RESULTS]", "[/TOOL_RESULTS]")
    tokenizer = _with_spaces([*texts])
    tokenizer.normalizer = None  # pyright: ignore[reportAttributeAccessIssue]
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    return _saved(folder, tokenizer, MISTRAL, *_special(*texts), bos_token="<s>", eos_token="</s>")


def phi(folder: Path) -> Path:
    tokenizer = _with_spaces([])
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.pre_tokenizer = None  # pyright: ignore[reportAttributeAccessIssue]
    texts = ("<|system|>", "<|user|>", "<|assistant|>", "<|tool|>", "<|end|>", "<|endoftext|>")
    return _saved(folder, tokenizer, PHI, *_special(*texts, rstrip=True), eos_token="<|endoftext|>")


def _not_special(tokenizer: Tokenizer, *texts: str) -> Tokenizer:
    tokenizer.add_tokens([AddedToken(text, special=False, normalized=True) for text in texts])
    return tokenizer


def qwen3(folder: Path) -> Path:
    texts = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>")
    tokenizer = _not_special(_byte_level(_QWEN), *texts)
    tokenizer.normalizer = normalizers.NFC()
    return _saved(folder, tokenizer, QWEN3, *_special("<|im_start|>", "<|im_end|>"), eos_token="<|im_end|>")


def deepseek(folder: Path) -> Path:
    tool_parts = ("outputs", "output", "calls", "call")
    tools = (f"<｜tool▁{part}▁{edge}｜>" for part in tool_parts for edge in ("begin", "end"))
    tokenizer = _not_special(_byte_level(_QWEN), "<｜User｜>", "<｜Assistant｜>", "<｜tool▁sep｜>", *tools)
    tokenizer.normalizer = normalizers.NFKC()
    bos, eos = "<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>"
    return _saved(folder, tokenizer, DEEPSEEK, *_special(bos, eos), bos_token=bos, eos_token=eos)


FAMILIES = {
    "qwen": qwen,
    "llama": llama,
    "gemma": gemma,
    "mistral": mistral,
    "phi": phi,
    "qwen3": qwen3,
    "deepseek": deepseek,
}
