"""Other weights, same function: channel balancing, rotation, SmoothQuant."""
