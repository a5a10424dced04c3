"""Search in a corpus: a file of passages, ranked by the words that they share with a query (BM25).

A corpus is a .jsonl, .csv, .tsv or .parquet file with a `text` for each passage, and an optional `id` and
`title`. It is read and indexed (the bm25s library) at its first search in a process. Words are letters and
digits in any script, whatever their case; there are no stop words and no stemming.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple, TypedDict

from rolegraph.engine.vocabulary import DataError, note_id, require_library, short_repr
from rolegraph.roles.tables import find_table, read_table

FIELDS = ("id", "title", "text")
"""Fields of a row that a search returns."""
_WORD = re.compile(r"\w+")


class Corpus(NamedTuple):
    """File of passages, with its path and the time of its last change when it was opened."""

    path: Path
    changed: int
    """Time of the file's last change in ns; the index of another version is not used."""


class SearchHit(TypedDict):
    """Passage of a corpus with its BM25 score for a query."""

    id: str
    title: str
    text: str
    score: float


def open_corpus(name: str, *, folder: Path) -> Corpus:
    """Open a corpus, and read its first passage only.

    Args:
        name: The file's name or path relative to `folder`.
        folder: The spec's folder, in or below which the file must lie.

    Raises:
        DataError: The file is no corpus, or lies elsewhere.
        UsageError: The bm25s library is not installed.
    """
    require_library("bm25s", "search", "searches in a corpus")
    path = find_table(folder, name)
    if next(_passages(path), None) is None:
        raise DataError(f"{name} has no passages")
    return Corpus(path, path.stat().st_mtime_ns)


def search(corpus: Corpus, query: str, k: int = 3) -> list[SearchHit]:
    """Find the passages that fit a query best.

    Args:
        corpus: The corpus.
        query: Any text.
        k: The largest number of passages, 1 or more.

    Returns:
        Passages that share a word with the query, the best first; of equal ones the first in the file.

    Raises:
        DataError: A line of the file holds no passage.
        ValueError: `k` is less than 1.
    """
    if k < 1:
        raise ValueError(f"k must be 1 or more; got {k}")
    words = _words(query)
    if not words:
        return []
    with _building:  # of two searches at once, the second waits for the index that the first builds
        passages, ranking = _indexed(corpus)
    scores = ranking.get_scores(words)
    best_indices: list[int] = (-scores).argsort(kind="stable")[:k].tolist()
    return [{**passages[index], "score": float(scores[index])} for index in best_indices if scores[index] > 0]


_building = Lock()


@lru_cache(maxsize=8)
def _indexed(corpus: Corpus) -> tuple[list[SearchHit], Any]:
    passages = list(_passages(corpus.path))
    words = [_words(f"{passage['title']} {passage['text']}") for passage in passages]
    if not any(words):
        raise DataError(f"{corpus.path.name}: no passage has a word to be found by")
    ranking: Any = importlib.import_module("bm25s").BM25()
    ranking.index(words, show_progress=False)
    return passages, ranking


def _passages(path: Path) -> Iterator[SearchHit]:
    """Yield the passages of a file (id, title, text, score 0); raise DataError for a row without a
    passage."""
    lines: dict[str, int] = {}
    for number, row in read_table(path):
        text, title = row.get("text"), row.get("title") or ""
        if not isinstance(text, str) or not text.strip():
            raise DataError(f'{path.name}:{number}: a passage needs a text, as in {{"text": "…"}}')
        if not isinstance(title, str):
            raise DataError(f"{path.name}:{number}: the title is no text but {short_repr(title)}")
        given_id = row.get("id")
        identity = str(number if given_id in (None, "") else given_id)
        note_id(lines, identity, number, path.name)
        yield {"id": identity, "title": title, "text": text, "score": 0.0}


def _words(text: str) -> list[str]:
    return _WORD.findall(text.casefold())
