"""Rollout, group, advantage, update, validate: trains every trainable role of a plan over the Tinker SDK.

`loop.train` is the loop, from a `setup.Setup` with open `policies.Policies`; the other files are its parts.
Starting services is for others. Nothing is imported here: comparing two runs needs no SDK.
"""
