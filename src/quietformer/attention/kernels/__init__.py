"""Attention in memory linear in the sequence length: blocks of rows on the CPU, torch's SDPA, FlexAttention."""
