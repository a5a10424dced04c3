"""What a role can be made of: the kinds of items, how a spec calls one, and the registry of each kind.

Whoever writes a parser, reward, estimator, signal, metric, dataset, environment or tool needs this room and
`rolegraph.engine.records`.
"""

from rolegraph.engine.errors import DataError, UsageError, did_you_mean
from rolegraph.engine.records import Split
from rolegraph.engine.vocabulary.call import CallField, ItemCall
from rolegraph.engine.vocabulary.datasets import SUFFIXES, Row, dataset_of, json_row, open_dataset, seed_tasks
from rolegraph.engine.vocabulary.environments import (
    Environment,
    EnvironmentFailure,
    LiveEnvironment,
    Transition,
    environment_of,
)
from rolegraph.engine.vocabulary.foreign import short_repr
from rolegraph.engine.vocabulary.imports import Import, digest_of, import_file
from rolegraph.engine.vocabulary.items import (
    Dataset,
    Estimator,
    Floats,
    LossName,
    LossSetting,
    Metric,
    ParseFailure,
    Parser,
    Reward,
    RewardInputs,
    Score,
    Signal,
    datasets,
    environments,
    estimators,
    metrics,
    parsers,
    rewards,
    role_metric,
    signals,
    tools,
)
from rolegraph.engine.vocabulary.options import Option, options_of
from rolegraph.engine.vocabulary.permissions import check_url, is_allowed
from rolegraph.engine.vocabulary.registry import (
    BadOptions,
    BadParts,
    Item,
    Registry,
    UnknownName,
    record_items,
    registry_of,
)
from rolegraph.engine.vocabulary.tools import Function, Pairs, Tool, ToolCall, ToolError
from rolegraph.engine.vocabulary.views import (
    REWARD_FIELDS,
    VIEW_FIELDS,
    ScoredView,
    SelfView,
    Upstream,
    View,
    Views,
)

__all__ = [
    "REWARD_FIELDS",
    "SUFFIXES",
    "VIEW_FIELDS",
    "BadOptions",
    "BadParts",
    "CallField",
    "DataError",
    "Dataset",
    "Environment",
    "EnvironmentFailure",
    "Estimator",
    "Floats",
    "Function",
    "Import",
    "Item",
    "ItemCall",
    "LiveEnvironment",
    "LossName",
    "LossSetting",
    "Metric",
    "Option",
    "Pairs",
    "ParseFailure",
    "Parser",
    "Registry",
    "Reward",
    "RewardInputs",
    "Row",
    "Score",
    "ScoredView",
    "SelfView",
    "Signal",
    "Split",
    "Tool",
    "ToolCall",
    "ToolError",
    "Transition",
    "UnknownName",
    "Upstream",
    "UsageError",
    "View",
    "Views",
    "check_url",
    "dataset_of",
    "datasets",
    "did_you_mean",
    "digest_of",
    "environment_of",
    "environments",
    "estimators",
    "import_file",
    "is_allowed",
    "json_row",
    "metrics",
    "open_dataset",
    "options_of",
    "parsers",
    "record_items",
    "registry_of",
    "rewards",
    "role_metric",
    "seed_tasks",
    "short_repr",
    "signals",
    "tools",
]
