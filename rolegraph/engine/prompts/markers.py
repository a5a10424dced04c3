"""Markers of a chat format, and the same characters in the text of messages.

A chat template writes markers such as `<|im_end|>` and `<tool_response>` between texts that come from roles,
tasks and tools. This file tells the markers from the texts: `Outline` finds what the template wrote itself,
`Markers` gives these markers names that no text can hold, and `renamed` returns a tokenizer that knows only
the names. It does not know messages, templates or providers.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import dataclass
from secrets import token_hex
from typing import Any, cast

from rolegraph.engine.json_values import rewritten
from rolegraph.engine.records.jsonl import parse_json

_SECRET = token_hex(12)
"""Part of names and placeholders, random in each process, so that no text can contain one by intention."""
_PLACEHOLDER = re.compile(rf"{_SECRET}x(\d+)x")
_NAME = re.compile(rf"\ufdd0{_SECRET}\d{{5}}\ufdd0")
_HARMLESS = re.compile(r"[\w.-]*")
"""Pattern of texts without characters of markers, such as names and ids, which need no placeholder."""
_REASONING = re.compile(r"think|thought", re.IGNORECASE)
_BYTE = re.compile(r"<0x[0-9A-F]{2}>")
"""Byte tokens for characters outside of the vocabulary; these tokens are no markers, since texts need them.
"""
_BRACKETS = tuple("<[]{|")
_FAMILIES = re.compile(
    r"<\|[^\s<>|][^<>|\n]{0,99}\|>|<｜[^<>｜\n]{1,99}｜>|<\|\w{1,60}>|<\w{1,60}\|>|</?｜DSML｜|\[\|[^|\n]{1,99}\|\]"
    r"|</?s>|<</?SYS>>|<(?:bos|eos|pad|unk|mask|sep|cls|sop|eop|eod|eoh|eoa)(?:_token)?>|\[[gs]MASK\]"
    r"|<(?:start|end|begin(?:ning)?)_of_\w{1,60}>|</?(?:start|end)_function_\w{1,60}>"
    r"|<(?:unused|reserved_|special_|extra_id_|tokens_unused_)\d{1,5}>|<[BC]_(?:SYS|Q|A|FUNC|CODE)>"
    r"|</?role>|</?(?:seed|minimax):[\w:]{1,60}>|\[e~\[|\]~!?b[\[\]]|\[Round \d{1,5}\]"
    r"|</?tool_?(?:calls?|responses?|results?|outputs?)>|</?available_tools>"
    r"|<(?:fim_\w{1,20}|file(?:name|_sep)|repo_?name|gh_stars)>"
    r"|\[/?(?:INST|SYSTEM_PROMPT|AVAILABLE_TOOLS|TOOL_CALLS|TOOL_RESULTS|TOOL_CONTENT|ARGS|CALL_ID|THINK"
    r"|MODEL_SETTINGS|IMG|IMG_BREAK|IMG_END|AUDIO|BEGIN_AUDIO|TRANSCRIBE|PREFIX|MIDDLE|SUFFIX)\]",
    re.IGNORECASE,
)
"""Markers of the families that docs/roles.md names.

They are used for tokenizers of other machines, and to tell which added tokens and texts of a template are
markers. Tags of reasoning are left out: prompts ask for them.
"""


class Markers:
    """Markers of one chat format: its special tokens, other added tokens that its template can write, and
    tags such as `<tool_response>` that its template writes without tokens for them.

    Tags of reasoning are no markers unless their tokens are special.

    Args:
        added: Added tokens of the tokenizer by id.
        chat: A chat with a question and an answer, as the template renders it.
        template: Source of the template.
    """

    def __init__(self, added: Mapping[int, object], chat: str, template: str) -> None:
        special = {str(token) for token in added.values() if getattr(token, "special", True)}
        self.ids: dict[str, int] = {
            text: id
            for id, token in added.items()
            if (text := str(token)).strip()
            and not _BYTE.fullmatch(text)
            and (text in special or _is_written(text, chat + template))
        }
        """Ids of the markers' tokens by text."""
        self._around_turns = {text: id for text, id in self.ids.items() if text in special or text in chat}
        texts = sorted(self.ids, key=len, reverse=True)
        tags = {*_FAMILIES.findall(template)}.difference(texts)
        self._pattern = _any_of(texts)
        self._any_case = _any_of([*texts, *tags], re.IGNORECASE)
        self._tags = _any_of(tags, re.IGNORECASE)
        self.names = {text: f"\ufdd0{_SECRET}{number:05}\ufdd0" for number, text in enumerate(texts)}
        """Name of each marker, by the marker's text."""
        self._texts = {name: text for text, name in self.names.items()}

    def named(self, text: str, among: str | None = None) -> str:
        """Return a text with each marker's text replaced by its name; with `among`, only markers that occur
        in that text."""
        return self._pattern.sub(
            lambda match: self.names[match[0]] if among is None or match[0] in among else match[0], text
        )

    def named_ids(self, named: str) -> list[int]:
        """Return the token ids of the markers whose names are in a text, in order."""
        return [self.ids[self._texts[name]] for name in _NAME.findall(named)]

    def among(self, ids: Iterable[int]) -> list[int]:
        """Return the ids of markers among token ids, in order.

        Token ids also show a marker whose spelling the tokenizer normalizes.
        """
        markers = {*self.ids.values()}
        return [id for id in ids if id in markers]

    def plain(self, text: str) -> str:
        """Return a text with each name replaced by its marker's text."""
        return _NAME.sub(lambda match: self._texts[match[0]], text)

    def escaped(self, text: str) -> str:
        """Return a text with a space inserted into each chat marker, in any case, which makes it plain
        text."""
        return self._any_case.sub(_spaced, text)

    def escaped_tags(self, text: str) -> str:
        """Return a text with a space inserted into each tag that has no token of its own, such as
        `<tool_response>`."""
        return self._tags.sub(_spaced, text)

    def counts(self, text: str) -> Counter[str]:
        """Count the markers of a text."""
        return Counter(self._pattern.findall(text))

    def strange(self, ids: Sequence[int], expected: str) -> list[str]:
        """Return the chat markers among sampled token ids, except those in `expected` and tags of
        reasoning."""
        present_ids = set(ids)
        sampled_texts = [text for text, id in self._around_turns.items() if id in present_ids]
        return [text for text in sampled_texts if text not in expected and not _REASONING.search(text)]


@dataclass(frozen=True, slots=True)
class Outline:
    """Rendered chat that is split into the template's own texts and placeholders for the messages' texts."""

    literals: Sequence[str]
    """Texts of the template, before, between and after the placeholders."""
    numbers: Sequence[int]
    """Numbers of the placeholders between the literals, one between each two literals."""

    @classmethod
    def of(cls, rendered: str) -> Outline:
        """Split a chat rendered with `Placeholders` into the template's texts and the placeholders'
        numbers."""
        pieces = _PLACEHOLDER.split(rendered)
        return cls(pieces[::2], [*map(int, pieces[1::2])])

    @property
    def template_text(self) -> str:
        """Texts that the template itself writes, joined."""
        return "\n".join(self.literals)

    def named(self, rendered: str, texts: Sequence[str], markers: Markers) -> str | None:
        """Return a chat with names for the template's own markers.

        Args:
            rendered: The chat as the template renders it.
            texts: Texts of the messages, by the numbers of their placeholders.
            markers: The markers to name.

        Returns:
            The chat; None where it differs from the outline with the texts in their places, as they are,
            trimmed or as JSON.
        """
        first_literal, *later_literals = self.literals
        if not rendered.startswith(first_literal):
            return None
        offset, parts = len(first_literal), [markers.named(first_literal)]
        for number, literal in zip(self.numbers, later_literals, strict=True):
            forms = (form for form in _forms(texts[number]) if rendered.startswith(form + literal, offset))
            text = next(forms, None)
            if text is None:
                return None
            offset += len(text) + len(literal)
            parts += [markers.escaped_tags(text), markers.named(literal)]
        return "".join(parts) if offset == len(rendered) else None


class Placeholders:
    """Callable that replaces each text by a numbered placeholder and keeps the text in `texts`."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def __call__(self, text: str) -> str:
        """Keep a text and return its placeholder; an empty text is returned as it is, since templates test
        for it."""
        if not text:
            return text
        self.texts.append(text)
        return f"{_SECRET}x{len(self.texts) - 1}x"


def unless_harmless(write: Callable[[str], str]) -> Callable[[str], str]:
    """Return a function that applies `write` to texts with characters of markers, and returns other texts
    unchanged."""
    return lambda text: text if _HARMLESS.fullmatch(text) else write(text)


def escape_families(value: Any) -> Any:
    """Return a JSON value with a space in each marker of a common family, for a tokenizer on another machine.

    >>> escape_families({"content": "Done.<|im_end|> [INST]"})
    {'content': 'Done.< |im_end|> [ INST]'}
    """
    return rewritten(value, _escaped)


def _escaped(text: str) -> str:
    """Return a text with a space in each marker.

    In a JSON document, markers that are written with JSON's escapes get one, too: a template decodes the
    arguments of a call.
    """
    text = _FAMILIES.sub(_spaced, text)
    if "\\" in text:
        with suppress(ValueError):
            value = parse_json(text.encode())
            if (escaped := escape_families(value)) != value:
                return json.dumps(escaped, ensure_ascii=False)
    return text


def renamed(tokenizer: Any, names: Mapping[str, str]) -> tuple[Any, Mapping[int, int]] | None:
    """Return a copy of a tokenizer in which added tokens have other texts.

    The copy encodes a name as the tokenizer encodes its token, with the same rules for the text around it;
    the token's former text has no token of its own any more.

    Args:
        tokenizer: The tokenizer.
        names: New texts of added tokens by their present texts.

    Returns:
        The copy, and the tokenizer's id by the copy's id where they differ; None without a tokenizer.json.
    """
    backend: Any = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        return None
    state: dict[str, Any] = json.loads(backend.to_str())
    _rename(state, names)
    kind = cast("Any", type(backend))
    changed_tokenizer: Any = kind.from_str(json.dumps(state))
    added: list[dict[str, Any]] = state["added_tokens"]
    ids: dict[int, int] = {changed_tokenizer.token_to_id(token["content"]): token["id"] for token in added}
    renamed_tokenizer = copy(tokenizer)
    renamed_tokenizer._tokenizer = changed_tokenizer
    return renamed_tokenizer, {new_id: id for new_id, id in ids.items() if new_id != id}


def _is_written(text: str, template: str) -> bool:
    """Return True if an added token is a marker: the template writes it, or a known family uses it.

    Gemma's added token `<h1>` is plain text.
    """
    is_ours = _FAMILIES.fullmatch(text) or (text.startswith(_BRACKETS) and text in template)
    return bool(is_ours) and not _REASONING.search(text)


def _any_of(texts: Iterable[str], flags: re.RegexFlag = re.NOFLAG) -> re.Pattern[str]:
    """Return the pattern that matches any of these texts, earlier ones first; without texts, it matches
    nothing."""
    return re.compile("|".join(map(re.escape, texts)) or r"(?!)", flags)


def _rename(state: dict[str, Any], names: Mapping[str, str]) -> None:
    """Rename tokens in the parsed content of a tokenizer.json, in place, by `names`."""
    for token in state["added_tokens"]:
        token["content"] = names.get(token["content"], token["content"])
    model = state["model"]
    vocabulary = model.get("vocab")
    if isinstance(vocabulary, dict):
        ids = cast("dict[str, int]", vocabulary)
        model["vocab"] = {names.get(token, token): id for token, id in ids.items()}
    elif isinstance(vocabulary, list):
        model["vocab"] = [[names.get(token, token), score] for token, score in cast("list[Any]", vocabulary)]
    if "merges" in model:  # none may lead to a token that is renamed
        joined = [merge.split(" ") if isinstance(merge, str) else merge for merge in model["merges"]]
        model["merges"] = [pair for pair in joined if "".join(pair) not in names]
    if model.get("unk_token") in names:
        model["unk_token"] = names[model["unk_token"]]


def _forms(text: str) -> Iterator[str]:
    """Yield a text as a template may write it: as it is, stripped, or quoted as JSON once or twice."""
    yield text
    for characters in (None, "\n"):
        yield text.strip(characters)
        yield text.lstrip(characters)
        yield text.rstrip(characters)
    for escapes in (False, True):
        quoted_text = json.dumps(text, ensure_ascii=escapes)[1:-1]
        yield quoted_text
        yield json.dumps(quoted_text, ensure_ascii=escapes)[1:-1]


def _spaced(match: re.Match[str]) -> str:
    return f"{match[0][0]} {match[0][1:]}"
