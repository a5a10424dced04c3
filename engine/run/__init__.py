"""Runs a Plan: what may start when, one call after the other, what it earns, and the stream of episodes."""
