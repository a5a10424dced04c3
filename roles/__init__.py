"""What a role can be made of: parsers, rewards, estimators, metrics and datasets, each a small function in a registry."""
