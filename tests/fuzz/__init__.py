"""Damaged inputs for every command, made from a random seed: each is refused in one line, or changes nothing."""
