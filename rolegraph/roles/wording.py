"""Texts of answers in a comparable form: spellings of numbers, case, white space, punctuation and articles.

Punctuation and articles are left out only where they have no meaning: `C++` is not `C`, `-5` is not `5`,
`3.14` is not `314`, and the `A` of `vitamin A` is no article.
"""

from __future__ import annotations

import json
import re
import string
from unicodedata import category, normalize

_GROUPED = re.compile(r"(?<![\w,.])[1-9][0-9]{0,2}(?:,[0-9]{3})+(?![\w,])")
_MEANT = r"""
    (?<=\d)\.(?=\d) | (?<![\w.])\.(?=\w)                # 3.14, .5, .NET
  | (?<=\d)[,:/](?=\d)                                  # 1,5; 12:30; 3/4
  | (?<![^\W\d_][^\W\d_])-(?=[$€£]?\.?\d)              # -5, 10-12, x-1, and not covid-19
  | (?<=[^\W_])\+(?![^\W\d_][^\W\d_]) | (?<=\+)\+       # C++, 3+4, A+
  | (?<=[^\W\d_])\#                                    # C#
  | (?<=\d)%
  | [<>]=?(?=\s?[-\d])
  | (?<=[^\W_])[*^=_~|](?=[-\d{(]) | (?<=\d)[*^=_~|](?=[^\W_]) | (?<=\d)\*\*(?=[-\d(])
  | (?<=[^\W_]\s)[-+*/=^](?=\s[$(]?\.?\d) | (?<=\d\s)[-+*/=^](?=\s\w)
"""
_PUNCTUATION = re.compile(rf"(?P<meant>{_MEANT})|[{re.escape(string.punctuation)}]", re.VERBOSE)
_ARTICLE = re.compile(r"\b(?:a|an|the)\s+(?=\w)")
_INVISIBLE = ("Cc", "Cf", "Cn", "Co")
"""Unicode categories of control characters, of invisible characters such as the zero-width space, and of
unassigned ones."""


def spellings(value: object) -> tuple[str, ...]:
    """Return the texts that can stand for a value: `2.0` and `2` for 2.0, a text itself, the JSON of any
    other value."""
    if isinstance(value, str):
        return (value,)
    json_text = json.dumps(value, ensure_ascii=False, default=str)
    if isinstance(value, float) and value.is_integer():
        return json_text, str(int(value))
    return (json_text,)


def without_padding(text: str) -> list[str]:
    """Return the parts of a text between white space, in composed form (NFC) and without invisible
    characters."""
    visible_text = "".join(
        sign for sign in normalize("NFC", text) if sign.isspace() or category(sign) not in _INVISIBLE
    )
    return visible_text.split()


def plain(text: str, *, ignore_case: bool, punctuation: bool) -> str:
    """Return a text in Unicode's composed form (NFC), with single spaces and one character for minus.

    Args:
        text: The text.
        ignore_case: True to fold case.
        punctuation: True to keep punctuation; a text of only punctuation always keeps it.
    """
    text = normalize("NFC", text).replace("\N{MINUS SIGN}", "-")
    text = normalize("NFC", text.casefold()) if ignore_case else text
    return " ".join((text if punctuation else _unpunctuated(text)).split())


def words(text: str) -> list[str]:
    """Return the words of a text as SQuAD's F1 counts them: without case, punctuation and articles."""
    return _ARTICLE.sub(" ", plain(text, ignore_case=True, punctuation=False)).split()


def _unpunctuated(text: str) -> str:
    joined_numbers = _GROUPED.sub(lambda match: match[0].replace(",", ""), text)
    cleaned_text = _PUNCTUATION.sub(lambda match: match["meant"] or "", joined_numbers)
    return cleaned_text if cleaned_text.strip() else text
