"""Probes of a Tinker service: sampling, losses, updates and states (`rolegraph doctor`)."""
