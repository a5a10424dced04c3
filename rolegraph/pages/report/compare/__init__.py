"""Runs, trainings and specs held side by side: what differs in what they are, and in what came of them.

The stages: `sides` (a folder to plain data), `differences` (specs, key by key), `comparison` (figures with
intervals, and tasks that flipped), `page` (all of it as HTML).
"""
