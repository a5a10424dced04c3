"""Search in a corpus: a file of passages beside the spec, ranked by the words that they share with a query.

A corpus is a .jsonl, .parquet or .csv file with a `text` for each passage, and an `id` and a `title` where it
has them. It is read and indexed (BM25, the bm25s library) when it is first searched, once in a process. Words
are letters and digits in any script, whatever their case; there are no stop words and no stems.
"""

from __future__ import annotations

import importlib
import importlib.util
import re
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple, TypedDict

from rolegraph.engine.vocabulary import DataError, UsageError, short_repr
from rolegraph.roles.tables import find_table, read_table

_WORD = re.compile(r"\w+")


class Corpus(NamedTuple):
    """A file of passages, as it was when it was opened."""

    path: Path
    changed: int
    """When the file last changed: another time is another corpus."""


class Passage(NamedTuple):
    """A row of a corpus."""

    id: str
    title: str
    text: str


class SearchHit(TypedDict):
    """A passage that was found."""

    id: str
    title: str
    text: str
    score: float


def open_corpus(name: str, *, folder: Path) -> Corpus:
    """The corpus of that file at or below `folder`; reads no more than the first passage.

    Raises DataError for a file that is no corpus or lies elsewhere, UsageError where the library is missing.
    """
    if importlib.util.find_spec("bm25s") is None:
        raise UsageError("searching a corpus needs the library bm25s: pip install 'rolegraph[search]'")
    path = find_table(folder, name)
    if next(_passages(path), None) is None:
        raise DataError(f"{name} has no passages")
    return Corpus(path, path.stat().st_mtime_ns)


def search(corpus: Corpus, query: str, k: int = 3) -> list[SearchHit]:
    """The best `k` passages for a query, the best first and of equal ones the first in the file.

    Fewer where fewer share a word with it. Raises DataError for a line that holds no passage.
    """
    if k < 1:
        raise ValueError(f"k must be 1 or more; got {k}")
    words = _words(query)
    if not words:
        return []
    with _building:  # of two searches at once, the second waits for the index that the first builds
        passages, ranking = _indexed(corpus)
    scores = ranking.get_scores(words)
    best: list[int] = (-scores).argsort(kind="stable")[:k].tolist()
    return [_hit(passages[i], float(scores[i])) for i in best if scores[i] > 0]


def _hit(passage: Passage, score: float) -> SearchHit:
    return {"id": passage.id, "title": passage.title, "text": passage.text, "score": score}


_building = Lock()


@lru_cache(maxsize=8)
def _indexed(corpus: Corpus) -> tuple[list[Passage], Any]:
    passages = list(_passages(corpus.path))
    words = [_words(f"{passage.title} {passage.text}") for passage in passages]
    if not any(words):
        raise DataError(f"{corpus.path.name}: no passage has a word to be found by")
    ranking: Any = importlib.import_module("bm25s").BM25()
    ranking.index(words, show_progress=False)
    return passages, ranking


def _passages(path: Path) -> Iterator[Passage]:
    """The passages of a file, in order; raises DataError with the line of what is none."""
    seen: dict[str, int] = {}
    for number, row in read_table(path):
        text, title = row.get("text"), row.get("title") or ""
        if not isinstance(text, str) or not text.strip():
            raise DataError(f'{path.name}:{number}: a passage needs a text, as in {{"text": "…"}}')
        if not isinstance(title, str):
            raise DataError(f"{path.name}:{number}: the title is no text but {short_repr(title)}")
        given = row.get("id")
        identity = str(number if given in (None, "") else given)
        if identity in seen:
            raise DataError(
                f"{path.name}:{number}: the id {short_repr(identity)} is that of line {seen[identity]} too"
            )
        seen[identity] = number
        yield Passage(identity, title, text)


def _words(text: str) -> list[str]:
    return _WORD.findall(text.casefold())
