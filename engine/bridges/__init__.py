"""Other projects' environments and trainers: the folders that `eject` writes for them, and what these run.

A module for each project; only that module imports the project.
"""
