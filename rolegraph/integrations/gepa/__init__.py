"""Prompts that evolve by reflection, with GEPA."""
