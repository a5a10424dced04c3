"""Advantages of a step: credit of turns, groups, estimators, signals, and their notes in the episodes."""
