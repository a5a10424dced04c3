"""What a role can be made of: parsers, rewards, estimators, metrics and datasets, small functions by name."""
