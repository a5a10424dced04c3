"""Training loop, with the schedule of its steps and the rollouts that each step learns from."""
