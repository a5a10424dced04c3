"""The small base model that comes with the package: weights, tokenizer, and how they were made."""
