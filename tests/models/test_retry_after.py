"""Tests of the Retry-After header of an overloaded server."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rolegraph.engine.models.limit import retry_after


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, None),
        ({"retry-after": "12"}, 12.0),
        ({"retry-after": " 0.5 "}, 0.5),
        ({"retry-after": "-3"}, 0.0),
        ({"retry-after-ms": "250", "retry-after": "12"}, 0.25),
        ({"retry-after-ms": "soon", "retry-after": "12"}, 12.0),
        ({"retry-after": "nan"}, None),
        ({"retry-after": "inf"}, None),
        ({"retry-after": ""}, None),
        ({"retry-after": "Wed, 21 Oct 2015 07:28:00 GMT"}, 0.0),
    ],
)
def test_seconds_or_milliseconds_that_can_be_read_are(headers: dict[str, str], seconds: float | None) -> None:
    assert retry_after(headers) == seconds


def test_a_date_is_what_is_left_until_it() -> None:
    then = format_datetime(datetime.now(UTC) + timedelta(hours=2), usegmt=True)
    found = retry_after({"retry-after": then})
    assert found is not None
    assert 3600 < found <= 7200


@given(st.text(st.characters(codec="latin-1")))
def test_whatever_a_server_says_is_a_wait_or_none(text: str) -> None:
    found = retry_after({"retry-after": text, "retry-after-ms": text})
    assert found is None or found >= 0
