"""Text and images as batches that a model takes."""
