"""Tests of `rolegraph.engine.training`."""
