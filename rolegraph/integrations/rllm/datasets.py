"""Datasets of rLLM's registry as data of a spec: `data: {train: {rllm: NAME}}`, found by its entry point."""
# rLLM is on no registry, so it is missing where types are checked.
# pyright: reportMissingImports=false, reportUnknownVariableType=false, reportUnknownMemberType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from rolegraph.engine.errors import DataError, did_you_mean
from rolegraph.engine.vocabulary import Dataset, Row, Split, dataset_of, json_row
from rolegraph.integrations.rllm.backends import need_rllm

VALIDATION_SPLITS = ("validation", "val", "test")
"""Names of validation splits in rLLM's registry; the first that a dataset has is used."""


def rllm(
    name: str, /, *, split_name: str | None = None, hidden: list[str] | None = None, split: Split = "train"
) -> Dataset:
    """Load a dataset that rLLM's DatasetRegistry knows by name.

    name: the dataset's name in the registry
    split_name: the dataset's split, where it is not one of the usual names
    hidden: columns that no prompt may show
    """
    need_rllm(f"the dataset {name} of rLLM")
    from rllm.data import DatasetRegistry

    splits: list[str] = DatasetRegistry.get_dataset_splits(name)
    if not splits:
        hint = did_you_mean(name, DatasetRegistry.get_dataset_names())
        raise DataError("; ".join(filter(None, (f"rLLM has no dataset {name!r}", hint))))
    wanted_split = split_name or _split(split, splits)
    if wanted_split not in splits:
        raise DataError(f"rLLM's dataset {name} has no split {wanted_split!r}; it has {', '.join(splits)}")
    read_rows = partial(_rows, name, wanted_split)
    return dataset_of(read_rows, hidden=hidden or [], stem=name, split=split, shown=name)


def _split(split: Split, there: Sequence[str]) -> str:
    """Return the name of a dataset's split that is used for `split`; `split` itself if no name fits.

    Args:
        split: Split of the spec's data.
        there: Names of the dataset's splits.
    """
    names = ("train",) if split == "train" else VALIDATION_SPLITS
    return next((name for name in (*names, "default") if name in there), split)


def _rows(name: str, split: str) -> Iterator[tuple[int, Row]]:
    from rllm.data import DatasetRegistry

    rllm_rows: Any = DatasetRegistry.load_dataset(name, split)
    for number, row in enumerate(rllm_rows or (), 1):
        yield number, json_row(row, f"{name}:{number}")
