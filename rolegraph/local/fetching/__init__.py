"""Sources of models: what `fetch` asks for, and the programs that download or convert it."""
