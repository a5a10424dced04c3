"""The training loop and what feeds it: schedule and rollouts."""
