"""Environments on an OpenEnv server."""
