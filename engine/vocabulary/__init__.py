"""What a role can be made of: the kinds of items, how a spec calls one, and the registry of each kind.

Whoever writes a parser, reward, estimator, signal, metric, dataset or environment needs this room and
`engine.records`.
"""

from engine.errors import DataError, UsageError, did_you_mean
from engine.records import Split
from engine.vocabulary.call import Call, CallField
from engine.vocabulary.datasets import SUFFIXES, Row, dataset_of, open_dataset, plain_row
from engine.vocabulary.environments import environment_of
from engine.vocabulary.imports import Import, digest_of, import_file
from engine.vocabulary.items import (
    Dataset,
    Environment,
    EnvironmentFailure,
    Estimator,
    Floats,
    LiveEnvironment,
    LossName,
    Metric,
    ParseFailure,
    Parser,
    Reward,
    Score,
    Seen,
    Signal,
    Transition,
    datasets,
    environments,
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
from engine.vocabulary.views import REWARD_FIELDS, VIEW_FIELDS, Own, ScoredView, Upstream, View, Views

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
    "Environment",
    "EnvironmentFailure",
    "Estimator",
    "Floats",
    "Import",
    "Item",
    "LiveEnvironment",
    "LossName",
    "Metric",
    "Option",
    "Own",
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
    "Transition",
    "UnknownName",
    "Upstream",
    "UsageError",
    "View",
    "Views",
    "dataset_of",
    "datasets",
    "did_you_mean",
    "digest_of",
    "environment_of",
    "environments",
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
