"""Permissions that a person gave, and the URLs that they cover."""

from __future__ import annotations

import pytest

from rolegraph.engine.vocabulary import check_url, is_allowed


@pytest.mark.parametrize(
    ("wanted", "allowed"),
    [
        ("python", "python"),
        ("http://a.b/x", "http://a.b/x"),
        ("http://a.b/x", "http://a.b"),
        ("http://a.b/x/y?z=1", "http://a.b/x"),
        ("http://a.b/x/y", "http://a.b/x/"),
        ("http://a.b:80/x", "http://A.b/"),
        ("https://a.b/x", "https://a.b:443"),
        ("http://[::1]:8000/x", "http://[::1]:8000"),
    ],
)
def test_a_name_or_a_url_and_all_below_it(wanted: str, allowed: str) -> None:
    assert is_allowed(wanted, [allowed])
    assert not is_allowed(wanted, [])


@pytest.mark.parametrize(
    ("wanted", "allowed"),
    [
        ("python", "http://python"),
        ("http://a.b/xy", "http://a.b/x"),
        ("http://a.b/", "http://a.b/x"),
        ("https://a.b/", "http://a.b/"),
        ("http://a.b:8000/", "http://a.b/"),
        ("http://a.b.c/", "http://a.b"),
        ("http://a.b/x/../y", "http://a.b/x"),
        ("http://a.b/x/%2e%2E/y", "http://a.b/x"),
        ("http://a.b/x/%252e%252e/y", "http://a.b/x"),
        ("http://a.b/x/..;/y", "http://a.b/x"),
        ("http://a.b@evil/", "http://a.b"),
        ("http://evil\\@a.b/", "http://a.b"),
        ("http://a.b\t.evil/", "http://a.b"),
        ("file:///etc/passwd", "file:///etc"),
    ],
)
def test_a_permission_covers_no_url_outside_its_own(wanted: str, allowed: str) -> None:
    assert not is_allowed(wanted, [allowed])


@pytest.mark.parametrize(
    "url", ["a.b/x", "ftp://a", "http://u:p@a/", "http://a/../b", "http://ä/", "http:///x"]
)
def test_a_url_that_readers_could_read_differently_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match=r"://|plain URL"):
        check_url(url)
