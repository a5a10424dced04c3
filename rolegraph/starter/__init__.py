"""Workflows of one's own: `rolegraph new`, from a shipped spec or from a table of tasks."""
