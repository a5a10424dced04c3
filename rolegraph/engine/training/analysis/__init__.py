"""Figures of episodes and trainings: metrics, outcomes of groups, intervals, the forecast. Pure."""
