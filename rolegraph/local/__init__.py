"""The Tinker-compatible local service: its launcher, the service itself and the models of the package.

The launcher and `warm.py`, with services that outlive their command, are layers below
`rolegraph.engine.models`; the service is a layer above it.
"""
