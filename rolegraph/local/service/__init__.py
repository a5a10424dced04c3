"""The Tinker API over one local model: HTTP, the compute thread, sampling and training. Imports torch."""
