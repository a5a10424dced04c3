"""What a role can be made of: parsers, rewards, estimators, signals, metrics, datasets; one file a kind.

Each item is a plain function, made known by an entry point in pyproject.toml, as a package's own would be.
"""
