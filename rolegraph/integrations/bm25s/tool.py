"""Tool `search`: passages that fit a query, from a corpus or a retriever."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Any, cast

from pydantic import Field

from rolegraph.engine.vocabulary import Tool, ToolError, check_headers, check_url
from rolegraph.engine.vocabulary.tool import Headers
from rolegraph.integrations.bm25s.corpus import FIELDS, Corpus, SearchHit, open_corpus
from rolegraph.integrations.bm25s.corpus import search as search_corpus
from rolegraph.roles.tools import Sent, exchange, function_opener

_EXAMPLE_HITS = [{"id": "1", "title": "…", "text": "…", "score": 1.0}]


def search(
    query: str | None = None,
    /,
    *,
    corpus: str | None = None,
    url: str | None = None,
    headers: Headers = None,
    k: Annotated[int, Field(ge=1, le=100)] = 3,
    folder: Path = Path(),
) -> Tool:
    """Find the passages that fit a query best, the best first: in a corpus, or by a retriever.

    query: the words to look for, a template; left out where a model writes it
    corpus: a .jsonl, .csv, .tsv or .parquet file with a `text` for each passage, and an `id` and a `title`
      where it has them; ranked by BM25
    url: a retriever's address, in place of a corpus; it is sent {"query": …, "k": …} and answers with a list
      of passages, or with {"results": […]}
    headers: of requests to the retriever, such as X-Episode: "{{ episode.id }}"
    k: how many passages
    """
    if (corpus is None) == (url is None):
        short_form = f"{{search: {'null' if query is None else '…'}, corpus: FILE.jsonl}}"
        raise ValueError(f"needs either a corpus or a url, as in {short_form}")
    if headers and url is None:
        raise ValueError("has headers, which a corpus is never sent; leave them out")
    if url is not None:
        find, permissions, files = partial(_retrieve, check_url(url), k), (url,), {}
    else:
        passages = open_corpus(str(corpus), folder=folder)
        find, permissions, files = partial(_look_up, passages, k), (), {passages.path: FIELDS}
    description = f"Looks for passages of text, and gives the {k} that fit the query best."
    function = function_opener("search", description, "query", "what is looked for, in a few words", find)
    output_schema = {"type": "array", "maxItems": k}
    return Tool(
        function,
        headers=check_headers(headers),
        source=query,
        permissions=permissions,
        example=_EXAMPLE_HITS,
        gives=output_schema,
        files=files,
        sends_body=url is not None,
    )


async def _look_up(corpus: Corpus, k: int, query: Any, headers: Sent) -> list[SearchHit]:
    return await asyncio.to_thread(search_corpus, corpus, str(query), k)


async def _retrieve(url: str, k: int, query: Any, headers: Sent) -> list[Any]:
    passages = await exchange(url, "POST", {"query": str(query), "k": k}, headers)
    if isinstance(passages, Mapping):
        passages = cast("Mapping[str, Any]", passages).get("results")
    if not isinstance(passages, list):
        raise ToolError(f'{url} gives no list of passages, and no {{"results": […]}}')
    return cast("list[Any]", passages)[:k]
