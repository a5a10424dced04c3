"""Training of a plan's roles over the Tinker SDK: rollouts, groups, advantages, updates, validation.

`loop.train` is the loop; it takes a `rollouts.TrainingSetup` with open `policies.Policies`. The package
imports nothing itself, because comparing two runs needs no SDK.
"""
