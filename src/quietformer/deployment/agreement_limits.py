"""What is shipped computes what was simulated: a runtime that gives something else is refused or left out."""

from __future__ import annotations

import math
import shutil
import warnings
from pathlib import Path

from quietformer.deployment.openvino_runtime import OPENVINO_FILE
from quietformer.errors import QuietformerError, QuietformerWarning
from quietformer.results import numbers
from quietformer.results.export import TITLES, ExportDetails, RuntimeDetails

LEAST = 0.9
"""Mean cosine to the simulation below which a graph computes something else."""
NEAR = 0.98
"""Below it the user is warned: rounding ties, and sums in another order or in bf16, leave more."""

OTHER = {
    "onnxruntime": "export with --weight-type uint8 or --for openvino",
    "openvino": "export with --runtime onnxruntime",
}


def left_that_agree(details: ExportDetails, draft: Path, *, asked: bool, classes: bool = False) -> ExportDetails:
    """The details without OpenVINO if it alone disagrees and nobody asked for it; else that is an error.

    Of classes only numbers that are not finite count: the cosine of two logits near zero says nothing.
    """
    kept: list[RuntimeDetails] = []
    for place, one in enumerate(details.runtimes):
        why = _disagreement(one, classes=classes)
        if why and (asked or place == 0):
            raise QuietformerError(f"{why}; nothing was written; {OTHER.get(one.runtime, '')}")
        if why:
            shutil.rmtree((draft / OPENVINO_FILE).parent)
            warnings.warn(f"{why}; it is left out", QuietformerWarning, stacklevel=2)
            one = RuntimeDetails(runtime=one.runtime, error=f"left out: {why}")
        elif not classes and one.agreement is not None and (found := one.agreement.judged) < NEAR:
            warnings.warn(
                f"INT8 in {TITLES[one.runtime]} has a mean cosine of {numbers.metric(found, 'cosine')} to its simulation; "
                f"{numbers.quoted(NEAR)} and more is usual, so trust the metrics of the runtime, not those of the simulation",
                QuietformerWarning,
                stacklevel=2,
            )
        kept.append(one)
    written = {one.runtime for one in kept if one.error is None}
    rows = [
        row.model_copy(update={"runs": [run for run in row.runs if run.kind == "fp32" or run.runtime in written]})
        for row in details.latency
    ]
    return details.model_copy(update={"runtimes": kept, "latency": rows})


def _disagreement(one: RuntimeDetails, *, classes: bool) -> str:
    """What is wrong with INT8 in a runtime; empty if nothing."""
    if one.agreement is None:
        return ""
    found = one.agreement.judged
    if not math.isfinite(found):
        return f"INT8 in {TITLES[one.runtime]} gives values that are not finite"
    if not classes and found < LEAST:
        return (
            f"INT8 in {TITLES[one.runtime]} has a mean cosine of {numbers.metric(found, 'cosine')} to its simulation, and at "
            f"least {numbers.quoted(LEAST)} is asked for"
        )
    return ""
