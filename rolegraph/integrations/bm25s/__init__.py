"""The tool `search`, which ranks the passages of a file with the package bm25s."""
