"""Explanations of templates and expressions that Jinja2 cannot parse: the place, and what to write.

The source and Jinja2's error go in. The source is read tag by tag; the first tag with a known mistake is the
answer, then the first tag that is not closed, then Jinja2's own error in words of this project.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import islice
from typing import NamedTuple

from rolegraph.engine.errors import did_you_mean
from rolegraph.engine.prompts.checks import TemplateFault
from rolegraph.engine.secrets import without_secrets

_FROM_JINJA = re.compile(r"(?i)expected|unexpected|encountered|missing end|more than one expression")
_OPENING = re.compile(r"\{[{%]")
_CLOSING = {"{{": "}}", "{%": "%}"}
_VERBATIM = {"{#": "#}", "{%": "{% endraw %}"}
"""End of a comment or of a raw text, which are not read, by its opening."""
_TAGS = ("if", "elif", "else", "endif", "for", "endfor", "set", "raw", "endraw")
_ENDS = {"if": "endif", "for": "endfor"}
_QUOTED = re.compile(r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"", re.DOTALL)
_BRACKETS = {"(": ")", "[": "]", "{": "}"}
_SIGN = re.compile(r"[“”‘’«»^?;$]|===|<>|=[<>]|&&?|\|\||!(?!=)|(?:\+\+|--)(?=\s*$)")
"""Pattern of quotes and operators from other languages, which an expression cannot have."""
_INSTEAD = {
    **dict.fromkeys("“”‘’«»", "write straight quotes: ' or \""),
    **dict.fromkeys(("&", "&&", "||", "!"), "write and, or, not"),
    "===": "compare with ==",
    "<>": "compare with !=",
    "=<": "compare with <=",
    "=>": "compare with >=",
    "^": "multiply: x * x",
    "?": "write: a if condition else b",
    ";": "end the expression without it",
    "$": "write the name alone",
    "++": "write + 1",
    "--": "write - 1",
}
_EQUALS = re.compile("(?<![=!<>])=(?![=<>])")


class _Tag(NamedTuple):
    """Tag of a template, or a whole expression."""

    kind: str
    """`{{` or `{%`; empty for an expression without braces."""
    start: int
    """Position of the opening braces."""
    inside: int
    """Position of the text between the braces."""
    text: str

    @property
    def word(self) -> str:
        """First word of the tag, such as `if`."""
        match = re.match(r"[-+]?\s*(\w+)", self.text)
        return match[1] if match else ""

    @property
    def word_at(self) -> int:
        return self.inside + self.text.find(self.word)


def explain(source: str, position: int, message: str, kind: str) -> TemplateFault:
    """Return the fault for a syntax error of Jinja2.

    Args:
        source: The template or expression.
        position: Position of the error, from 0.
        message: Jinja2's message, or the message of a limit of this project, which is kept unchanged.
        kind: `template`, `condition` or `expression`.
    """
    if not _FROM_JINJA.match(message):
        return TemplateFault(min(position, len(source)), "", f"not a valid {kind}: {message}")
    if offset := re.search(r"unexpected char .* at (\d+)$", message):
        position = int(offset[1])
    fault = next(_mistakes(source, is_template=kind == "template"), None)
    fault = fault or _in_words(source, position, message)
    text = f"not a valid {kind}: {fault.message}"
    return TemplateFault(fault.position, fault.word, without_secrets(text), without_secrets(fault.hint))


def _mistakes(source: str, *, is_template: bool) -> Iterator[TemplateFault]:
    """Yield the known mistakes of a source: first mistakes inside its tags, then tags that are not closed."""
    if not is_template:
        tag = _Tag("", 0, 0, source)
        if match := re.match(r"\s*(\{[{%])", source):
            message = "an expression stands without braces"
            yield TemplateFault(
                match.start(1), match[1], message, "write the expression alone, without braces"
            )
        if tag.word == "if":
            message = "an expression does not begin with `if`"
            yield TemplateFault(tag.word_at, "if", message, "write the expression alone, without if")
        yield from _inside(tag)
        return
    opened_tags: list[_Tag] = []
    for tag in _tags(source):
        if isinstance(tag, TemplateFault):
            yield tag
            return
        yield from _inside(tag)
        if tag.kind == "{%":
            yield from _statement(tag, opened_tags, source)
        elif tag.word in (*_TAGS[:6], "set") and not re.match(r"\s*\w+\s*(?:[.|(\[]|$)", tag.text):
            message = f"`{tag.word}` stands in {{{{ }}}}, which writes a value"
            yield TemplateFault(tag.word_at, tag.word, message, f"write {{% {tag.text.strip()} %}}")
    if opened_tags:
        last = opened_tags[-1]
        message = f"`{{% {last.word} %}}` is not closed"
        yield TemplateFault(
            last.start, _shown(source, last), message, f"write {{% {_ENDS[last.word]} %}} after it"
        )


def _shown(source: str, tag: _Tag) -> str:
    """Return the source of a tag, up to the end of its first line."""
    return source[tag.start : tag.inside + len(tag.text) + 2].split("\n")[0]


def _tags(source: str) -> Iterator[_Tag | TemplateFault]:
    """Yield the tags of a template, and at the end the fault of a tag without its end."""
    position = 0
    while match := re.compile(r"(?P<raw>\{#|\{%[-+]?\s*raw\s*[-+]?%\})|\{[{%]").search(source, position):
        start, kind = match.start(), match[0][:2]
        if raw := match["raw"]:
            tag_end = re.compile(r"\{%[-+]?\s*endraw\s*[-+]?%\}" if raw != kind else "#}").search(
                source, match.end()
            )
            if tag_end is None:
                yield TemplateFault(start, raw, f"`{raw}` is not closed", f"end it with {_VERBATIM[kind]}")
                return
            position = tag_end.end()
            continue
        closing, inside_start = _CLOSING[kind], match.end()
        end = source.find(closing, inside_start)
        text_left = source[inside_start:]
        blank_text = _QUOTED.sub(lambda quote: " " * len(quote[0]), text_left.split("\n\n")[0])
        stop_match = re.compile(r"\}\}|%\}|\{\{|\{%").search(blank_text)
        inner_text = blank_text[: stop_match.start()] if stop_match else blank_text
        if stop_match is None or stop_match[0] in _CLOSING:
            if end < 0 or _OPENING.search(text_left[: end - inside_start]):
                end = inside_start + len(inner_text.split("\n")[0])
            yield from islice(_inside(_Tag(kind, start, inside_start, source[inside_start:end])), 1)
            hint = f"end it with {closing}"
            yield TemplateFault(
                start, source[start:].split("\n")[0].rstrip(), f"`{kind}` is not closed", hint
            )
            return
        if stop_match[0] != closing and not (kind == "{%" and stop_match[0] == "}}" and "{" in inner_text):
            message = f"`{kind}` is closed by `{stop_match[0]}`"
            yield TemplateFault(inside_start + stop_match.start(), stop_match[0], message, f"write {closing}")
            return
        end = inside_start + stop_match.start() if stop_match[0] == closing else end
        yield _Tag(kind, start, inside_start, source[inside_start:end].rstrip("-+"))
        position = end + 2


def _inside(tag: _Tag) -> Iterator[TemplateFault]:
    """Yield the mistakes inside of one tag: quotes, signs of other languages, brackets."""
    blank_text = _QUOTED.sub(lambda quote: f"'{' ' * (len(quote[0]) - 2)}'", tag.text)
    code = re.sub("'( *)'", r" \1 ", blank_text)
    faults: list[TemplateFault] = []

    def fault(offset: int, word: str, message: str, hint: str = "") -> None:
        faults.append(TemplateFault(tag.inside + offset, word, message, hint))

    if quote := re.search("['\"]", code):
        hint = f"close it with {quote[0]}"
        fault(quote.start(), quote[0], f"the quote {quote[0]} that opens here is not closed", hint)
        code = code[: quote.start()]
    if tag.kind == "{{" and re.match(r"\{[^:]*$", code):
        fault(0, "{", "one brace too many", "write {{ and }}")
    for match in _SIGN.finditer(code):
        fault(match.start(), match[0], f"an expression has no `{match[0]}`", _INSTEAD[match[0]])
    depths: list[tuple[str, int]] = []
    for offset, sign in enumerate(code):
        if sign in _BRACKETS:
            depths.append((sign, offset))
        elif sign in _BRACKETS.values():
            if not depths:
                is_end = tag.kind and sign == "}"
                message = (
                    f"`{tag.kind}` is closed by `}}`" if is_end else f"the bracket `{sign}` closes nothing"
                )
                fault(offset, sign, message, f"write {_CLOSING[tag.kind]}" if is_end else "")
                break
            opening, opened_at = depths.pop()
            if _BRACKETS[opening] != sign:
                fault(opened_at, opening, f"the bracket `{opening}` that opens here is closed by `{sign}`")
                break
        elif not depths and tag.word != "set" and _EQUALS.match(code, offset):
            fault(offset, "=", "`=` is no comparison", "compare with ==")
    else:
        if depths and not quote:
            opening, opened_at = depths[-1]
            message = f"the bracket `{opening}` that opens here is not closed"
            fault(opened_at, opening, message, f"close it with {_BRACKETS[opening]}")
    yield from sorted(faults, key=lambda it: it.position)


_KNOWN = "|".join((*_TAGS, "with", "endwith"))
_TAG_MISTAKES = (
    (
        r"(?P<tag>elseif|elsif|else\s+if)\b\s*(?P<rest>.*)",
        "there is no tag `{tag}`",
        "write {{% elif {rest} %}}",
    ),
    ("(?P<tag>if|elif|for)", "`{tag}` has no expression", ""),
    (
        r"(?P<tag>for)\s+(?P<name>\w+)\s+(?:of\s+)?(?P<rest>(?!in\b)\S.*)",
        "`for` has no `in`",
        "write {{% for {name} in {rest} %}}",
    ),
    (
        r"(?P<tag>set)\s+(?P<name>\w+)\s+(?P<rest>[^=|]+)",
        "`set` has no `=`",
        "write {{% set {name} = {rest} %}}",
    ),
    (
        rf"(?P<tag>(?!(?:{_KNOWN})\b)\w+\s*[.|\[].*)",
        "`{{% %}}` holds a tag such as `if`; a value stands in `{{{{ }}}}`",
        "write {{{{ {tag} }}}}",
    ),
)
"""Patterns of the text of a tag with a mistake in the group `tag`, each with the message and the hint."""


def _statement(tag: _Tag, opened: list[_Tag], source: str) -> Iterator[TemplateFault]:
    """Yield the mistakes of a `{% … %}`.

    Args:
        tag: The tag.
        opened: Open tags, changed in place: an opening `tag` is added, a closing `tag` removes the last open
            tag.
        source: Source of the template.
    """
    text = tag.text.strip(" \t\n-+")
    for pattern, message, hint in _TAG_MISTAKES:
        if match := re.fullmatch(pattern, text, re.DOTALL):
            words, offset = match.groupdict(), tag.inside + tag.text.find(text) + match.start("tag")
            yield TemplateFault(offset, words["tag"], message.format(**words), hint.format(**words))
            return
    word = tag.word
    begin = next((it for it, end in _ENDS.items() if end == word), "if")
    if word in _ENDS:
        opened.append(tag)
    elif word in _ENDS.values() and opened:
        last_tag = opened.pop()
        if last_tag.word != begin:
            below = source.count("\n", last_tag.start, tag.start)
            location = f"{below} line{'' if below == 1 else 's'} below" if below else "in the same line"
            message = f"`{{% {last_tag.word} %}}` is not closed before the `{{% {word} %}}` {location}"
            hint = f"write {{% {_ENDS[last_tag.word]} %}} before that"
            yield TemplateFault(last_tag.start, _shown(source, last_tag), message, hint)
    elif word in (*_ENDS.values(), "elif", "else") and not opened:
        hint = f"write {{% {begin} … %}} before it, or delete it"
        yield TemplateFault(tag.start, _shown(source, tag), f"`{{% {word} %}}` has no `{begin}`", hint)
    elif not re.fullmatch(_KNOWN, word) and word not in _OF_JINJA:
        hint = did_you_mean(word, _TAGS) or "there is if, for, set and raw"
        if word in ("end", "fi", "done") and opened:
            hint = f"write {{% {_ENDS[opened[-1].word]} %}}"
        yield TemplateFault(tag.word_at, word, f"there is no tag `{word}`", hint)


_OF_JINJA = set("macro call filter block extends include import from autoescape print".split())
"""Tags that Jinja2 can read and templates cannot use; each has a message of its own."""


_TOKEN = re.compile(r"\w+|[=!<>]=|\S")
_END = r"'?end of (?:print statement|statement block|template)'?"
_WORDS = (
    (rf"(?i)expected an expression|unexpected {_END}$", "a value is missing", ""),
    (
        rf"expected token 'name', got {_END}|unexpected end of template, expected 'name'",
        "a name is missing",
        "",
    ),
    (r"expected name or number", "a field is missing after the dot", ""),
    (
        rf"expected token {_END}, got|more than one expression",
        "`{}` follows a value without a sign between",
        "",
    ),
    (r"expected token 'as'", "`import` cannot be used in a prompt", "use expressions, if, for and set"),
    (r"unexpected char", "the character `{}` is nothing in an expression", ""),
    (r"expected token|unexpected", "`{}` cannot stand here", ""),
)
"""Patterns of Jinja2's messages, each with the message and the hint that replace it; `{}` is the token."""


def _in_words(source: str, position: int, message: str) -> TemplateFault:
    """Return the fault for an error of Jinja2 without a known mistake, in words of this project."""
    token = _TOKEN.match(source, position)
    if token is None or re.search(r"end of template", message):
        tokens_before = list(_TOKEN.finditer(source))
        token = tokens_before[-1] if tokens_before else None
    word, offset = (token[0], token.start()) if token else ("", 0)
    if word == "=":
        return TemplateFault(offset, word, "`=` is no comparison", "compare with ==")
    for pattern, text, hint in _WORDS:
        if re.search(pattern, message):
            if "follows" in text and not re.match(r"[\w'\"]", word):
                text = "`{}` cannot stand here"
            return TemplateFault(offset, word, text.format(word), hint)
    return TemplateFault(offset, word, message)
