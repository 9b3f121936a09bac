"""A fragment for a model card."""

from __future__ import annotations

from quietformer.results import numbers
from quietformer.results.inspect import InspectReport
from quietformer.results.labels import label
from quietformer.results.tables import Table


def card_fragment(report: InspectReport) -> str:
    """The verdict and the headline metrics as Markdown."""
    head, found = report.headline, report.verdict
    rows = [
        ["attention", f"`{report.model.attention}`"],
        [f"largest infinity norm ({label(head.infinity_site)})", numbers.norm(head.infinity_norm)],
        ["average kurtosis", numbers.measured(head.kurtosis, "kurtosis")],
    ]
    lines = [
        "## Activation outliers",
        "",
        f"**{found.sentence}** Measured by Quietformer on {report.data.sequences} sequences of "
        f"{report.data.source or 'given data'}.",
        "",
        *(f"- {claim}" for claim in found.claims),
        "",
        *Table(columns=["metric", "value"], rows=rows).markdown().splitlines(),
        "",
        f"`{report.command}`",
    ]
    # Tokens come from other people's files; a line break would tear the list.
    return "\n".join(line.replace("\r", " ") for line in lines) + "\n"
