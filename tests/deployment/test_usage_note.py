"""What the note beside a graph says of signed weights is true of the machine that it was made on."""

from __future__ import annotations

from pathlib import Path

import pytest

import quietformer as qf
from quietformer.deployment.processor import INTEGER_PRODUCTS, adds_exactly, adds_exactly_on
from quietformer.deployment.usage_note import caution
from quietformer.results.base import Report
from tests.tiny_models import build, inputs

SAVED = Path(__file__).parent.parent / "results" / "version_1" / "export_bert.json"


@pytest.mark.parametrize("instructions", [*INTEGER_PRODUCTS.values(), "AVX-512 VNNI, bf16", None])
@pytest.mark.parametrize("equal", [True, None])
def test_no_overflow_is_claimed_only_where_it_could_have_been_seen(instructions, equal):
    fields = {"weight_type": "int8", "signed_equal": equal, "instruction_set": instructions}
    text = caution(Report.read(SAVED).export.model_copy(update=fields))
    seen = bool(equal) and not adds_exactly_on(instructions)
    assert ("none did" in text) == seen
    assert ("was not checked" in text) == (not seen)


def test_processors_without_vnni_are_those_that_can_overflow():
    able = [name for name in INTEGER_PRODUCTS.values() if not adds_exactly_on(name)]
    assert able == [name for name in INTEGER_PRODUCTS.values() if "without VNNI" in name]


def test_an_export_where_nothing_can_overflow_claims_no_check(tmp_path):
    model, batch = build("bert"), inputs("bert")
    qf.quantize_(model, qf.QuantSpec(placement="matmul", per_channel=True), batch)
    qf.calibrate_(model, [batch])
    options = qf.OnnxOptions(timed=False, runtime="onnxruntime")
    details = qf.export_onnx(model, tmp_path / "out", [batch], options=options)
    assert (details.signed_equal is None) == adds_exactly()
    if adds_exactly():
        assert details.weight_type == "int8"
        assert "was not checked" in (tmp_path / "out" / "README.md").read_text()
