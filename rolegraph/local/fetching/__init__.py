"""Sources of models for `rolegraph fetch`, and the programs that download and convert models."""
