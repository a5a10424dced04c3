"""Tests of `engine.training`."""
