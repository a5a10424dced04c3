"""Sources of models and their downloads. Imports neither torch nor transformers."""
