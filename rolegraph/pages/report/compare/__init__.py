"""Comparison of runs, trainings and specs: differences of their specs and settings, and of their results.

The stages: `sides` (a folder to plain data), `differences` (specs, key by key), `comparison` (figures with
intervals, and tasks that flipped), `page` (all of it as HTML).
"""
