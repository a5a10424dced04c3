"""What a role can be made of: parsers, rewards, estimators, signals, metrics, datasets; functions by name."""

from roles import datasets as _datasets
from roles import estimators as _estimators
from roles import metrics as _metrics
from roles import parsers as _parsers
from roles import rewards as _rewards
from roles import signals as _signals
from roles.datasets import open_dataset
from roles.vocabulary import datasets, estimators, metrics, parsers, rewards, signals

_BUILT_IN = (
    _datasets,
    _estimators,
    _metrics,
    _parsers,
    _rewards,
    _signals,
)  # importing them registers what they hold

__all__ = ["datasets", "estimators", "metrics", "open_dataset", "parsers", "rewards", "signals"]
