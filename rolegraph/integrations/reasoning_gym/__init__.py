"""Tasks and scorers of reasoning-gym."""
