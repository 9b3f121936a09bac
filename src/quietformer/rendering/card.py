"""A fragment for a model card."""

from __future__ import annotations

from quietformer.rendering.markdown import code, escaped
from quietformer.results import numbers
from quietformer.results.inspect import InspectReport
from quietformer.results.labels import label, printable
from quietformer.results.tables import Table


def card_fragment(report: InspectReport) -> str:
    """The verdict and the headline metrics as Markdown."""
    head, found = report.headline, report.verdict
    rows = [
        ["attention", code(report.model.attention or "")],
        [f"largest infinity norm ({label(head.infinity_site)})", numbers.norm(head.infinity_norm)],
        ["average kurtosis", numbers.measured(head.kurtosis, "kurtosis")],
    ]
    lines = [
        "## Activation outliers",
        "",
        f"**{found.sentence}** Measured by Quietformer on {report.data.sequences} sequences of "
        f"{escaped(report.data.source or 'given data')}.",
        "",
        *(f"- {printable(claim)}" for claim in found.claims),
        "",
        *Table(columns=["metric", "value"], rows=rows).markdown().splitlines(),
        "",
        code(report.command),
    ]
    return "\n".join(lines) + "\n"
