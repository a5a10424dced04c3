"""Words of a list that a model's prose affirms: `not correct` does not affirm `correct`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

_WINDOW = 120
"""Number of characters on each side of a verdict's word that are searched for a negation or a question."""
_CLAUSE = re.compile(
    r"[.;:!?\n] | ,\s*(?=(?:it|this|that|the|so|therefore|thus|hence|my|your|answer|verdict|which)\b)"
    r"| \b(?:but|so|thus|therefore|hence|because|since)\b",
    re.VERBOSE,
)
_NEGATED = re.compile(
    r"""\b(?: not | never | neither | nor | cannot | doubt | fails? | unable | lacks?
            | less | hardly | barely | scarcely | far\ from | anything\ but
            | (?:less|rather)\ than | instead\ of | no\ longer | (?:in\ no|by\ no)\ (?:way|means) | without
            | nicht | nie | niemals | kaum | keineswegs | kein\w* | pas | jamais | não | nunca | niet
            | inte | ikke | не | нет | (?:is|are|was|do|does|did|could|would|should|ca|wo)nt )\b
      | n['’]t\b
      | \bno(?:\s\w+)?\s*$
      | \b(?:almost|nearly|partially|partly|mostly|half|semi|quasi|un|non|false|wrong|untrue)[\s-]*$""",
    re.VERBOSE,
)
_DENIED_AFTER = re.compile(r"\W*(?:(?:it|this|that|is|was)\W+){0,2}not\b")
_QUESTION = re.compile(r"[^.!?\n]*\?")
_ARTICLE = re.compile(r"\s+(?!(?:is|was|because|since|as|or|and|seems|looks|would|must|has)\b)[a-z]")


class Negated(ValueError):
    """Error of a text that negates a word of the list."""


class WordFinder:
    """Finder of the words that a text affirms."""

    def __init__(self, words: Mapping[str, str]) -> None:
        """Compile the search for these words.

        Args:
            words: Each word's spelling in the list, by the word in small letters.
        """
        self.words = words
        letters = [spelling for spelling in words.values() if len(spelling) == 1 and spelling.isalpha()]
        self._letters = _pattern(letters)
        # Small letters and no groups: a hundred times as fast as IGNORECASE with a group for each word.
        self._words = _pattern([word for word, spelling in words.items() if spelling not in letters])

    def affirmed(self, text: str) -> set[str]:
        """Return the words of the list that a text affirms, in the list's spelling.

        A word in a question does not count. A single letter counts only in the case of the list, and not as
        an article.

        Raises:
            Negated: The text negates a word.
        """
        lower_text = text.lower()
        return {*self._found(self._words, lower_text), *self._found(self._letters, text)}

    def _found(self, pattern: re.Pattern[str] | None, text: str) -> Iterator[str]:
        for match in pattern.finditer(text) if pattern else ():
            word = match[0]
            if len(word) == 1 and word in "aAI" and _ARTICLE.match(text, match.end()):
                continue
            start, end = match.span()
            text_before, text_after = text[max(0, start - _WINDOW) : start], text[end : end + _WINDOW]
            clause = _CLAUSE.split(text_before.lower())[-1]
            if _NEGATED.search(clause) or _DENIED_AFTER.match(text_after.lower()):
                raise Negated(f"{(clause + word).strip()[-40:]!r} denies {word!r}")
            if not _QUESTION.match(text_after):
                yield self.words[word.lower()]


def _pattern(words: list[str]) -> re.Pattern[str] | None:
    """Return a pattern that matches any of the words as a whole, longer words first; None for an empty
    list."""
    alternatives = "|".join(map(re.escape, sorted(words, key=len, reverse=True)))
    return re.compile(rf"(?<![\w])(?<!\w[-‑])(?:{alternatives})(?!\w|[-‑]\w)") if words else None
