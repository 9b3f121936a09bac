"""Which tensors are quantized, one placement a file."""
