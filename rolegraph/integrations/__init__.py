"""One folder for each foreign project, found by entry points; deleting a folder takes out its project."""
