"""Warnings of prompts that do not mention what their role's parser looks for, such as a tag.

A prompt mentions a word that it writes itself, or that it may pass on: from the task, an environment, a tool,
or another role whose prompt mentions the word.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from rolegraph.engine.compile.chats import turns_read
from rolegraph.engine.compile.names import ResolvedNames
from rolegraph.engine.compile.structure import callers_of
from rolegraph.engine.errors import RolegraphError
from rolegraph.engine.prompts import Template
from rolegraph.engine.spec import Finding, Spec

_SHOWN = 6
"""Number of words that a message lists."""


def instruction_findings(spec: Spec, names: ResolvedNames) -> Iterator[Finding]:
    """Warn of each role whose prompts mention none of the words of a group that its parser expects."""
    read = turns_read(spec)
    for name, role in names.roles.items():
        for words in role.parser.expects if role.parser and spec.roles[name].run is None else ():
            if not _Mentions(spec, names, read, words).may_show(name):
                some = [*words[:_SHOWN], *(["…"] if len(words) > _SHOWN else [])]
                looked_for = " or ".join(some)
                message = f"the prompt of {name} does not mention {looked_for}, which its parser looks for"
                hint = "say it in the prompt: answers without it are the failure malformed_output"
                word = words[0].strip("<>")
                yield Finding(("roles", name, "parser"), message, "", hint, "warning", word)


@dataclass(slots=True)
class _Mentions:
    """Search for a group of words in everything that a role's prompts may show."""

    spec: Spec
    names: ResolvedNames
    turns_read: Mapping[str, Sequence[str]]
    """By role, the other roles whose turns its conversation shows."""
    words: Sequence[str]
    searched: set[str] = field(default_factory=set[str])

    def may_show(self, name: str) -> bool:
        """Return True if the prompts of a role, or what they pass on, mention a word, or may."""
        self.searched.add(name)
        role, written = self.names.roles[name], self.spec.roles[name]
        demonstration = role.signal.demonstration if role.signal else None
        templates = [template for template in (*role.templates, demonstration) if template]
        if role.templates[0] is None and (role.run is None or role.run.tool.source is not None):
            return True  # the template has a fault
        if self.found([text for template in templates for text in template.literals()]):
            return True
        if role.run and (role.run.tool.permissions or role.run.session):  # a service, or a program
            return True
        if "self.observation" in role.mentions or ("task" in role.mentions and self.in_rows(written.shows)):
            return True
        read = {
            edge.of or key
            for key, edge in written.needs.items()
            if key in role.mentions or (role.run and role.run.tool.choose)
        }
        if "self.arguments" in role.mentions:
            read |= {*callers_of(self.spec, name)}
        if any(self.may_show(other) for other in {*self.turns_read.get(name, ())} - self.searched):
            return True
        return any(self.may_pass_on(other, templates) for other in read - self.searched)

    def may_pass_on(self, name: str, readers: Sequence[Template]) -> bool:
        """Return True if a word may be in what these templates read of a role."""
        parser = self.names.roles[name].parser
        whole = any(re.search(r"\b(?:response|thought)\b", template.source) for template in readers)
        if parser is not None and not whole and {*self.words} <= {*parser.strips}:
            return False
        return self.may_show(name)

    def in_rows(self, shows: Sequence[str]) -> bool:
        """Return True if the first task of a split mentions a word, or cannot be read."""
        hidden = self.names.hidden - {*shows}
        try:
            rows = [row for data in self.names.data.values() for row in data.rows(1)]
        except RolegraphError:
            return True
        visible = [str(value) for row in rows for key, value in row.items() if key not in hidden]
        return not rows or self.found(visible)

    def found(self, texts: Sequence[str]) -> bool:
        """Return True if one of the texts mentions one of the words."""
        return any(_mentions(texts, word) for word in self.words)


def _mentions(texts: Sequence[str], word: str) -> bool:
    """Return True if texts mention a word as a whole; `<x>` is mentioned by a tag's name, too."""
    everything = " ".join(" ".join(texts).split())
    name = word.strip("<>")
    whole = re.compile(rf"(?<!\w){re.escape(name)}(?!\w)", re.IGNORECASE)
    if name == word:
        return whole.search(everything) is not None
    if re.search(rf"</?{re.escape(name)}\b", everything, re.IGNORECASE):
        return True
    is_about_tags = re.search(r"\btags?\b", everything, re.IGNORECASE) and whole.search(everything)
    return bool(is_about_tags) or any(text.strip("</> \n") == name for text in texts)
