"""The attention that replaces softmax attention: the core, its masks, and the functions that put it into a model."""
