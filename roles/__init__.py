"""What a role can be made of: parsers, rewards, estimators, signals, metrics, datasets, environments.

One file a kind; what a kind needs many lines for, a countdown task or a game, has a file of its own.

Each item is a plain function, made known by an entry point in pyproject.toml, as a package's own would be.
"""
