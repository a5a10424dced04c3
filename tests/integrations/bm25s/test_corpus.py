"""Search in a corpus: the passages, their order, and the errors of files that are no corpus."""

from __future__ import annotations

import importlib.util
import json
import os
import pickle
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from rolegraph.engine.errors import DataError, UsageError
from rolegraph.integrations.bm25s import corpus as module
from rolegraph.integrations.bm25s.corpus import Corpus, open_corpus, search
from tests.counting import calls

pytest.importorskip("bm25s")

CITIES = [
    {"id": "p", "title": "Paris", "text": "The capital of France lies on the Seine."},
    {"id": "r", "title": "Rome", "text": "The capital of Italy, on the Tiber."},
    {"id": "l", "text": "Lyon is a city in France, and no capital of France."},
]


def corpus(folder: Path, *lines: object, name: str = "wiki.jsonl") -> Corpus:
    written = [line if isinstance(line, str) else json.dumps(line) for line in lines]
    (folder / name).write_text("\n".join(written) + "\n", encoding="utf-8")
    return open_corpus(name, folder=folder)


def test_a_hit_is_a_passage_with_its_score_the_best_first(tmp_path: Path) -> None:
    found = search(corpus(tmp_path, *CITIES), "the capital of Italy", k=2)
    assert [hit["id"] for hit in found] == ["r", "p"]
    assert found[0] == {**CITIES[1], "score": found[0]["score"]}
    assert found[0]["score"] > found[1]["score"] > 0


def test_titles_are_searched_too_and_case_does_not_count(tmp_path: Path) -> None:
    cities = corpus(tmp_path, *CITIES)
    assert [hit["id"] for hit in search(cities, "PARIS")] == ["p"]
    (lyon,) = search(cities, "lyon")
    assert lyon["title"] == ""


def test_what_shares_no_word_is_not_found(tmp_path: Path) -> None:
    cities = corpus(tmp_path, *CITIES)
    for query in ("Berlin", "", "?!", "cap"):
        assert search(cities, query) == []
    assert len(search(cities, "capital", k=100)) == 3


def test_equal_passages_come_in_the_file_s_order(tmp_path: Path) -> None:
    same = corpus(tmp_path, *({"text": "the same words"} for _ in range(50)), {"text": "another"})
    assert [hit["id"] for hit in search(same, "words", k=5)] == ["1", "2", "3", "4", "5"]


def test_every_script_and_single_letters_have_words(tmp_path: Path) -> None:
    texts = corpus(tmp_path, {"text": "Язык C"}, {"text": "Straße 7"}, {"text": "言語"}, {"text": "none"})
    for query, line in (("язык", "1"), ("c", "1"), ("STRASSE", "2"), ("7", "2"), ("言語", "3")):
        assert [hit["id"] for hit in search(texts, query)] == [line]


def test_an_id_is_the_row_s_own_or_its_line(tmp_path: Path) -> None:
    numbered = corpus(tmp_path, {"id": 70, "text": "a"}, "", {"id": None, "text": "b"})
    assert [search(numbered, word)[0]["id"] for word in ("a", "b")] == ["70", "3"]


def test_a_table_of_another_kind_is_a_corpus_too(tmp_path: Path) -> None:
    (tmp_path / "wiki.csv").write_text("id,title,text\np,Paris,on the Seine\n", encoding="utf-8")
    (hit,) = search(open_corpus("wiki.csv", folder=tmp_path), "Seine")
    assert (hit["id"], hit["title"]) == ("p", "Paris")


def test_opening_reads_one_passage_and_the_index_is_built_once(tmp_path: Path) -> None:
    made = corpus(tmp_path, {"text": "a b"}, *({"text": f"word {n}"} for n in range(2_000)))
    assert calls(lambda: open_corpus("wiki.jsonl", folder=tmp_path)) < 1_000
    first = calls(lambda: search(made, "word"))
    again = calls(lambda: search(pickle.loads(pickle.dumps(made)), "word"))
    assert 10 * again < first


def test_a_file_that_has_changed_is_another_corpus(tmp_path: Path) -> None:
    before = corpus(tmp_path, {"text": "old"})
    assert search(before, "old")
    os.utime(tmp_path / "wiki.jsonl", ns=(0, 0))
    after = corpus(tmp_path, {"text": "new"})
    os.utime(tmp_path / "wiki.jsonl", ns=(1, 1))
    after = open_corpus("wiki.jsonl", folder=tmp_path)
    assert search(after, "new")
    assert not search(after, "old")


def test_searches_at_once_build_one_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made, read = corpus(tmp_path, *CITIES), 0
    passages = module._passages

    def counted(path: Path) -> object:
        nonlocal read
        read += 1
        return passages(path)

    monkeypatch.setattr(module, "_passages", counted)
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda _: search(made, "capital"), range(32)))
    assert read == 1
    assert all(hits == found[0] for hits in found)


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (['{"text": "a"}', '{"title": "b"}'], r"wiki\.jsonl:2: a passage needs a text"),
        (['{"text": "a"}', "", '{"text": " "}'], r"wiki\.jsonl:3: a passage needs a text"),
        (['{"text": "a"}', '{"text": 5}'], r"wiki\.jsonl:2: a passage needs a text"),
        (['{"text": "a", "title": ["b"]}'], r"wiki\.jsonl:1: the title is no text"),
        (['{"text": "a"}', "{text: b}"], r"wiki\.jsonl:2: not JSON"),
        (
            ['{"id": 1, "text": "a"}', '{"id": "1", "text": "b"}'],
            r"wiki\.jsonl:2: the id '1' is also in line 1",
        ),
        (['{"id": "' + "x" * 9_999 + '", "text": "a"}'] * 2, r"^.{,300}xxx… is also in line 1$"),
        (['{"text": "a", "title": [' + "1, " * 9_999 + "1]}"], r"^.{,300}1,…$"),
        (['{"text": "?!"}'], r"wiki\.jsonl: no passage has a word"),
        ([""], r"wiki\.jsonl has no passages"),
    ],
)
def test_a_line_that_is_no_passage_is_named(tmp_path: Path, lines: list[str], message: str) -> None:
    with pytest.raises(DataError, match=message):
        search(corpus(tmp_path, *lines), "a")


def test_no_corpus_lies_outside_the_folder(tmp_path: Path) -> None:
    inside = tmp_path / "specs"
    inside.mkdir()
    corpus(tmp_path, *CITIES)
    for name in ("../wiki.jsonl", str(tmp_path / "wiki.jsonl")):
        with pytest.raises(DataError, match="outside the spec's folder"):
            open_corpus(name, folder=inside)
    with pytest.raises(DataError, match=r"no file 'wikki\.jsonl' .*did you mean 'wiki\.jsonl'"):
        open_corpus("wikki.jsonl", folder=tmp_path)
    with pytest.raises(DataError, match=r"ends in \.jsonl"):
        open_corpus("wiki.txt", folder=tmp_path)


def test_k_is_at_least_one_and_a_missing_library_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ValueError, match="1 or more"):
        search(corpus(tmp_path, *CITIES), "capital", k=0)
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(UsageError, match=r"pip install 'rolegraph\[search\]'"):
        open_corpus("wiki.jsonl", folder=tmp_path)
