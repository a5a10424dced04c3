"""Training of a plan's roles over the Tinker SDK: rollouts, groups, advantages, updates, validation.

`loop.loop.train` is the loop; it takes a `TrainingSetup` with open `Policies`. Imports go one way: loop →
policies, analysis, service → advantages. The packages import nothing themselves, because comparing two runs
needs no SDK.
"""
