"""New workflows of the user's: `rolegraph new`, from a shipped spec or from a table of tasks."""
