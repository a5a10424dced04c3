"""Policies in training: their datums, clients of the Tinker SDK, past copies and sampling servers."""
