"""Text and images as batches a model takes."""
