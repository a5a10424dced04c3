"""Files of a package index, by its simple API (https://packaging.python.org/specifications/simple-repository-api)."""

from __future__ import annotations

import json
import os
import re
from html import unescape
from typing import Any
from urllib.parse import unquote, urljoin, urlsplit

from rolegraph.engine.errors import WorldError
from rolegraph.engine.limits.models import INDEX_PAGE
from rolegraph.local.fetching.downloads import answered

_VARIABLES = ("UV_DEFAULT_INDEX", "UV_INDEX_URL", "PIP_INDEX_URL")
_INDEX = "https://pypi.org/simple"
_ACCEPT = "application/vnd.pypi.simple.v1+json, application/vnd.pypi.simple.v1+html;q=0.2, text/html;q=0.1"
_LINK = re.compile(r"<a\s[^>]*?href\s*=\s*[\"']([^\"']+)[\"']", re.IGNORECASE)


def package_index() -> str:
    """Return the URL of the package index that the environment names for uv or pip, or that of PyPI."""
    named = next((value for name in _VARIABLES if (value := os.environ.get(name))), _INDEX)
    return re.sub(r"^[\w.-]+=", "", named).rstrip("/")  # uv's indexes can have a name: NAME=URL


async def find_in_index(project: str, filename: str) -> str:
    """Return the URL of a project's file in the package index.

    Raises:
        WorldError: The index does not answer, or has no such file.
    """
    index = package_index()
    async with answered(f"{index}/{project}/", {"Accept": _ACCEPT}) as answer:
        page = b""
        async for chunk in answer.aiter_bytes():
            page += chunk
            if len(page) > INDEX_PAGE.most:
                raise WorldError(INDEX_PAGE.exceeded(f"the page of {project} in the package index has"))
        base, is_json = str(answer.url), "json" in answer.headers.get("Content-Type", "")
    links = _links(page.decode("utf-8", "replace"), is_json=is_json)
    for link in links:
        if unquote(urlsplit(link).path).rpartition("/")[2] == filename:
            return urljoin(base, link.partition("#")[0])
    raise WorldError(f"the package index {urlsplit(index).hostname} has no {filename}")


def _links(page: str, *, is_json: bool) -> list[str]:
    if not is_json:
        return [unescape(link) for link in _LINK.findall(page)]
    try:
        answer: Any = json.loads(page)
        return [str(file["url"]) for file in answer["files"]]
    except (ValueError, KeyError, TypeError):
        return []
