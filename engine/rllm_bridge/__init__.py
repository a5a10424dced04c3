"""The same spec on rLLM: as a Workflow that its trainer takes, and as the config that it is launched with.

The only package that imports rLLM, and only inside the functions that need it.
"""
