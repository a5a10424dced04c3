"""Rewriting of files of version 1 of the language in version 2: `rolegraph migrate`.

No other room knows version 1. `rewrites.py` lists the rewrites, a function for each construct; `document.py`
has the text and the YAML nodes that they read; `files.py` finds the specs in a file.
"""
