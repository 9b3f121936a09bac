"""Names of tensors as people say them, and other people's text made safe to print."""

# B sequences, T tokens, d features

from __future__ import annotations


def printable(text: str) -> str:
    """Control characters spelled out: a token must not move a terminal's cursor or tear a table."""
    return "".join(character if character.isprintable() else repr(character)[1:-1] for character in text)


LABELS = {
    "ffn_output": "FFN outputs",
    "ffn_residual": "residual stream after the FFN",
    "ffn_norm": "LayerNorm outputs at the FFN",
    "block_output": "block outputs",
    "attention_output": "attention outputs",
    "attention_residual": "residual stream after attention",
    "attention_norm": "LayerNorm outputs at attention",
}


def label(site: str) -> str:
    """`ffn_output` as people say it."""
    return LABELS.get(site, site.replace("_", " "))
