"""The small models that ship with the package, and the script that taught them (`teach.py`)."""
