"""The same mathematics without T x T memory: blocked CPU rows, SDPA, FlexAttention."""
