"""Episodes that run on a Ray cluster."""
