"""Built-in vocabulary: parsers, rewards, estimators, signals, metrics, datasets, environments and tools.

Each kind has a file; tasks and games with many rules have files of their own. Each item is a plain function
with an entry point in pyproject.toml, like the items of any other package.
"""
