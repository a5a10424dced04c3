"""One folder for each foreign project, found by entry points; a project is removed by deleting its folder."""
