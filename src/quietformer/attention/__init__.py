"""What replaces softmax attention: the core, its masks, and putting it into a model."""
