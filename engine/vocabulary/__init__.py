"""What a role can be made of: the kinds of items, how a spec calls one, and the registry of each kind.

Whoever writes a parser, reward, estimator, signal, metric or dataset needs this room and `engine.records`.
"""

from engine.errors import DataError, UsageError, did_you_mean
from engine.records import Split
from engine.vocabulary.call import Call, CallField
from engine.vocabulary.datasets import SUFFIXES, Row, dataset_of, open_dataset, plain_row
from engine.vocabulary.imports import Import, digest_of, import_file
from engine.vocabulary.items import (
    Dataset,
    Estimator,
    Floats,
    LossName,
    Metric,
    ParseFailure,
    Parser,
    Reward,
    Score,
    Seen,
    Signal,
    datasets,
    estimators,
    metrics,
    parsers,
    rewards,
    signals,
)
from engine.vocabulary.options import Option, options_of
from engine.vocabulary.registry import (
    BadOptions,
    BadParts,
    Item,
    Registry,
    UnknownName,
    noting,
)
from engine.vocabulary.views import REWARD_FIELDS, VIEW_FIELDS, ScoredView, Upstream, View, Views

__all__ = [
    "REWARD_FIELDS",
    "SUFFIXES",
    "VIEW_FIELDS",
    "BadOptions",
    "BadParts",
    "Call",
    "CallField",
    "DataError",
    "Dataset",
    "Estimator",
    "Floats",
    "Import",
    "Item",
    "LossName",
    "Metric",
    "Option",
    "ParseFailure",
    "Parser",
    "Registry",
    "Reward",
    "Row",
    "Score",
    "ScoredView",
    "Seen",
    "Signal",
    "Split",
    "UnknownName",
    "Upstream",
    "UsageError",
    "View",
    "Views",
    "dataset_of",
    "datasets",
    "did_you_mean",
    "digest_of",
    "estimators",
    "import_file",
    "metrics",
    "noting",
    "open_dataset",
    "options_of",
    "parsers",
    "plain_row",
    "rewards",
    "signals",
]
