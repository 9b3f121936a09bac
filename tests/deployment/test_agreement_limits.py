"""A runtime that computes something else is refused; a few logits near zero are no proof of that."""

from __future__ import annotations

import math

import pytest

from quietformer.deployment.agreement_limits import LEAST, left_that_agree
from quietformer.errors import QuietformerError
from quietformer.results.export import Agreement, ExportDetails, FileSizes, RuntimeDetails


def details(cosine):
    one = RuntimeDetails(runtime="onnxruntime", agreement=Agreement(cosine=cosine, equal=0.0))
    return ExportDetails.model_construct(runtimes=[one], latency=[], bytes=FileSizes(fp32=2, int8=1))


@pytest.mark.parametrize("cosine", [LEAST - 0.05, 0.0])
def test_a_low_cosine_is_refused_but_for_classes(cosine, tmp_path):
    with pytest.raises(
        QuietformerError, match=r"to its simulation, and at least 0\.9 is asked for; nothing was written"
    ):
        left_that_agree(details(cosine), tmp_path, asked=False)
    kept = left_that_agree(details(cosine), tmp_path, asked=False, classes=True)
    assert [one.runtime for one in kept.runtimes] == ["onnxruntime"]


@pytest.mark.parametrize("classes", [True, False])
def test_what_is_no_number_is_always_refused(classes, tmp_path):
    with pytest.raises(QuietformerError, match="gives values that are not finite"):
        left_that_agree(details(math.nan), tmp_path, asked=False, classes=classes)
