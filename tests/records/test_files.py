"""Tests of reading whole files: no pipes or devices, and none larger than the limit."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from rolegraph.engine.errors import DataError, UsageError
from rolegraph.engine.limits.records import WHOLE_FILE
from rolegraph.engine.records import RunFolder
from rolegraph.engine.records.files import is_file, is_folder, read_bytes
from rolegraph.engine.records.sweep import read_sweep
from rolegraph.local.launcher import check_model_folder

READERS: dict[str, Callable[[Path], object]] = {
    "run.json": lambda folder: RunFolder(folder).info(),
    "spec.yaml": lambda folder: RunFolder(folder).spec(),
    "controls.json": lambda folder: RunFolder(folder).controls(),
    "sweep.json": read_sweep,
    "config.json": check_model_folder,
    "adapter_config.json": check_model_folder,
}


@pytest.mark.parametrize("name", READERS)
def test_a_file_that_is_too_large_is_refused_by_its_limit(tmp_path: Path, name: str) -> None:
    pytest.importorskip("torch", reason="needs the extra `local`")
    with (tmp_path / name).open("wb") as file:
        file.truncate(WHOLE_FILE.most + 1)
    with pytest.raises((DataError, UsageError), match="whole_file"):
        READERS[name](tmp_path)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
@pytest.mark.parametrize("name", READERS)
def test_a_pipe_is_not_waited_for(tmp_path: Path, name: str) -> None:
    pytest.importorskip("torch", reason="needs the extra `local`")
    os.mkfifo(tmp_path / name)
    with pytest.raises((DataError, UsageError), match=name):
        READERS[name](tmp_path)


def test_a_device_is_no_file() -> None:
    with pytest.raises(OSError, match="not a regular file"):
        read_bytes(Path(os.devnull), WHOLE_FILE)


@pytest.mark.parametrize("name", ["x" * 5_000, "a\0b"])
def test_a_name_that_no_file_can_have_is_none(tmp_path: Path, name: str) -> None:
    assert not is_file(tmp_path / name) and not is_folder(tmp_path / name)


def test_a_config_of_brackets_is_no_config(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="needs the extra `local`")
    (tmp_path / "adapter_config.json").write_text("[" * 200_000)
    with pytest.raises(UsageError, match="is not an adapter's config"):
        check_model_folder(tmp_path)
    (tmp_path / "adapter_config.json").unlink()
    (tmp_path / "config.json").write_text("[" * 200_000)
    check_model_folder(tmp_path)  # the loader names the fault
