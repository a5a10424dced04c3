"""Creation of a workflow folder from a shipped spec or a table of tasks: `rolegraph new`."""
