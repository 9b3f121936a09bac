"""Many trials: comparisons, sweeps, and the tables of the paper."""
