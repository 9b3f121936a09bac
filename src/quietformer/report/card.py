"""A fragment for a model card."""

from __future__ import annotations

from typing import Any

from quietformer.results.labels import label


def card_fragment(figures: dict[str, Any]) -> str:
    """The verdict and the headline figures as Markdown."""
    head, found = figures["headline"], figures["verdict"]
    lines = [
        "## Activation outliers",
        "",
        f"**{found['sentence']}** Measured by Quietformer on "
        f"{figures['data']['sequences']} sequences of {figures['data'].get('source', 'given data')}.",
        "",
        *(f"- {claim}" for claim in found["claims"]),
        "",
        "| figure | value |",
        "| --- | --- |",
        f"| attention | `{figures['model']['attention']}` |",
        f"| largest infinity norm ({label(head['infinity_site'])}) | {head['infinity_norm']:.2f} |",
        f"| average kurtosis | {head['kurtosis']:,.1f} |"
        if head["kurtosis"] is not None
        else "| average kurtosis | - |",
        "",
        f"`{figures['command']}`",
    ]
    # Tokens come from other people's files; a bar or a line break would tear the table.
    return "\n".join(line.replace("\r", " ") for line in lines) + "\n"
