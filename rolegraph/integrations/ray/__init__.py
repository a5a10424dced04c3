"""Episodes made on a Ray cluster."""
