"""What is particular to a model family."""
