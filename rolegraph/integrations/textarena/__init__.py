"""TextArena's games, played in worker processes."""
