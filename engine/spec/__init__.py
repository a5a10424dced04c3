"""The language: models of what a spec may say, the loader, and diagnostics."""
