"""Tests that complete lines survive damage to later lines, and that files are written atomically."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rolegraph.engine.errors import DataError, WorldError
from rolegraph.engine.records.confined import write_whole
from rolegraph.engine.records.jsonl import JsonlWriter, json_line, parse_json, read_jsonl

Values = list[dict[str, Any]]


def write(path: Path, values: Values) -> None:
    with JsonlWriter(path) as writer:
        for value in values:
            writer.append(json_line(value))


def read(path: Path) -> Values:
    return [line.value for line in read_jsonl(path, parse_json, "a value")]


@contextmanager
def room_for(size: int) -> Iterator[None]:
    """Limit the size of this process's files to `size` bytes for the time of the block."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


# reading


def test_a_line_is_read_with_its_number_its_place_and_its_text(tmp_path: Path) -> None:
    write(tmp_path / "x.jsonl", [{"a": "é"}, {"b": 2}])
    first, second = read_jsonl(tmp_path / "x.jsonl", parse_json, "a value")
    assert first == (1, 0, '{"a":"é"}\n'.encode(), {"a": "é"})
    assert (second.number, second.start, second.value) == (2, len(first.text), {"b": 2})


def test_reading_may_begin_at_any_line(tmp_path: Path) -> None:
    write(tmp_path / "x.jsonl", [{"a": n} for n in range(3)])
    lines = [*read_jsonl(tmp_path / "x.jsonl", parse_json, "a value")]
    rest = read_jsonl(tmp_path / "x.jsonl", parse_json, "a value", start=lines[1].start, number=2)
    assert [*rest] == lines[1:]


def test_empty_lines_say_nothing(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_text('\n{"a": 1}\n  \n{"b": 2}\n')
    lines = read_jsonl(tmp_path / "x.jsonl", parse_json, "a value")
    assert [(line.number, line.start, line.value) for line in lines] == [(2, 1, {"a": 1}), (4, 13, {"b": 2})]


def test_half_a_character_that_another_program_escaped_is_read(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_text('{"a": "\\ud83d"}\n')
    assert read(tmp_path / "x.jsonl") == [{"a": "\ud83d"}]


@pytest.mark.parametrize("broken", ["{oops", "[" * 100_000, '{"a": "\xff"}'])
def test_a_line_that_is_no_json_is_named_by_its_place(tmp_path: Path, broken: str) -> None:
    (tmp_path / "x.jsonl").write_bytes(b'{"a": 1}\n' + broken.encode("latin-1") + b"\n")
    with pytest.raises(DataError, match=r"x\.jsonl:2: not a value: "):
        read(tmp_path / "x.jsonl")


def test_broken_lines_can_be_passed_over_and_counted(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_text('{oops\n{"a": 1}\n{}\n')
    broken: list[DataError] = []
    lines = read_jsonl(tmp_path / "x.jsonl", lambda text: parse_json(text)["a"], "a value", broken.append)
    assert [line.value for line in lines] == [1]
    assert [str(fault).partition("x.jsonl")[2][:15] for fault in broken] == [
        ":1: not a value",
        ":3: not a value",
    ]
    assert str(broken[1]).endswith("it has no 'a'")


def test_a_missing_file_and_one_that_is_none_are_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"cannot read .*nowhere\.jsonl: No such file"):
        read(tmp_path / "nowhere.jsonl")
    with pytest.raises(DataError, match="not a regular file"):
        read(tmp_path)


def test_what_never_ends_or_never_begins_is_not_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (Path("/dev/zero"), tmp_path / "pipe", Path("a\0b")):
        with pytest.raises(DataError, match=f"cannot read {path}: not a regular file"):
            read(path)


# writing


def test_half_a_character_in_a_model_s_text_is_written_as_a_question_mark(tmp_path: Path) -> None:
    write(tmp_path / "x.jsonl", [{"a": "half \ud83d"}])
    assert read(tmp_path / "x.jsonl") == [{"a": "half ?"}]


def test_a_line_is_in_the_file_before_it_is_closed(tmp_path: Path) -> None:
    with JsonlWriter(tmp_path / "x.jsonl") as writer:
        assert writer.append(b"{}\n") == 0
        assert writer.append(b"{}\n", sync=True) == 3
        assert read(tmp_path / "x.jsonl") == [{}, {}]


@given(st.lists(st.dictionaries(st.text(max_size=3), st.text(max_size=5), max_size=2), max_size=4), st.data())
def test_a_file_cut_anywhere_holds_the_lines_before_the_cut_and_goes_on(
    tmp_path_factory: pytest.TempPathFactory, values: Values, data: st.DataObject
) -> None:
    path = tmp_path_factory.mktemp("cut") / "x.jsonl"
    write(path, values)
    whole = path.read_bytes()
    cut = whole[: data.draw(st.integers(0, len(whole)))]
    path.write_bytes(cut)
    kept = values[: cut.count(b"\n")]
    assert read(path) == kept
    write(path, [{"next": "line"}])
    assert read(path) == [*kept, {"next": "line"}]


def test_what_is_left_of_a_long_line_is_taken_off(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_bytes(b'{"a": 1}\n' + b"x" * 200_000)
    write(path, [{"b": 2}])
    assert read(path) == [{"a": 1}, {"b": 2}]


def test_a_full_disk_keeps_the_lines_before_it(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    with JsonlWriter(path, "steps") as writer:
        writer.append(b'{"a": 1}\n')
        with room_for(14), pytest.raises(WorldError, match=r"cannot write step 2 to .*; the steps before it"):
            writer.append(b'{"b": 2}\n', "step 2")
        assert path.read_bytes() == b'{"a": 1}\n'
        writer.append(b'{"b": 2}\n')
    assert read(path) == [{"a": 1}, {"b": 2}]


def test_a_file_that_cannot_be_opened_is_the_world_s_fault(tmp_path: Path) -> None:
    with pytest.raises(WorldError, match="cannot write to"):
        JsonlWriter(tmp_path / "absent" / "x.jsonl")


def test_a_file_that_does_not_fit_leaves_the_one_before_it(tmp_path: Path) -> None:
    write_whole(tmp_path / "x.json", b"before")
    with room_for(10), pytest.raises(WorldError, match=r"cannot write .*x\.json"):
        write_whole(tmp_path / "x.json", b"after " * 10)
    assert [file.name for file in tmp_path.iterdir()] == ["x.json"]
    assert (tmp_path / "x.json").read_bytes() == b"before"
