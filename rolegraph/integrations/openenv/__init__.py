"""Environments that an OpenEnv server keeps."""
