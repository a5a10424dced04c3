"""A Tinker-compatible service on this machine, and the small base model that comes with the package."""

from engine.local.service import BASE_MODEL, Running, running, serve

__all__ = ["BASE_MODEL", "Running", "running", "serve"]
